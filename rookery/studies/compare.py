"""Runs side by side, as text."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from rookery.core.config import format_value
from rookery.core.errors import ConfigError
from rookery.studies import stats, summarise
from rookery.studies.plan import Compare, Scale
from rookery.studies.read import Runs, open_runs
from rookery.studies.results import Results, collect
from rookery.studies.tables import Table, show
from rookery.training.folder import RunFolder


@dataclass(frozen=True)
class Comparison:
    """What is to be said of some runs."""

    legend: Table
    differences: Table
    scores: Table
    improvement: Table
    plots: tuple[str, ...]
    warnings: tuple[str, ...]


def compare(folders: Sequence[RunFolder], scales: Mapping[str, Scale], policy: Any = "best") -> Comparison:
    """Compare runs; the first is what the others are held against."""
    if len({folder.path.resolve() for folder in folders}) < len(folders):
        raise ConfigError("every run may be named once.")
    runs, legend = _lettered(open_runs(folders))
    letters = [row[0] for row in legend.rows]
    results = collect(runs, Compare(policy=policy), scales, letters, key="letter")
    if not results.cells:
        raise ConfigError("none of these runs has an evaluation yet.")
    return Comparison(
        legend=legend,
        differences=_differences(folders),
        scores=summarise.final_table(results),
        improvement=summarise.improvement_table(results),
        plots=tuple(_plot(results, task) for task in results.tasks),
        warnings=tuple(summarise.warnings(results)),
    )


def _lettered(runs: Runs) -> tuple[Runs, Table]:
    """The runs with a short name for each, or for each of its labels where a run has swept values."""
    groups = runs.members.select("run", "label", "task").unique(maintain_order=True)
    names = [*string.ascii_uppercase, *(a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)]
    if groups.height > len(names):
        raise ConfigError(f"compare takes at most {len(names)} runs, got {groups.height}. A study has room for more.")
    groups = groups.with_columns(letter=pl.Series(names[: groups.height]))
    members = runs.members.join(groups, on=["run", "label", "task"], maintain_order="left")
    rows = tuple(groups.select("letter", "label", "task", "run").iter_rows())
    return replace(runs, members=members), Table("legend", "Runs", "", ("", "algorithm", "task", "run"), rows)


def _differences(folders: Sequence[RunFolder]) -> Table:
    """Entries of the configs that are not the same in all runs."""
    flat = [_flatten(folder.config()) for folder in folders]
    paths = dict.fromkeys(path for entries in flat for path in entries)
    rows = tuple(
        (path, *(format_value(entries[path]) if path in entries else None for entries in flat))
        for path in paths
        if len({repr(entries.get(path)) for entries in flat}) > 1
    )
    return Table("differences", "Differences", "", ("entry", *(folder.id for folder in folders)), rows)


def _flatten(config: Any, above: str = "") -> dict[str, Any]:
    """Dotted path -> value, from JSON: also a config whose classes are not here can be compared."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        path = f"{above}.{name}" if above else name
        found |= _flatten(value, path) if isinstance(value, dict) else {path: value}
    return found


def _plot(results: Results, task: str, width: int = 72, height: int = 16) -> str:
    """Learning curves (IQM over seeds) drawn with the runs' letters."""
    cells = [results.cells[letter, task] for letter in results.labels if (letter, task) in results.cells]
    curves = [(cell.label, cell.steps, stats.iqm(cell.curves.T)) for cell in cells]
    every = np.concatenate([curve[np.isfinite(curve)] for _, _, curve in curves])
    low, high = float(every.min()), float(every.max())
    most = max(float(steps[-1]) for _, steps, _ in curves)
    canvas = [[" "] * width for _ in range(height)]
    for letter, steps, curve in curves:
        columns = np.linspace(0, most, width)
        for x, y in enumerate(np.interp(columns, steps, curve, right=np.nan)):
            if np.isfinite(y):
                row = round((high - y) / (high - low) * (height - 1)) if high > low else height // 2
                canvas[row][x] = letter if canvas[row][x] in (" ", letter) else "*"
    margin = max(len(show(low)), len(show(high)))
    labels = [show(high), *[""] * (height - 2), show(low)]
    lines = [f"{label:>{margin}} |{''.join(row)}" for label, row in zip(labels, canvas, strict=True)]
    right = f"{show(int(most))} steps"
    axis = f"{'':>{margin}} 0{right:>{width}}"
    unit = results.scales[task].unit
    return "\n".join([f"{task}: {unit}, IQM over seeds (* where curves meet)", *lines, axis])
