"""What hypernetworks cost: the bilinear form beside matrices for each example, and presets beside MAPPO.

    python benchmarks/hyper.py [--task mpe/simple_spread] [--rounds 15] [--out FILE]

The two forms of one layer (64 to 64 units, 8 agents, 128 environments) are timed forward and backward, with the bytes
that XLA sets aside for them. Presets are timed by iteration (collect, update), all with MAPPO's settings, one after the
other, round after round, so that noise hits all; ratios are of the least seconds per environment step. Seconds are
those of all cores together, so that others on the machine count less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from common import add_out, least_seconds, markdown, save

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.core.registry import PRESETS, TASKS
from rookery.nets.increments import FullModes, RankOneModes
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig

SIDES = ("mappo", "hyper_mappo_last", "hyper_mappo", "hyper_mappo_local", "mappo_per_agent", "happo", "hypermarl")
ENVS, AGENTS, UNITS = 128, 8, 64


def naive(weight: Any, f: Any, x: Any) -> Any:
    """A matrix for each example."""
    return jnp.einsum("bai,baio->bao", x, jnp.einsum("baf,fio->baio", f, weight))


def naive_shared(weight: Any, f: Any, x: Any) -> Any:
    """A matrix for each environment: all agents have the same increment."""
    return jnp.einsum("bai,bio->bao", x, jnp.einsum("bf,fio->bio", f[:, 0], weight))


def full(weight: Any, f: Any, x: Any) -> Any:
    """The contraction."""
    return FullModes(weight, jnp.zeros(weight.shape[::2])).effect(f, x)


def rank_one(weight: Any, f: Any, x: Any) -> Any:
    """The contraction with modes of rank one."""
    return RankOneModes(weight[:, 0].T, weight[:, 1], jnp.zeros(weight.shape[::2])).effect(f, x)


def layer(form: Callable[..., Any], features: int) -> tuple[Callable[[], Any], int]:
    """A compiled forward and backward pass, and the bytes it needs besides inputs and outputs."""
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    weight = jax.random.normal(keys[0], (features, UNITS, UNITS))
    f, x = jax.random.normal(keys[1], (ENVS, AGENTS, features)), jax.random.normal(keys[2], (ENVS, AGENTS, UNITS))
    step: Any = jax.grad(lambda *args: jnp.sum(jnp.tanh(form(*args))), (0, 1, 2))
    run: Any = jax.jit(step).lower(weight, f, x).compile()
    return lambda: jax.block_until_ready(run(weight, f, x)), run.memory_analysis().temp_size_in_bytes


def preset(name: str, task: str, iterations: int = 4) -> tuple[Callable[[], Any], int]:
    """A compiled chunk of iterations, and its environment steps."""
    config = RunConfig(name, task, PRESETS[name], TASKS[task])
    program = Program(config)
    state = jax.jit(program.init)()
    run = jax.jit(partial(program.chunk, iterations=iterations)).lower(state).compile()
    _, report = run(state)
    return lambda: jax.block_until_ready(run(state)), int(report.steps[0])


def forms(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds and megabytes of both forms."""
    ways = {
        "rank one": rank_one,
        "bilinear": full,
        "matrix for each example": naive,
        "matrix for each environment": naive_shared,
    }
    made = {(way, n): layer(form, n) for way, form in ways.items() for n in (4, 16, 64)}
    seconds = least_seconds({str(key): call for key, (call, _) in made.items()}, rounds, time.process_time)
    return [
        {"form": way, "features": n, "ms": round(1e3 * seconds[str((way, n))], 2), "MB": round(size / 1e6, 1)}
        for (way, n), (_, size) in made.items()
    ]


def costs(task: str, rounds: int) -> list[dict[str, Any]]:
    """Microseconds per environment step of each preset, and the ratio to MAPPO's."""
    made = {name: preset(name, task) for name in SIDES}
    seconds = least_seconds({name: call for name, (call, _) in made.items()}, rounds, time.process_time)
    each = {name: 1e6 * seconds[name] / steps for name, (_, steps) in made.items()}
    return [
        {"preset": name, "us per environment step": round(us, 1), "to mappo": round(us / each["mappo"], 2)}
        for name, us in each.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mpe/simple_spread")
    parser.add_argument("--rounds", type=int, default=15)
    add_out(parser)
    options = parser.parse_args()
    found = {"forms": forms(options.rounds), "presets": costs(options.task, options.rounds)}
    for name, rows in found.items():
        print(markdown(rows), end="\n\n")
        save(options.out, f"hyper_{name}", rows)


if __name__ == "__main__":
    main()
