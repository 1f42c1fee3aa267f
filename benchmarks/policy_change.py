"""How much an update changes the joint policy at matched return: tables for the runs of a study with `probe.states`.

    python benchmarks/policy_change.py studies/hyper.toml [--out runs] [--shares 0.5 0.9]

Training returns of a task are put on one scale: 0 is the mean of all runs at their start, 1 the end of the weakest
algorithm, which all others reach too. For each seed, KL between the joint policies before and after an update, churn
(share of probe states whose greedy joint action changes) and gradient noise are averaged over the tenth of training
around the moment at which its smoothed return first reaches a share of that scale. "Progress" is how much of the budget
was spent by then: learning rates fall with it, so that a slow learner is measured at a smaller rate.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from common import Row, markdown

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.core.stats import iqm, over_seeds, show
from rookery.studies.plan import load

METRICS = {"joint KL": "probe/joint_kl", "churn": "probe/churn", "gradient noise": "probe/gradient_noise"}


def main() -> None:
    """Print a table for each share of the scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.9])
    given = parser.parse_args()
    tasks: dict[str, dict[str, list[pl.DataFrame]]] = defaultdict(dict)
    for run in load(given.study).runs:
        folder = run.folder(given.out)
        if folder.path.exists() and folder.status().state == "complete":
            members = folder.metrics().sort("steps").partition_by("member", maintain_order=True)
            tasks[run.task][run.label] = members
    for share in given.shares:
        rows = [row for task, found in tasks.items() for row in at_share(task, found, share)]
        print(f"\nAt {share:.0%} of the way\n\n{markdown(rows)}")


def at_share(task: str, found: dict[str, list[pl.DataFrame]], share: float) -> list[Row]:
    """A row for each algorithm of a task."""
    curves = {name: [smoothed(member) for member in members] for name, members in found.items()}
    start = float(np.mean([curve[0] for members in curves.values() for curve in members]))
    weakest = min(float(np.mean([curve[-1] for curve in members])) for members in curves.values())
    level = start + share * (weakest - start)
    found_at = {
        name: [moment(member, curve, level) for member, curve in zip(found[name], members, strict=True)]
        for name, members in curves.items()
    }
    return [{"task": task, "algorithm": name, **summary(moments)} for name, moments in found_at.items()]


def smoothed(member: pl.DataFrame) -> np.ndarray:
    """The training return of each chunk, as a mean over a tenth of training."""
    values = member["train/return_mean"].fill_nan(None).fill_null(strategy="backward").fill_null(strategy="forward")
    width = max(len(values) // 10, 1)
    padded = np.pad(values.to_numpy(), (width // 2, width - 1 - width // 2), mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")


def moment(member: pl.DataFrame, curve: np.ndarray, level: float) -> dict[str, float]:
    """What is measured when the curve first reaches the level; NaN if it never does."""
    reached = np.flatnonzero(curve >= level)
    if not len(reached):
        return dict.fromkeys([*METRICS, "progress"], float("nan"))
    at, width = int(reached[0]), max(len(curve) // 20, 1)
    near = member[max(at - width, 0) : at + width + 1]
    values = {name: float(near[column].fill_nan(None).mean()) for name, column in METRICS.items()}  # pyright: ignore
    return {**values, "progress": float(member["steps"][at]) / float(member["steps"][-1])}


def summary(moments: list[dict[str, float]]) -> dict[str, Any]:
    """IQM over the seeds that reached the level, with a 95% interval for the KL."""
    there = [m for m in moments if np.isfinite(m["progress"])]
    if not there:
        return {"seeds": 0, **dict.fromkeys([*METRICS, "progress"], "")}
    columns = {name: np.asarray([m[name] for m in there]) for name in there[0]}
    cells = {name: f"{iqm(values):.3g}" for name, values in columns.items()}
    return {"seeds": len(there), **cells, "joint KL": show(over_seeds(columns["joint KL"]))}


if __name__ == "__main__":
    main()
