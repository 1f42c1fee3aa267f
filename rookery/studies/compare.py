"""Runs side by side, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from rookery.core.config import format_value
from rookery.core.errors import ConfigError
from rookery.studies import stats, summarise
from rookery.studies.plan import Compare, Scale
from rookery.studies.read import Runs, open_runs
from rookery.studies.results import Results, collect
from rookery.studies.tables import Table, show
from rookery.training.folder import RunFolder
from rookery.training.state import member_infos_of_json

_MARKS = "ox+#@%&=~^$?123456789"
_NOT_COMPARED = ("seeds", "sweep", "checkpoints", "workers")  # entries that two runs of one config may differ in


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
    """Compare runs. Runs that differ in their seeds only are one; on each task, the first is the baseline."""
    if len({folder.path.resolve() for folder in folders}) < len(folders):
        raise ConfigError("every run may be named once.")
    runs, repeated = _once(_named(open_runs(folders)))
    names = list(dict.fromkeys(runs.members["name"]))
    results = replace(collect(runs, Compare(policy=policy), scales, names, key="name"), notes=tuple(repeated))
    if not results.cells:
        raise ConfigError("none of these runs has an evaluation yet.")
    return Comparison(
        legend=_legend(runs),
        differences=_differences(runs),
        scores=summarise.final_table(results),
        improvement=_improvement(results),
        plots=tuple(_plot(results, task) for task in results.tasks),
        warnings=tuple(summarise.warnings(results)),
    )


Config = Mapping[str, Any]
"""Dotted path -> value."""


def _named(runs: Runs) -> Runs:
    """Members with a `name`: the algorithm's label; where that means several configs, with what tells them apart."""
    configs = _configs(runs)
    rows = list(runs.members.iter_rows(named=True))
    kinds: dict[tuple[str, str], list[Config]] = {}
    for row in rows:
        known = kinds.setdefault((row["label"], row["task"]), [])
        if configs[row["run"], row["member"]] not in known:
            known.append(configs[row["run"], row["member"]])
    names = [_name(row["label"], configs[row["run"], row["member"]], kinds[row["label"], row["task"]]) for row in rows]
    return replace(runs, members=runs.members.with_columns(name=pl.Series(names, dtype=pl.String)))


def _configs(runs: Runs) -> dict[tuple[str, int], Config]:
    """What each member of each run trains, besides its seed: a swept value counts as set."""
    found: dict[tuple[str, int], Config] = {}
    for folder in runs.folders:
        config = folder.config()
        flat = _flatten({name: value for name, value in config.items() if name not in _NOT_COMPARED})
        for member, info in enumerate(member_infos_of_json(config)):
            found[folder.name, member] = flat | info.values
    return found


def _name(label: str, mine: Config, kinds: Sequence[Config]) -> str:
    """The label, and the entries that differ among the configs of this label."""
    differing = [path for path in mine if any(other.get(path) != mine[path] for other in kinds)]
    return " ".join([label, *(f"{path}={format_value(mine[path])}" for path in differing)])


def _once(runs: Runs) -> tuple[Runs, list[str]]:
    """Every seed of a config once, and what was left out: a seed trained twice would count twice."""
    key = ["name", "task", "seed"]
    kept = runs.members.unique(key, keep="first", maintain_order=True)
    left = runs.members.join(kept, on=["run", "member"], how="anti", maintain_order="left")
    notes = [
        f"Trained twice: seed{'s' if len(seeds) > 1 else ''} {format_value(seeds)} of {name} on {task}; "
        "the run that is named first counts."
        for name, task, seeds in left.group_by("name", "task", maintain_order=True).agg("seed").iter_rows()
    ]
    return replace(runs, members=kept), notes


def _groups(runs: Runs) -> Iterator[tuple[str, str, pl.DataFrame]]:
    for (name, task), members in runs.members.group_by("name", "task", maintain_order=True):
        yield str(name), str(task), members


def _legend(runs: Runs) -> Table:
    rows = [
        (name, task, _seeds(members["seed"].to_list()), int(members["budget"][0]), members["run"].n_unique())
        for name, task, members in _groups(runs)
    ]
    columns = ("algorithm", "task", "seeds", "steps of each seed", "runs")
    return Table("legend", "Compared", "", columns, tuple(rows))


