"""The tables of a report, from its results."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from rookery.core.config import format_value
from rookery.core.stats import INTERVAL
from rookery.studies import stats
from rookery.studies.results import FEW, Cell, Results
from rookery.studies.tables import Table, show
from rookery.studies.teams import teams_of

_INTERVAL = ("IQM", "low", "high")
_METHOD = f"IQM over seeds; low and high: {INTERVAL}, - for a single seed"


def all_tables(results: Results) -> list[Table]:
    """Every table that the results have something for."""
    tables = [
        final_table(results),
        teams_table(results),
        steps_table(results),
        efficiency_table(results),
        aggregate_table(results),
        improvement_table(results),
        compute_table(results),
        liveness_table(results),
        seeds_table(results),
    ]
    return [table for table in tables if table.rows]


def final_table(results: Results) -> Table:
    """The absolute metric of every algorithm on every task."""
    rows = []
    for cell in _cells(results):
        if len(cell.finals):
            estimate = results.final_estimates[cell.label, cell.task].floats()
            mean = float(cell.finals.mean())
            about = (mean, len(cell.finals), results.scales[cell.task].unit)
            rows.append((cell.task, cell.label, *estimate, *about, *_protocol(results, cell.task, max(cell.budgets))))
    note = f"{_METHOD}; evaluation episodes of each seed's {results.compare.policy} policy after training."
    columns = ("task", "algorithm", *_INTERVAL, "mean", "seeds", "unit", *_protocol_columns(results))
    return Table("final", "Absolute metric after training", note, columns, tuple(rows))


def teams_table(results: Results) -> Table:
    """The absolute metric of each team on tasks that have teams: a mean over all agents says little there."""
    found: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for folder in results.runs.folders:
        teams = teams_of(folder)
        final = folder.final() if teams else pl.DataFrame()
        if final.is_empty():
            continue
        rows = results.runs.members.filter(pl.col("run") == folder.name)
        for row in rows.iter_rows(named=True):
            chosen = (pl.col("member") == row["member"]) & (pl.col("which") == results.compare.policy)
            returns = final.filter(chosen)["returns"].to_numpy()
            for team in dict.fromkeys(teams):
                own = returns[:, [i for i, name in enumerate(teams) if name == team]].mean(axis=1)
                found.setdefault((row["task"], row["label"], team), []).append(own.mean())
    rows = []
    for (task, label, team), scores in found.items():
        estimate = stats.aggregate([np.asarray(scores, float)], stats.iqm, results.compare.resamples).floats()
        rows.append((task, label, team, *estimate, float(np.mean(scores)), len(scores)))
    note = f"{_METHOD}; return of an episode, mean over the team's agents, of {results.compare.policy} policies."
    columns = ("task", "algorithm", "team", *_INTERVAL, "mean", "seeds")
    order = {pair: i for i, pair in enumerate(results.cells)}
    rows.sort(key=lambda row: (order.get((row[1], row[0]), 0), row[2]))
    return Table("teams", "Absolute metric of each team", note, columns, tuple(rows))


def steps_table(results: Results) -> Table:
    """Scores at chosen step counts."""
    rows = []
    for cell in _cells(results):
        budget = int(cell.steps[-1])
        for at in results.compare.at or (budget // 4, budget // 2, budget):
            if at > budget:
                continue
            scores = np.asarray([np.interp(at, cell.steps, curve) for curve in cell.curves])
            if np.isfinite(scores).all():
                estimate = stats.aggregate([scores], stats.iqm, results.compare.resamples).floats()
                about = (len(scores), results.scales[cell.task].unit)
                rows.append((cell.task, cell.label, at, *estimate, *about, *_protocol(results, cell.task, at)))
    note = f"{_METHOD}; evaluations under way, straight between the two nearest."
    columns = ("task", "algorithm", "steps", *_INTERVAL, "seeds", "unit", *_protocol_columns(results))
    return Table("steps", "Score at given steps", note, columns, tuple(rows))


def efficiency_table(results: Results) -> Table:
    """Steps to the threshold."""
    threshold, rows = results.compare.threshold, []
    for cell in _cells(results):
        if np.isnan(cell.reached).any():
            continue
        scale = results.scales[cell.task]
        score = scale.random + threshold * (scale.reference - scale.random)
        reached = int(np.isfinite(cell.reached).sum())
        # The lower of the two middle ones: a mean with a seed that never got there would not be a number.
        median = float(np.sort(cell.reached)[(len(cell.reached) - 1) // 2])
        rows.append((cell.task, cell.label, score, median, float(cell.reached.min()), reached, len(cell.reached)))
    note = (
        f"Environment steps until an evaluation reaches {format_value(threshold)} of the way from the random to the "
        "reference score; a seed that never does counts as never."
    )
    columns = ("task", "algorithm", "score to reach", "median steps", "fastest seed", "seeds that did", "seeds")
    return Table("efficiency", "Sample efficiency", note, columns, tuple(rows))


def aggregate_table(results: Results) -> Table:
    """Normalised scores over all tasks that have a scale."""
    rows = []
    for label, (iqm, gap) in results.aggregates.items():
        strata = results.normalised(label)
        rows.append((label, *iqm.floats(), *gap.floats(), len(strata), sum(map(len, strata))))
    left_out = [task for task in results.tasks if task not in results.scaled_tasks()]
    missing = f" Left out, for want of a reference score: {', '.join(left_out)}." if left_out else ""
    note = f"Absolute metric, 0 at the random and 1 at the reference score. {_scales_note(results)}{missing}"
    columns = ("algorithm", "IQM", "low", "high", "optimality gap", "gap low", "gap high", "tasks", "runs")
    return Table("aggregate", "Normalised score over tasks", note, columns, tuple(rows))


def improvement_table(results: Results) -> Table:
    """Probability of improvement of every algorithm over the baseline."""
    rows = [
        (label, results.baseline, *estimate.floats(), len(results.compared_tasks(label)))
        for label, estimate in results.improvements.items()
    ]
    note = (
        "Probability that a seed of X scores more than a seed of Y on the same task, mean over tasks; ties count half."
    )
    columns = ("X", "Y", "P(X > Y)", "low", "high", "tasks")
    return Table("improvement", "Probability of improvement", note, columns, tuple(rows))


def compute_table(results: Results) -> Table:
    """What the runs cost."""
    key = results.runs.members.select("run", "label", "task").unique(maintain_order=True)
    # A run with swept values has several labels; its cost cannot be divided, and is given for all of them together.
    names = key.group_by("run", maintain_order=True).agg(pl.col("label").str.join(" / "), pl.col("task").first())
    metrics = results.runs.metrics.filter(pl.col("metric") == "reconstruction_updates")
    updates = metrics.group_by("run").agg(pl.col("last").sum().alias("updates"))
    joined = names.join(results.runs.spent, on="run").join(updates, on="run", how="left", maintain_order="left")
    spent = joined.group_by("task", "label", maintain_order=True)
    frame = spent.agg(pl.len().alias("runs"), pl.col("steps", "seconds", "updates").sum())
    rows = [
        (task, label, runs, steps, seconds, steps / seconds if seconds else None, *([made] if len(updates) else []))
        for task, label, runs, steps, seconds, made in frame.iter_rows()
    ]
    note = "Steps of all seeds together; seconds of training, without compiling and evaluation."
    columns = ("task", "algorithm", "runs", "steps", "seconds", "steps per second")
    if len(updates):
        note += " Reconstruction updates are those that a graph memory made besides those of the steps taken."
        columns += ("reconstruction updates",)
    return Table("compute", "Compute spent", note, columns, tuple(rows))


def liveness_table(results: Results) -> Table:
    """Every quantity that training measured: a mechanism that never ran shows here."""
    frame = (
        results.runs.metrics.filter(~pl.col("metric").str.starts_with("train/"))
        .group_by("task", "label", "metric", maintain_order=True)
        .agg(pl.col("last").mean(), pl.col("mean").mean(), pl.col("low").min(), pl.col("high").max())
    )
    rows = [
        (task, label, metric, last, mean, low, high, "always 0" if low == high == 0 and not _is_check(metric) else "")
        for task, label, metric, last, mean, low, high in frame.iter_rows()
    ]
    note = (
        "Means over seeds of the last value and of the whole run, and the range. What is always 0 did nothing, "
        "except that check/ should be 0."
    )
    columns = ("task", "algorithm", "quantity", "last", "mean", "least", "most", "remark")
    return Table("liveness", "Signs of life", note, columns, tuple(rows))


def _is_check(metric: str) -> bool:
    """Whether 0 is what a quantity should be."""
    return metric.startswith("check/")


def seeds_table(results: Results) -> Table:
    """The absolute metric of every seed."""
    frame = results.runs.finals.select("task", "label", "seed", "which", "score", "episodes", "run")
    note = "Mean over evaluation episodes of each seed's best and last policy."
    columns = ("task", "algorithm", "seed", "policy", "score", "episodes", "run")
    return Table("seeds", "Every seed", note, columns, tuple(frame.iter_rows()))


def warnings(results: Results) -> list[str]:
    """What a reader must know before anything else, the worst first."""
    found = []
    for twins in results.twins:
        names = ", ".join(f"{label} (seed {seed})" for label, seed in twins.members)
        if twins.training:
            found.append(f"Identical training: {names} on {twins.task} agree in every number. What differs never ran.")
        else:
            found.append(f"Identical curves: {names} on {twins.task}. Their training differs; should their scores not?")
    found += [
        f"Always 0: {metric} of {label} on {task}."
        for task, label, metric, *_, remark in liveness_table(results).rows
        if remark
    ]
    found += [text for task in results.tasks for text in _unfair(results, task)]
    incomplete = [cell for cell in _cells(results) if len(cell.finals) < len(cell.seeds)]
    if incomplete:
        names = ", ".join(f"{cell.label} on {cell.task}" for cell in incomplete)
        found.append(f"Not complete, and shown as far as they are: {names}.")
    if 0 < results.fewest < FEW:
        found.append(few_seeds(results.fewest))
    return [*found, *results.notes]


def _unfair(results: Results, task: str) -> list[str]:
    """What algorithms on one task do not have in common although they are compared: budgets, seeds."""
    cells = [cell for cell in _cells(results) if cell.task == task]
    found = []
    if len({cell.budgets for cell in cells}) > 1:
        each = ", ".join(f"{cell.label} {' and '.join(f'{n:,}' for n in cell.budgets)}" for cell in cells)
        found.append(f"Different budgets on {task} (steps of each seed): {each}. Compare them at equal steps only.")
    if len({frozenset(cell.seeds) for cell in cells}) > 1:
        each = ", ".join(f"{cell.label} {format_value(sorted(cell.seeds))}" for cell in cells)
        found.append(f"Different seeds on {task}: {each}. Start states and intervals are not the same.")
    return found


def few_seeds(count: int) -> str:
    """The warning that stands in the figures too."""
    return f"Only {count} seed{'s' if count > 1 else ''}: fewer than {FEW} are too few for a claim."


def _scales_note(results: Results) -> str:
    scales = [(task, results.scales[task]) for task in results.scaled_tasks()]
    shown = [f"{task} {show(s.random)} to {show(s.reference)}" for task, s in scales[:12]]
    return f"Scales: {'; '.join(shown)}{'; ...' if len(scales) > 12 else ''}." if shown else ""


def _protocol_columns(results: Results) -> tuple[str, ...]:
    """Columns that tell protocols apart; none if no task has one."""
    names = dict.fromkeys(name for protocol in results.runs.protocols.values() for name in protocol)
    return (*(("frames",) if results.runs.frames_per_step else ()), *names)


def _protocol(results: Results, task: str, steps: int) -> tuple[Any, ...]:
    """The cells below those columns, after so many steps; None where a task does not say."""
    protocol, per_step = results.runs.protocols.get(task, {}), results.runs.frames_per_step
    known = {name: _yes_or_no(value) for name, value in protocol.items()}
    if protocol or task in per_step:
        known["frames"] = round(steps * per_step.get(task, 1.0))
    return tuple(known.get(name) for name in _protocol_columns(results))


def _yes_or_no(value: Any) -> Any:
    return value if not isinstance(value, bool) else "yes" if value else "no"


def _cells(results: Results) -> list[Cell]:
    pairs = [(label, task) for task in results.tasks for label in results.labels]
    return [results.cells[pair] for pair in pairs if pair in results.cells]
