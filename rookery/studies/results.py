"""The numbers of a comparison: every algorithm on every task, its curves on a common grid and its absolute metric."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from rookery.studies import stats
from rookery.studies.plan import Compare, Scale
from rookery.studies.read import Runs

FEW = 10
"""Fewer seeds than this are too few for a claim."""
_POINTS = 101  # of a curve's grid, at most


@dataclass(frozen=True)
class Cell:
    """One algorithm on one task; members that did not fail, in the order of `seeds`."""

    label: str
    task: str
    seeds: tuple[int, ...]
    steps: Float[np.ndarray, "point"]
    curves: Float[np.ndarray, "member point"]
    """Score against `steps`, straight between evaluations; nan after a member's last one."""
    seconds: Float[np.ndarray, "point"]
    timed: Float[np.ndarray, "member point"]
    """Score against `seconds`."""
    finals: Float[np.ndarray, "complete"]
    """The absolute metric of the members that are complete."""
    reached: Float[np.ndarray, "member"]
    """Steps to the threshold: inf where it was never reached, nan where the task has no scale."""
    budgets: tuple[int, ...] = ()
    """Steps that the members were given, each number once."""


@dataclass(frozen=True)
class Twins:
    """Members that should differ but have the same curve."""

    task: str
    members: tuple[tuple[str, int], ...]
    """Label and seed of each."""
    training: bool
    """Whether their training metrics are the same as well."""


