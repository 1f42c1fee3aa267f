"""What the commands print: tables, and one run in full."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.registry import ABOUT
from rookery.core.stats import INTERVAL

if TYPE_CHECKING:
    import polars as pl

    from rookery.training.folder import RunFolder

Row = Mapping[str, Any]
_FACTS = {"steps": "steps of each seed", "steps_per_second": "steps per second of each seed", "score": "score (IQM)"}
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
    if value is None or _unknown(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else configs.format_value(value)


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_cell(inner)}" for name, inner in value.items())
    return f"{value:,}" if isinstance(value, int) else _cell(value)


def preset_row(name: str, algo: Any) -> Row:
    """What a preset is, what it needs, and its differences from the family's defaults."""
    lines = (type(algo).__doc__ or "").splitlines() or [""]
    return {
        "preset": name,
        "family": algo.family,
        "needs": needs(algo),
        "description": ABOUT.get(name, lines[0]),
        "settings": " ".join(configs.overrides(type(algo)(), algo)),
    }


def needs(algo: Any) -> str:
    """What `algo.check` accepts, found out by showing it small tasks of each kind."""
    from rookery.core.types import ActionSpec, Spec

    def accepts(kind: Any, cooperative: bool = True, **facts: Any) -> bool:
        teams = () if cooperative else ("good", "adversary")
        known = {"obs_shape": (4,), "position": (0, 1), "teams": teams, "cooperative": cooperative}
        try:
            algo.check(Spec("probe", action=ActionSpec(kind, (2,)), limit=25, **{**known, **facts}))
        except ConfigError:
            return False
        return True

    pair: dict[str, Any] = {"agents": ("a", "b")}
    alone: dict[str, Any] = {"agents": ("a",)}
    images = {"obs_shape": (84, 84, 4), "obs_dtype": "uint8", "frames": 4, "position": ()}
    kinds = ("discrete", "multi_discrete", "multi_binary", "box")
    worlds = [pair, alone, {**pair, **images}, {**alone, **images}]
    # The first world that it accepts; what it accepts elsewhere adds nothing that it needs.
    usable, world = next(
        ((usable, world) for world in worlds if (usable := [kind for kind in kinds if accepts(kind, **world)])),
        ([], pair),
    )
    if not usable:
        return "unknown"
    several = world["agents"] == pair["agents"]
    wants = ["any actions" if len(usable) == len(kinds) else " or ".join(usable) + " actions"]
    if several:
        mixed = any(accepts(kind, False, **world) for kind in usable)
        wants.append("any rewards" if mixed else "a cooperative task")
    if "obs_shape" in world:
        wants.append("images")
    elif not any(accepts(kind, **world, position=()) for kind in usable):
        wants.append("positions")
    if not several:
        wants.append("one agent")
    elif not any(accepts(kind, **{**world, **alone}) for kind in usable):
        wants.append("two agents")
    return ", ".join(wants)


def run_rows(run: RunFolder) -> list[Row]:
    """A run as a row; one that sweeps values as a row for each of them. Steps are those of each seed."""
    status = run.status()
    problem = run.problem()
    config = {} if problem else run.config()
    row = {
        "run": run.name,
        "state": "broken" if problem else status.state,
        "progress": f"{status.progress:.0%}",
        "label": status.facts.get("label", config.get("preset", "")),
        "task": config.get("task_name", ""),
        "seeds": len(config.get("seeds", [])),
        "steps": config.get("steps", ""),
        "score": status.facts.get("score", ""),
    }
    rest = {"updated": status.updated, "message": problem or status.message}
    values = _swept_values(config)
    if not values:
        return [row | rest]
    scores = status.facts.get("scores", {})
    top = max(scores.values(), default=None)
    marks = {value: "best" if value in scores and scores[value] == top else "" for value in values}
    return [
        row | {"label": f"{row['label']} {value}", "score": scores.get(value, ""), "best": marks[value]} | rest
        for value in values
    ]


def _swept_values(config: Mapping[str, Any]) -> list[str]:
    """Names of a run's swept values, in their order, from its config as JSON."""
    from rookery.training.scores import value_name
    from rookery.training.state import member_infos_of_json

    names = [value_name(info.values) for info in member_infos_of_json(config)] if config.get("sweep") else []
    return list(dict.fromkeys(names))


