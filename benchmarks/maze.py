"""Goals that memory agents reach in 12,000 steps of the GBMR authors' maze, and the updates that they spend on it.

    python benchmarks/maze.py [--seeds 10] [--steps 12000] [--task maze/gbmr] [--explore frontier] [PRESET ...]
    python benchmarks/maze.py --study studies/memory_size.toml
    python benchmarks/maze.py --speed [--nodes 10000 100000] [--tasks maze/gbmr minatar/breakout] [PRESET ...]

All seeds of a preset are one program. Intervals are 95% bootstrap intervals of the mean over seeds. Published counts
are means of five runs, read off the authors' arrays; the shortest way has 18 steps, so that nobody can reach more than
666 goals. A write is an update by a transition that was taken; a backup is one that reconstruction made.

--study counts the goals of a study's runs on mazes instead: an evaluation at the end does not see how soon they came.
--speed prints environment steps/s beside those of dqn, with memories of so many entries, and the share of the time that
reconstruction takes (1 - steps/s with it / steps/s without).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scaling import fill_memory

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.algorithms.episodic import Episodic
from rookery.algorithms.q import Q
from rookery.core.registry import PRESETS, TASKS
from rookery.mechanisms.reflect import Abstract, Reconstruct
from rookery.studies.plan import load
from rookery.studies.stats import aggregate, mean
from rookery.training.check import check
from rookery.training.compiled.compiler import jit
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig
from rookery.training.state import RunState

PUBLISHED = {"q_published": 323.6, "gq_published": 323.6, "gcq_published": 594.4, "gbmr": 515.8}
NAMES = ["q_published", "gq_published", "gcq_published", "q", "gq", "gcmr", "gbmr", "gqsi", "gqil", "gbmr_sweep"]
NAMES += ["gbmr_frontier"]


SPEED = ["dqn", "emdqn", "erlam", "mfec", "nec", "gq", "gcmr", "gbmr", "gbmr_frontier", "gbmr_sweep"]


def main() -> None:
    """Print one row per preset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--task", default="maze/gbmr")
    parser.add_argument("--capacity", type=int, default=128, help="nodes of a graph; this maze has 91 cells")
    parser.add_argument("--explore", choices=("uniform", "unseen", "frontier"), help="instead of the preset's own")
    parser.add_argument("--study", type=Path, help="count the goals of this study's runs")
    parser.add_argument("--speed", action="store_true", help="print steps/s instead")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--tasks", nargs="+", default=["maze/gbmr", "minatar/breakout"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    args = parser.parse_args()
    if args.speed:
        speeds(args.presets or SPEED, args.tasks, args.nodes, args.seconds)
        return
    runs: list[tuple[str, RunConfig]] = []
    if args.study:
        runs = [(run.label, run.config) for run in load(args.study).runs]
    for preset in [] if args.study else args.presets or NAMES:
        algo = PRESETS[preset]
        algo = replace(algo, graph=replace(algo.graph, capacity=args.capacity))
        if args.explore:
            algo = replace(algo, acting=replace(algo.acting, explore=args.explore))
        seeds = tuple(range(args.seeds))
        runs.append((preset, RunConfig(preset, args.task, algo, TASKS[args.task], args.steps, seeds)))
    wide = max(len(label) for label, _ in runs)
    print(f"{'preset':{wide}} {'goals':>7} {'interval':>13} {'lowest':>7} {'highest':>7} {'published':>9}", end=" ")
    print(f"{'writes':>8} {'backups':>9} {'steps/s':>8}")
    for label, config in runs:
        goals, spent, rate = count(config)
        published = f"{PUBLISHED[label]:9.1f}" if label in PUBLISHED else f"{'-':>9}"
        about = aggregate([goals], mean)
        interval = f"{float(about.low):.1f}..{float(about.high):.1f}"
        row = f"{label:{wide}} {goals.mean():7.1f} {interval:>13} {goals.min():7.0f} {goals.max():7.0f} {published}"
        print(f"{row} {spent['writes']:8.0f} {spent['reconstruction_updates']:9.0f} {rate:8.0f}", flush=True)


def speeds(presets: list[str], tasks: list[str], nodes: list[int], seconds: float) -> None:
    """Print steps/s of each preset with memories of each size, those of dqn as 1, and the share of reconstruction."""
    print(f"{'task':18} {'preset':14} {'entries':>8} {'steps/s':>9} {'of dqn':>7} {'reflect':>8}")
    for task in tasks:
        plain = steps_per_second(PRESETS["dqn"], task, seconds)
        print(f"{task:18} {'dqn':14} {'-':>8} {plain:9.0f} {1:7.2f} {'-':>8}", flush=True)
        for preset, n in ((p, n) for p in presets if p != "dqn" for n in nodes):
            algo = sized(PRESETS[preset], n)
            rate = steps_per_second(algo, task, seconds)
            share = f"{'-':>8}"
            if isinstance(algo, Episodic) and algo.reconstruct.method != "none":
                without = replace(algo, abstract=Abstract(), reconstruct=Reconstruct())
                share = f"{1 - rate / steps_per_second(without, task, seconds):8.2f}"
            print(f"{task:18} {preset:14} {n:8} {rate:9.0f} {rate / plain:7.2f} {share}", flush=True)


def sized(algo: Q | Episodic, entries: int) -> Q | Episodic:
    """The algorithm with a memory of so many entries."""
    if isinstance(algo, Q):
        return replace(algo, remember=replace(algo.remember, capacity=entries))
    graph, table = replace(algo.graph, capacity=entries), replace(algo.dictionary, capacity=entries)
    return replace(algo, graph=graph, dictionary=table)


def steps_per_second(algo: Any, task: str, seconds: float) -> float:
    """Environment steps of one seed in a second, after a first chunk has been compiled and has run.

    All slots of a memory are in use from the start: searches end with its last entry.
    """
    program = Program(RunConfig("", task, algo, TASKS[task], 10_000_000, (0,)))
    rows = algo.collect.envs * algo.collect.transitions(TASKS[task].spec)
    iterations = max(4096 // rows, 1)
    chunk = jit(partial(program.chunk, iterations=iterations), donate_argnums=0)
    state = jax.block_until_ready(chunk(fill_memory(jit(program.init, once=True)())))[0]
    before, begun = int(state.members.steps[0]), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        state = jax.block_until_ready(chunk(state))[0]
    return (int(state.members.steps[0]) - before) / (time.perf_counter() - begun)


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
