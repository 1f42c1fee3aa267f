"""Goals that memory agents reach in 12,000 steps of the GBMR authors' maze, and the updates that they spend on it.

    python benchmarks/maze.py [--seeds 10] [--steps 12000] [--task maze/gbmr] [PRESET ...]

All seeds of a preset are one program. Published counts are means of five runs, read off the authors' arrays; the
shortest way has 18 steps, so that nobody can reach more than 666 goals. A write is an update by a transition that was
taken; a backup is one that reconstruction made.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.core.registry import PRESETS, TASKS
from rookery.training.check import check
from rookery.training.compiled.compiler import jit
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig
from rookery.training.state import RunState

PUBLISHED = {"q_published": 323.6, "gq_published": 323.6, "gcq_published": 594.4, "gbmr": 515.8}
NAMES = ["q_published", "gq_published", "gcq_published", "q", "gq", "gcmr", "gbmr", "gqsi", "gqil", "gbmr_sweep"]
NAMES += ["gbmr_frontier"]


def main() -> None:
    """Print one row per preset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--task", default="maze/gbmr")
    parser.add_argument("--capacity", type=int, default=128, help="nodes of a graph; this maze has 91 cells")
    parser.add_argument("--explore", choices=("uniform", "unseen", "frontier"), help="instead of the preset's own")
    args = parser.parse_args()
    print(f"{'preset':16} {'goals':>7} {'lowest':>7} {'highest':>7} {'published':>9}", end=" ")
    print(f"{'writes':>8} {'backups':>9} {'steps/s':>8}")
    for preset in args.presets:
        algo = PRESETS[preset]
        algo = replace(algo, graph=replace(algo.graph, capacity=args.capacity))
        if args.explore:
            algo = replace(algo, acting=replace(algo.acting, explore=args.explore))
        seeds = tuple(range(args.seeds))
        goals, spent, rate = count(RunConfig(preset, args.task, algo, TASKS[args.task], args.steps, seeds))
        published = f"{PUBLISHED[preset]:9.1f}" if preset in PUBLISHED else f"{'-':>9}"
        row = f"{preset:16} {goals.mean():7.1f} {goals.min():7.0f} {goals.max():7.0f} {published}"
        print(f"{row} {spent['writes']:8.0f} {spent['reconstruction_updates']:9.0f} {rate:8.0f}", flush=True)


def count(config: RunConfig) -> tuple[np.ndarray, dict[str, float], float]:
    """Goals of each seed within the budget, writes and backups (means over seeds), and steps/s of all seeds."""
    check(config)
    program = Program(config)
    # A reset is a row as well: an episode has at least two rows, and on this maze at least 19.
    rows = config.steps + config.steps // 18

    def run(state: RunState) -> tuple[RunState, Any]:
        def one(state: RunState, _: None) -> tuple[RunState, Any]:
            state, report = program.chunk(state, 1)
            kept = {name: report.sums.metrics()[name] for name in ("train/success", "writes", "reconstruction_updates")}
            return state, (kept, report.steps)

        return jax.lax.scan(one, state, None, rows)

    state = jit(program.init, once=True)()
    compiled = jit(run, donate_argnums=0).lower(state).compile()
    begun = time.perf_counter()
    _, (means, steps) = jax.block_until_ready(compiled(state))
    rate = rows * len(config.seeds) / (time.perf_counter() - begun)
    inside = np.asarray(steps) <= config.steps
    goals = np.sum(np.asarray(means["train/success"].total) * inside, axis=0)
    last = np.sum(inside, axis=0) - 1
    writes = np.sum(np.asarray(means["writes"].total) * inside, axis=0).mean()
    backups = np.asarray(means["reconstruction_updates"].value)[last, np.arange(len(config.seeds))].mean()
    return goals, {"writes": float(writes), "reconstruction_updates": float(backups)}, rate


if __name__ == "__main__":
    main()