@dataclass(frozen=True)
class Results:
    """Everything that a report shows."""

    runs: Runs
    compare: Compare
    labels: tuple[str, ...]
    tasks: tuple[str, ...]
    scales: Mapping[str, Scale]
    """By the task's label."""
    cells: Mapping[tuple[str, str], Cell]
    twins: tuple[Twins, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def baseline(self) -> str:
        """The label that others are compared with."""
        return self.compare.baseline if self.compare.baseline in self.labels else self.labels[0]

    @property
    def view(self) -> str:
        """How the grid is best looked at."""
        if self.compare.view != "auto":
            return self.compare.view
        if len(self.tasks) > 1:
            return "screening"
        presets = self.runs.members["preset"].n_unique()
        return "ablation" if presets == 1 and len(self.labels) > 1 else "algorithms"

    @property
    def fewest(self) -> int:
        """Seeds of the algorithm that has fewest."""
        return min((len(cell.seeds) for cell in self.cells.values()), default=0)

    def scaled_tasks(self) -> list[str]:
        """Tasks whose scores can be normalised."""
        return [task for task in self.tasks if is_known(self.scales[task])]

    def normalised(self, label: str) -> list[np.ndarray]:
        """Normalised absolute metrics of an algorithm, one array for each task that has a scale and is complete."""
        return [
            stats.normalise(self.cells[label, task].finals, self.scales[task].random, self.scales[task].reference)
            for task in self.shared_tasks(label)
        ]

    def shared_tasks(self, *labels: str) -> list[str]:
        """Scaled tasks on which all of these algorithms have an absolute metric."""
        return [task for task in self.scaled_tasks() if all(self.has_final(label, task) for label in labels)]

    @cached_property
    def final_estimates(self) -> dict[tuple[str, str], stats.Estimate]:
        """IQM over seeds of the absolute metric, by label and task."""
        return {
            pair: stats.aggregate([cell.finals], stats.iqm, self.compare.resamples)
            for pair, cell in self.cells.items()
            if len(cell.finals)
        }

    @cached_property
    def aggregates(self) -> dict[str, tuple[stats.Estimate, stats.Estimate]]:
        """IQM and optimality gap of the normalised scores of every label that has some."""
        n = self.compare.resamples
        return {
            label: (stats.aggregate(strata, stats.iqm, n), stats.aggregate(strata, stats.optimality_gap, n))
            for label in self.labels
            if (strata := self.normalised(label))
        }

    @cached_property
    def improvements(self) -> dict[str, stats.Estimate]:
        """Probability of improvement over the baseline of every other label that has a task in common with it."""
        found = {}
        for label in self.labels:
            tasks = self.compared_tasks(label)
            if label != self.baseline and tasks:
                ours, theirs = ([self.cells[name, task].finals for task in tasks] for name in (label, self.baseline))
                found[label] = stats.improvement(ours, theirs, self.compare.resamples)
        return found

    def compared_tasks(self, label: str) -> list[str]:
        """Tasks on which a label and the baseline have an absolute metric; no scale is needed to compare ranks."""
        return [t for t in self.tasks if self.has_final(label, t) and self.has_final(self.baseline, t)]

    def has_final(self, label: str, task: str) -> bool:
        """Whether a member of the cell is complete."""
        return (label, task) in self.cells and len(self.cells[label, task].finals) > 0


def is_known(scale: Scale) -> bool:
    """Whether scores can be normalised by it."""
    return math.isfinite(scale.random) and math.isfinite(scale.reference) and scale.random != scale.reference


def collect(
    runs: Runs,
    compare: Compare,
    scales: Mapping[str, Scale],
    labels: Sequence[str] = (),
    key: str = "label",
) -> Results:
    """Read the curves once, member by member.

    `scales` are by task name, `labels` give an order, `key` is the column of the members that is compared.
    """
    names = dict(zip(runs.members["task"], runs.members["task_name"], strict=True))
    by_task = {task: scales.get(name, Scale()) for task, name in names.items()}
    budgets = _budgets(runs.members)
    gathered: dict[tuple[str, str], list[dict[str, Any]]] = {}
    hashes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    finals = _finals(runs, compare.policy)
    for member, curve in runs.curves():
        task = member["task"]
        row = {**member, **_on_grids(curve, budgets[task]), "reached": _reached(curve, by_task[task], compare)}
        row["final"] = finals.get((member["run"], member["member"]), math.nan)
        gathered.setdefault((member[key], task), []).append(row)
        hashes.setdefault((task, row["hash"]), []).append(row)
    present = dict.fromkeys(label for label, _ in gathered)
    cells = {pair: _cell(*pair, rows) for pair, rows in gathered.items()}
    return Results(
        runs=runs,
        compare=compare,
        labels=tuple(sorted(present, key=list(labels).index) if set(present) <= set(labels) else present),
        tasks=tuple(task for task in names if any(pair[1] == task for pair in cells)),
        scales=by_task,
        cells=cells,
        twins=tuple(_twins(runs, hashes, key)),
    )


def _budgets(members: pl.DataFrame) -> dict[str, int]:
    """The longest budget on each task."""
    return dict(members.group_by("task").agg(pl.col("budget").max()).iter_rows())


def _finals(runs: Runs, policy: str) -> dict[tuple[str, int], float]:
    frame = runs.finals.filter(pl.col("which") == policy).select("run", "member", "score")
    return {(run, member): score for run, member, score in frame.iter_rows()}


def _on_grids(curve: pl.DataFrame, budget: int) -> dict[str, Any]:
    """A member's curve against steps and against seconds, and what tells it from others."""
    steps, seconds, scores = (curve[name].to_numpy().astype(float) for name in ("steps", "seconds", "score"))
    points = min(_POINTS, max(len(steps), 2))
    digest = hashlib.sha256(steps.tobytes() + scores.tobytes()).hexdigest()
    return {
        "points": points,
        "grid_end": budget,
        "curve": (steps, scores),
        "clock": (seconds, scores),
        "hash": digest,
        "constant": bool(np.all(scores == scores[0])),
    } | _thinned(steps, seconds, scores, points)


def _thinned(steps: np.ndarray, seconds: np.ndarray, scores: np.ndarray, points: int) -> dict[str, Any]:
    """Long curves are kept on a grid of their own only: memory stays bounded."""
    if len(steps) <= 2 * points:
        return {}
    fine = np.linspace(0, steps[-1], 2 * points)
    clock = np.linspace(0, seconds[-1], 2 * points)
    return {"curve": (fine, np.interp(fine, steps, scores)), "clock": (clock, np.interp(clock, seconds, scores))}


def _reached(curve: pl.DataFrame, scale: Scale, compare: Compare) -> float:
    if not is_known(scale):
        return math.nan
    scores = stats.normalise(curve["score"].to_numpy(), scale.random, scale.reference)
    return stats.steps_to(curve["steps"].to_numpy().astype(float), scores, compare.threshold)


def _cell(label: str, task: str, rows: Sequence[Mapping[str, Any]]) -> Cell:
    points = max(row["points"] for row in rows)
    steps = np.linspace(0, rows[0]["grid_end"], points)
    # Where the slowest member ends, the others would be compared with nothing.
    seconds = np.linspace(0, min(row["clock"][0][-1] for row in rows), points)
    finals = np.asarray([row["final"] for row in rows])
    return Cell(
        label,
        task,
        tuple(row["seed"] for row in rows),
        steps,
        np.stack([np.interp(steps, *row["curve"], right=np.nan) for row in rows]),
        seconds,
        np.stack([np.interp(seconds, *row["clock"]) for row in rows]),
        finals[np.isfinite(finals)],
        np.asarray([row["reached"] for row in rows]),
        tuple(sorted({row["budget"] for row in rows})),
    )


def _twins(runs: Runs, hashes: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], key: str) -> list[Twins]:
    """Members of different configs, or of different seeds, whose curves are the same."""
    found = []
    suspects = {same: rows for same, rows in hashes.items() if len(rows) > 1}
    metrics = _metrics_of(runs, [row for rows in suspects.values() for row in rows])
    for (task, _), rows in suspects.items():
        first, *others = rows
        trained = [row for row in others if _same(metrics, first, row)]
        if trained:
            found.append(Twins(task, tuple((row[key], row["seed"]) for row in (first, *trained)), True))
        # A flat line says nothing, and different seeds may well agree on an easy task.
        elif not first["constant"]:
            found += _same_seed(task, rows, key)
    return found


def _same_seed(task: str, rows: Sequence[Mapping[str, Any]], key: str) -> list[Twins]:
    """Those of the rows that have a seed in common but are of different configs."""
    by_seed: dict[int, set[str]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], set()).add(row[key])
    return [
        Twins(task, tuple((label, seed) for label in sorted(labels)), False)
        for seed, labels in by_seed.items()
        if len(labels) > 1
    ]


Trained = dict[tuple[str, int], dict[str, tuple[float, ...]]]


def _metrics_of(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> Trained:
    """Training metrics of the members in question."""
    names = list({row["run"] for row in rows})
    found: Trained = {}
    if names:
        frame = runs.scan("metrics").filter(pl.col("run").is_in(names)).collect()
        for run, member, metric, *values in frame.select(
            "run", "member", "metric", "mean", "low", "high", "last"
        ).iter_rows():
            found.setdefault((run, member), {})[metric] = tuple(values)
    return found


def _same(metrics: Trained, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether everything that two members both measured while training is equal to the last bit."""
    left, right = (metrics.get((row["run"], row["member"]), {}) for row in (a, b))
    shared = set(left) & set(right)
    return bool(shared) and all(left[name] == right[name] for name in shared)
