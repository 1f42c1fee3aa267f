"""What the commands print: tables, and one run in full."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.training.config import RunConfig

if TYPE_CHECKING:
    import polars as pl

    from rookery.training.folder import RunFolder

Row = Mapping[str, Any]
_ID_COLUMNS = ("member", "seed", "chunk", "iteration", "step", "steps", "episode", "which", "policy")


def print_rows(rows: Sequence[Row], as_json: bool) -> None:
    """Print a table or, for programs, JSON; what is not known is "-" or null."""
    known = [{name: None if _unknown(value) else value for name, value in row.items()} for row in rows]
    print(json.dumps(known, indent=2, default=str) if as_json else "\n".join(table(known)))


def _unknown(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def table(rows: Sequence[Row]) -> list[str]:
    """Rows as aligned columns under a heading."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else configs.format_value(value)


def preset_row(name: str, algo: Any) -> Row:
    """What a preset is: its family's description, its differences from the family's defaults, its needs."""
    lines = (type(algo).__doc__ or "").splitlines() or [""]
    return {
        "preset": name,
        "family": algo.family,
        "needs": needs(algo),
        "description": lines[0],
        "settings": " ".join(configs.overrides(type(algo)(), algo)),
    }


def needs(algo: Any) -> str:
    """What `algo.check` accepts, found out by showing it small tasks of each kind."""
    from rookery.core.types import ActionSpec, Spec

    def accepts(kind: Any, cooperative: bool = True, **facts: Any) -> bool:
        teams = () if cooperative else ("good", "adversary")
        facts = {"agents": ("a", "b"), "position": (0, 1), "teams": teams, "cooperative": cooperative, **facts}
        try:
            algo.check(Spec("probe", obs_shape=(4,), action=ActionSpec(kind, (2,)), limit=25, **facts))
        except ConfigError:
            return False
        return True

    kinds = ("discrete", "multi_discrete", "multi_binary", "box")
    usable = [kind for kind in kinds if accepts(kind)]
    actions = "any actions" if len(usable) == len(kinds) else " or ".join(usable) + " actions"
    mixed = any(accepts(kind, False) for kind in usable)
    wants = [actions, "any rewards" if mixed else "a cooperative task"]
    if not any(accepts(kind, position=()) for kind in usable):
        wants.append("positions")
    if not any(accepts(kind, agents=("a",)) for kind in usable):
        wants.append("two agents")
    return ", ".join(wants)


def run_row(run: RunFolder) -> Row:
    status = run.status()
    problem = run.problem()
    config = {} if problem else run.config()
    return {
        "run": run.name,
        "state": "broken" if problem else status.state,
        "progress": f"{status.progress:.0%}",
        "label": status.facts.get("label", config.get("preset", "")),
        "task": config.get("task_name", ""),
        "seeds": len(config.get("seeds", [])),
        "steps": config.get("steps", ""),
        "score": status.facts.get("score", ""),
        "updated": status.updated,
        "message": problem or status.message,
    }


def show_lines(run: RunFolder) -> list[str]:
    """Everything worth knowing of a run, line by line."""
    config = configs.from_json(RunConfig, run.config())
    status = run.status()
    facts = ", ".join(f"{name} {_cell(value)}" for name, value in status.facts.items())
    sweeps = "".join(f", {sweep.path} in {configs.format_value(sweep.values)}" for sweep in config.sweep)
    lines = [
        run.name,
        f"config      {configs.label(config.preset, config.algo)} on {_task_label(config)}",
        f"members     seeds {configs.format_value(config.seeds)}{sweeps}; {config.steps:,} steps each",
        f"status      {status.state}, {status.progress:.0%}, {status.updated} {status.message}".rstrip(),
        *([f"            {facts}"] if facts else []),
        *_provenance_lines(run.path / "provenance.json"),
        *_metric_lines(run.metrics()),
        *_evaluation_lines(run),
        "files",
        *(f"  {size:>12,}  {name}" for name, size in _files(run.path)),
    ]
    return lines


def _task_label(config: RunConfig) -> str:
    if config.task_name not in TASKS:
        return config.task_name
    return " ".join([config.task_name, *configs.overrides(TASKS[config.task_name], config.task)])


