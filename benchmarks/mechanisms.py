"""What mechanisms of the Q family cost: seconds of a gradient step, as ratios taken in one run.

    python benchmarks/mechanisms.py [--tasks smax/2s3z mpe/simple_spread] [--rounds 15] [--out FILE]

An update of 32 gradient steps is compiled for each side and run on the same rollout, one side after the other, round
after round, so that noise hits all; ratios are of the least seconds. Priorities are timed at 5,000 and 100,000 stored
sequences, drawn and rated as a gradient step does. Prints tables and, with --out, writes JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from common import add_out, least_seconds, markdown, save

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.algorithms.q import Q
from rookery.core.registry import PRESETS, TASKS
from rookery.core.types import Clock
from rookery.memory import replay
from rookery.memory.replay import Replay
from rookery.nets.agent import Net
from rookery.training.compiled.rollout import collect, open_worlds

STEPS = 32
CLOCK = Clock(jnp.int32(3), jnp.uint32(30_000), jnp.float32(100_000))
GRU, TRANSFORMER = Net("gru", width=32, layers=1), PRESETS["differ_transformer"].net


def sides() -> dict[str, tuple[Q, str]]:
    """What is timed, and against what."""
    qmix, differ, inspire = (PRESETS[name] for name in ("qmix", "differ_qmix", "inspire_qmix"))
    return {
        "qmix": (qmix, "qmix"),
        "differ_qmix": (differ, "qmix"),
        "super_qmix": (PRESETS["super_qmix"], "differ_qmix"),
        "inspire_qmix": (inspire, "differ_qmix"),
        "inspire_qmix, 2 partners": (replace(inspire, share=replace(inspire.share, max_partners=2)), "differ_qmix"),
        "dqn": (PRESETS["dqn"], "dqn"),
        "dqn, per-agent weights": (replace(PRESETS["dqn"], net=PRESETS["super_dqn"].net), "dqn"),
        "super_dqn": (PRESETS["super_dqn"], "dqn, per-agent weights"),
        "qmix, priorities": (replace(qmix, replay=replace(qmix.replay, priority=0.6)), "qmix"),
        "qmix, GRU": (replace(qmix, net=GRU), "qmix"),
        "qmix, transformer": (replace(qmix, net=TRANSFORMER), "qmix, GRU"),
    }


def updates(algo: Q, task: Any) -> Callable[[], Any]:
    """A compiled update of STEPS gradient steps, on a rollout of the agents' own."""
    envs = algo.collect.envs
    algo = replace(algo, replay=replace(algo.replay, capacity=4 * envs, start=32, steps_per_sequence=STEPS / envs))
    spec, key = task.spec, jax.random.PRNGKey(0)
    algo.check(spec)

    @jax.jit
    def begin() -> tuple[Any, Any]:
        state = algo.init(spec, key)
        worlds = open_worlds(algo, task, envs, key)
        _, rollout, *_ = collect(algo, task, algo.policy(state), worlds, CLOCK, key)
        return state, rollout

    state, rollout = begin()
    update = jax.jit(lambda state, rollout: algo.update(spec, state, rollout, CLOCK, key)[0])
    jax.block_until_ready(update(state, rollout))
    return lambda: jax.block_until_ready(update(state, rollout))


def gradient_steps(task: str, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a gradient step of each side, and the ratio to what it builds on."""
    wanted = sides()
    seconds = least_seconds({name: updates(algo, TASKS[task]) for name, (algo, _) in wanted.items()}, rounds)
    return [
        {
            "task": task,
            "side": name,
            "ms per gradient step": round(1e3 * seconds[name] / STEPS, 2),
            "against": base,
            "ratio": round(seconds[name] / seconds[base], 2),
        }
        for name, (_, base) in wanted.items()
    ]


def priorities(capacity: int, rounds: int) -> dict[str, Any]:
    """Microseconds of drawing and rating a batch by priority, STEPS times in one program, and of uniform draws."""
    keys = jax.random.split(jax.random.PRNGKey(0), STEPS)

    def program(store: Replay) -> Callable[[], Any]:
        def one(p: Any, key: Any) -> tuple[Any, Any]:
            draw = store.draw(key, p, jnp.int32(capacity), CLOCK)
            return replay.rate(p, draw, jnp.abs(jax.random.normal(key, (store.batch,)))), draw.index

        call = jax.jit(lambda p: jax.lax.scan(one, p, keys))
        p = None if store.priority == 0 else jax.random.uniform(keys[0], (capacity,))
        jax.block_until_ready(call(p))
        return lambda: jax.block_until_ready(call(p))

    seconds = least_seconds(
        {"uniform": program(Replay(capacity)), "priorities": program(Replay(capacity, priority=0.6))}, rounds
    )
    return {"sequences": capacity} | {f"{name}, us": round(1e6 * s / STEPS, 1) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["smax/2s3z", "mpe/simple_spread"])
    parser.add_argument("--rounds", type=int, default=15)
    add_out(parser)
    options = parser.parse_args()
    steps = [row for task in options.tasks for row in gradient_steps(task, options.rounds)]
    draws = [priorities(capacity, options.rounds) for capacity in (5_000, 100_000)]
    for name, rows in {"mechanisms": steps, "priorities": draws}.items():
        print(markdown(rows), end="\n\n")
        save(options.out, name, rows)


if __name__ == "__main__":
    main()
