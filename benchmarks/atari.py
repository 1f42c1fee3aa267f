"""Atari: learning beside Stable-Baselines3's DQN, what memories cost, and convolutions beside products over patches.

    python benchmarks/atari.py --torch-python PYTHON [--only learning memory convolution] [--game MsPacman] [--rounds 2]
                               [--seconds 20] [--out FILE]

learning: environment steps per second with learning, one environment, one gradient step of batch 32 for four steps.
PYTHON has torch, stable_baselines3, ale_py and cv2. Every measurement is a process of its own, the sides take turns,
and a rate is the best of its rounds.
memory: steps per second of nec_atari and gbmr_atari with 16 environments and their 100,000 slots, as they are at the
start of a run and with a key in every slot, and the share of the time that a full memory takes: 1 - rate / rate with
128 slots.
convolution: milliseconds of the Nature CNN's convolutions at batch 32, forward and with gradient, by XLA and as
products over patches, and both as shares of what a large matrix product reaches in the same process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Row, add_out, beside, markdown, save
from scaling import answer, apart

HERE = Path(__file__).resolve().parent
BATCH, CAPACITY, START = 32, 20_000, 400
"""Of a gradient step; transitions kept; transitions before the first gradient step."""


def learning(given: argparse.Namespace) -> list[Row]:
    """Steps per second of both sides, and their ratio; theirs with one thread and with two."""
    ours, theirs = [], {1: [], 2: []}
    request = {"algo.replay.capacity": CAPACITY // 4, "algo.replay.start": START // 4, "iterations": 25}
    for _ in range(given.rounds):
        rate = apart("rate", preset="dqn_atari", task=f"atari:{given.game}", seconds=given.seconds, **request)
        ours.append(answer(rate)["steps_per_second"])
        for threads, rates in theirs.items():
            rates.append(_sb3(given, threads))
    return [
        beside(f"DQN, {given.game}, one environment", ours, f"Stable-Baselines3, threads: {threads}", rates)
        for threads, rates in theirs.items()
    ]


SMALL = 128
"""Keys of a memory that costs next to nothing."""
TABLES = {"nec_atari": "algo.dictionary.capacity", "gbmr_atari": "algo.graph.capacity"}


def memory(given: argparse.Namespace) -> list[Row]:
    """Steps per second with a large memory, full and new, and with a small one, in turn."""
    rows = []
    for preset, field in TABLES.items():
        request = {"preset": preset, "task": f"atari:{given.game}", "seconds": given.seconds, "iterations": 256}
        ways = ({"full": True}, {}, {field: SMALL, "full": True})
        found = [
            [answer(apart("rate", **request, **way))["steps_per_second"] for way in ways] for _ in range(given.rounds)
        ]
        full, new, small = (max(rates) for rates in zip(*found, strict=True))
        share = round(1 - full / small, 2)
        rows.append({"preset": preset, "full": full, "new": new, f"{SMALL} slots": small, "share": share})
    return rows


def _sb3(given: argparse.Namespace, threads: int) -> float:
    request = {"game": given.game, "seconds": given.seconds, "capacity": CAPACITY, "start": START, "threads": threads}
    command = [str(given.torch_python), str(HERE / "sb3_atari_side.py"), json.dumps(request)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{said.stderr[-2000:]}")
    return round(json.loads(said.stdout.splitlines()[-1])["steps_per_second"], 1)


def convolution(given: argparse.Namespace) -> list[Row]:
    """Milliseconds and the share of the limit of each way to convolve."""
    import jax
    import jax.numpy as jnp

    from rookery.nets.encoder import _LAYERS, conv
    from rookery.training.compiled.compiler import jit

    layers = _LAYERS["nature"]
    sizes, channels = [], 4
    for filters, size, _ in layers:
        sizes.append((channels, filters, size))
        channels = filters
    convs = [conv(jax.random.PRNGKey(i), *each) for i, each in enumerate(sizes)]
    x = jax.random.uniform(jax.random.PRNGKey(9), (BATCH, 84, 84, 4))

    def by_xla(convs: Any, x: Any) -> Any:
        for layer, (_, _, stride) in zip(convs, layers, strict=True):
            x = jax.nn.relu(layer(x, stride))
        return x

    def by_patches(convs: Any, x: Any) -> Any:
        for layer, (_, size, stride) in zip(convs, layers, strict=True):
            side = (x.shape[1] - size) // stride + 1
            last = (side - 1) * stride + 1
            cut = [x[:, i : i + last : stride, j : j + last : stride] for i in range(size) for j in range(size)]
            patches = jnp.concatenate(cut, axis=-1)
            flat = layer.weight.reshape(-1, layer.weight.shape[-1])
            x = jax.nn.relu((patches.reshape(-1, patches.shape[-1]) @ flat).reshape(BATCH, side, side, -1) + layer.bias)
        return x

    flops, side = 0, 84
    for (n_in, n_out, size), (_, _, stride) in zip(sizes, layers, strict=True):
        side = (side - size) // stride + 1
        flops += 2 * BATCH * side * side * size * size * n_in * n_out
    square = jnp.ones((1024, 1024))
    limit = 2 * 1024**3 / _best(jit(jnp.matmul), given.seconds, square, square)
    rows: list[Row] = []
    for name, forward in (("XLA", by_xla), ("patches", by_patches)):
        gradient = jax.grad(lambda convs, x, f=forward: jnp.sum(f(convs, x) ** 2))
        # The first layer's input takes no gradient: twice the forward work, less that product.
        for what, function, work in (("forward", forward, flops), ("gradient", gradient, 3 * flops)):
            seconds = _best(jit(function), given.seconds, convs, x)
            share = round(work / seconds / limit, 2)
            rows.append({"way": f"{name}, {what}", "ms": round(seconds * 1e3, 2), "share of a large product": share})
    return [*rows, {"way": "a large product", "ms": "", "share of a large product": f"{limit / 1e9:.0f} GFLOP/s"}]


def _best(function: Callable[..., Any], seconds: float, *arguments: Any) -> float:
    """Seconds of the fastest call within some seconds."""
    import jax

    jax.block_until_ready(function(*arguments))
    best, end = float("inf"), time.perf_counter() + seconds / 5
    while time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        best = min(best, time.perf_counter() - start)
    return best


QUESTIONS = {"learning": learning, "memory": memory, "convolution": convolution}


def main() -> None:
    """Answer the chosen questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", type=Path, help="needed for learning")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--game", default="MsPacman")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    add_out(parser)
    given = parser.parse_args()
    if "learning" in given.only and not given.torch_python:
        parser.error("learning needs --torch-python.")
    for question in given.only:
        rows = QUESTIONS[question](given)
        print(f"\n{question}\n\n{markdown(rows)}", flush=True)
        save(given.out, f"atari_{question}", rows)


if __name__ == "__main__":
    main()