def _provenance_lines(file: Path) -> list[str]:
    """One line for each start of the run."""
    if not file.exists():
        return []
    from rookery.training.folder import read_json

    starts = []
    for entry in read_json(file):
        source, packages = entry.get("source") or {}, entry.get("packages", {})
        commit = f"commit {str(source['commit'])[:10]}{' (changed)' if source.get('dirty') else ''}, " if source else ""
        versions = ", ".join(f"{name} {packages[name]}" for name in ("rookery", "jax") if packages.get(name))
        cpu = f"{entry.get('cpu')} x {entry.get('cores')}"
        starts.append(f"started     {entry.get('started')}, {commit}{versions}, {entry.get('host')} ({cpu})")
    return starts


def _metric_lines(frame: pl.DataFrame) -> list[str]:
    """The newest metrics, as means over members: scores of training episodes, then signs that learning is alive."""
    import polars as pl

    if frame.is_empty():
        return ["metrics     none yet"]
    newest = frame.filter(pl.col("chunk") == pl.col("chunk").max()) if "chunk" in frame.columns else frame.tail(1)
    values = {
        name: newest[name].mean()
        for name, kind in newest.schema.items()
        if kind.is_numeric() and name not in _ID_COLUMNS and newest[name].mean() is not None
    }
    scores = {name: value for name, value in values.items() if name.startswith("train/")}
    alive = {name: value for name, value in values.items() if name not in scores}
    return [
        f"{title:<12}" + ", ".join(f"{name.removeprefix('train/')} {_cell(value)}" for name, value in group.items())
        for title, group in (("training", scores), ("liveness", alive))
        if group
    ]


def _evaluation_lines(run: RunFolder) -> list[str]:
    """The newest evaluation under way, and the absolute one after training."""
    import polars as pl

    lines = []
    under_way = run.evaluations()
    if not under_way.is_empty():
        if "chunk" in under_way.columns:
            under_way = under_way.filter(pl.col("chunk") == pl.col("chunk").max())
        lines += ["evaluation  newest", *score_lines(under_way)]
    final = run.final()
    if not final.is_empty():
        groups: Iterable[tuple[Any, pl.DataFrame]] = (
            final.group_by("which", maintain_order=True) if "which" in final.columns else [(("",), final)]
        )
        for (which,), part in groups:
            lines += [f"final       {which}", *score_lines(part)]
    return lines


def score_lines(frame: pl.DataFrame) -> list[str]:
    return [
        f"  {name:<12}{_cell(score['mean'])} [{_cell(score['low'])}, {_cell(score['high'])}], "
        f"{score['members']} members, {score['episodes']} episodes"
        for name, score in scores(frame).items()
    ]


def member_means(frame: pl.DataFrame) -> pl.DataFrame:
    """Mean of each score of each member."""
    import polars as pl

    names = [name for name in ("return_mean", "return_sum", "success", "length") if name in frame.columns]
    means = frame.group_by("member", "seed", maintain_order=True).agg(pl.col(names).mean())
    # A task without a success of its own reports 0 throughout: no score, then.
    return means.drop("success") if "success" in names and not (frame["success"] > 0).any() else means


def scores(frame: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Mean over members of each score, with the 95% bootstrap interval over members."""
    means = member_means(frame)
    return {
        name: dict(zip(("mean", "low", "high"), interval(means[name].to_list()), strict=True))
        | {"members": means.height, "episodes": frame.height}
        for name in means.columns
        if name not in ("member", "seed")
    }


def interval(values: Sequence[float], resamples: int = 10_000) -> tuple[float, float, float]:
    """Mean and 95% percentile bootstrap interval of it; the resamples are always the same."""
    import numpy as np

    array = np.asarray(values, float)
    picks = np.random.default_rng(0).integers(len(array), size=(resamples, len(array)))
    low, high = np.quantile(array[picks].mean(axis=1), [0.025, 0.975])
    return float(array.mean()), float(low), float(high)


def _files(path: Path) -> list[tuple[str, int]]:
    """Files of a run with their sizes; a folder of parts counts as one."""
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    return [
        (entry.name + "/", sum(f.stat().st_size for f in entry.rglob("*") if f.is_file()))
        if entry.is_dir()
        else (entry.name, entry.stat().st_size)
        for entry in entries
    ]