def show_lines(run: RunFolder) -> list[str]:
    """Everything worth knowing of a run, line by line."""
    from rookery.studies.plan import task_label
    from rookery.training.imports import open_config

    config = open_config(run)
    status = run.status()
    facts = ", ".join(f"{_FACTS.get(name, name)} {_fact(value)}" for name, value in status.facts.items())
    sweeps = "".join(f", {sweep.path} in {configs.format_value(sweep.values)}" for sweep in config.sweep)
    lines = [
        run.name,
        f"config      {configs.label(config.preset, config.algo)} on {task_label(config.task_name, config.task)}",
        f"members     seeds {configs.format_value(config.seeds)}{sweeps}; {config.steps:,} steps each",
        f"status      {status.state}, {status.progress:.0%}, {status.updated} {status.message}".rstrip(),
        *([f"            {facts}"] if facts else []),
        *_provenance_lines(run.path / "provenance.json"),
        *_metric_lines(run.metrics()),
        *_evaluation_lines(run),
        f"            {INTERVAL}",
        "files",
        *(f"  {size:>12,}  {name}" for name, size in _files(run.path)),
    ]
    return lines


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
        if entry.get("deterministic") is False:
            starts.append(f"            {entry.get('learners')} asynchronous learners: not deterministic")
        if "environments_resumed" in entry:
            starts.append(f"            environments resumed: {entry['environments_resumed']}")
    return starts


def _metric_lines(frame: pl.DataFrame) -> list[str]:
    """The newest metrics, as means over seeds: scores of training episodes, then signs that learning is alive."""
    import polars as pl

    from rookery.training.scores import groups

    if frame.is_empty():
        return ["metrics     none yet"]
    newest = frame.filter(pl.col("chunk") == pl.col("chunk").max()) if "chunk" in frame.columns else frame.tail(1)
    found = []
    for value, part in groups(newest):
        found += [*([f"            {value}"] if value else []), *_means_lines(part)]
    return found


def _means_lines(newest: pl.DataFrame) -> list[str]:
    from rookery.training.digest import is_metric

    values = {
        name: newest[name].mean()
        for name, kind in newest.schema.items()
        if kind.is_numeric() and is_metric(name) and name not in _ID_COLUMNS and newest[name].mean() is not None
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

    found = []
    under_way = run.evaluations()
    if not under_way.is_empty():
        if "chunk" in under_way.columns:
            under_way = under_way.filter(pl.col("chunk") == pl.col("chunk").max())
        found += ["evaluation  newest", *score_lines(under_way)]
    final = run.final()
    if not final.is_empty():
        groups: Iterable[tuple[Any, pl.DataFrame]] = (
            final.group_by("which", maintain_order=True) if "which" in final.columns else [(("",), final)]
        )
        for (which,), part in groups:
            found += [f"final       {which}", *score_lines(part)]
    return found


def score_lines(frame: pl.DataFrame) -> list[str]:
    """A table of scores: one row for each swept value and kind of score."""
    return [f"  {line}" for line in table(score_rows(frame))]


def score_rows(frame: pl.DataFrame) -> list[Row]:
    """The IQM over seeds of each kind of score, with its interval; one row for each swept value.

    The swept value with the best score of the task is marked.
    """
    from rookery.training.scores import best, by_value

    rows = []
    for name in _score_names(frame):
        scores = by_value(frame, name)
        top = best(scores).iqm if name == _main_score(frame) else math.nan
        for score in scores:
            value, low, high = score.estimate.floats()
            swept = {"sweep": score.value, "best": "best" if value == top else ""} if score.value else {}
            known = {"IQM": value, "low": _number(low), "high": _number(high)}
            rows.append({"score": name, **swept, **known, "seeds": score.seeds, "episodes": score.episodes})
    return rows


def _main_score(frame: pl.DataFrame) -> str:
    """What the task is scored by."""
    scored = "score" in frame.columns and frame["score"].cast(float).equals(frame["success"].cast(float))
    return "success" if scored and "success" in _score_names(frame) else "return_mean"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _score_names(frame: pl.DataFrame) -> list[str]:
    names = [name for name in ("return_mean", "return_sum", "success", "length") if name in frame.columns]
    # A task without a success of its own reports 0 throughout: no score, then.
    return [name for name in names if name != "success" or (frame["success"] > 0).any()]


def member_means(frame: pl.DataFrame) -> pl.DataFrame:
    """Mean of each score of each member, beside its seed and its swept values."""
    import polars as pl

    from rookery.training.scores import swept_columns

    identity = ["member", "seed", *swept_columns(frame)]
    return frame.group_by(identity, maintain_order=True).agg(pl.col(_score_names(frame)).mean())


def _files(path: Path) -> list[tuple[str, int]]:
    """Files of a run with their sizes; a folder of parts counts as one."""
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    return [
        (entry.name + "/", sum(f.stat().st_size for f in entry.rglob("*") if f.is_file()))
        if entry.is_dir()
        else (entry.name, entry.stat().st_size)
        for entry in entries
    ]