def _seeds(seeds: Sequence[int]) -> str:
    """0 to 4; or a list."""
    ordered = sorted(seeds)
    counted = ordered == list(range(ordered[0], ordered[-1] + 1)) and len(ordered) > 2
    return f"{ordered[0]} to {ordered[-1]}" if counted else format_value(ordered)


def _differences(runs: Runs) -> Table:
    """Entries of the configs that are not the same everywhere; runs that differ in seeds only share a column."""
    configs = _configs(runs)
    several = runs.members["task"].n_unique() > 1
    columns: dict[str, Config] = {}
    for name, task, members in _groups(runs):
        mine = configs[members["run"][0], members["member"][0]]
        columns[f"{name} on {task}" if several else name] = {**mine, "seeds": _seeds(members["seed"].to_list())}
    paths = dict.fromkeys(path for entries in columns.values() for path in entries)
    rows = tuple(
        (path, *(format_value(entries[path]) if path in entries else None for entries in columns.values()))
        for path in paths
        if len({repr(entries.get(path)) for entries in columns.values()}) > 1
    )
    return Table("differences", "Differences", "", ("entry", *columns), rows)


def _flatten(config: Any, above: str = "") -> dict[str, Any]:
    """Dotted path -> value, from JSON: also a config whose classes are not here can be compared."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        path = f"{above}.{name}" if above else name
        found |= _flatten(value, path) if isinstance(value, dict) else {path: value}
    return found


def _improvement(results: Results) -> Table:
    """Probability of improvement over the first algorithm on each task."""
    rows = []
    for task in results.tasks:
        names = dict.fromkeys(results.runs.members.filter(pl.col("task") == task)["name"])  # as the runs were given
        baseline, *others = [name for name in names if results.has_final(name, task)] or [""]
        for label in others:
            ours, theirs = (results.cells[name, task].finals for name in (label, baseline))
            rows.append((task, label, baseline, *stats.improvement([ours], [theirs]).floats()))
    note = (
        "Probability that a seed of X scores more than a seed of Y, the first algorithm on the task; ties count half."
    )
    columns = ("task", "X", "Y", "P(X > Y)", "low", "high")
    return Table("improvement", "Probability of improvement", note, columns, tuple(rows))


def _middle(curves: Float[np.ndarray, "member point"]) -> Float[np.ndarray, "point"]:
    """IQM over seeds as far as all of them have come; NaN from there on, which would count as the best seed."""
    return np.where(np.isfinite(curves).all(axis=0), stats.iqm(curves.T), np.nan)


def _plot(results: Results, task: str, width: int = 72, height: int = 16) -> str:
    """Learning curves (IQM over seeds), a mark for each algorithm."""
    cells = [results.cells[label, task] for label in results.labels if (label, task) in results.cells]
    curves = [(_MARKS[i % len(_MARKS)], cell.label, cell.steps, _middle(cell.curves)) for i, cell in enumerate(cells)]
    every = np.concatenate([curve[np.isfinite(curve)] for *_, curve in curves])
    low, high = float(every.min()), float(every.max())
    most = max(float(steps[-1]) for _, _, steps, _ in curves)
    canvas = [[" "] * width for _ in range(height)]
    for mark, _, steps, curve in curves:
        columns = np.linspace(0, most, width)
        for x, y in enumerate(np.interp(columns, steps, curve, right=np.nan)):
            if np.isfinite(y):
                row = round((high - y) / (high - low) * (height - 1)) if high > low else height // 2
                canvas[row][x] = mark if canvas[row][x] in (" ", mark) else "*"
    margin = max(len(show(low)), len(show(high)))
    labels = [show(high), *[""] * (height - 2), show(low)]
    drawn = [f"{label:>{margin}} |{''.join(row)}" for label, row in zip(labels, canvas, strict=True)]
    right = f"{show(int(most))} steps of each seed"
    axis = f"{'':>{margin}} 0{right:>{width}}"
    names = [f"{'':>{margin}}  {mark} {label}" for mark, label, *_ in curves]
    unit = results.scales[task].unit
    return "\n".join([f"{task}: {unit}, IQM over seeds (* where curves meet)", *drawn, axis, *names])
