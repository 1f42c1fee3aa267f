"""Runs in other programs' formats. Nothing that exists is overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from rookery.core.errors import ConfigError
from rookery.studies.read import open_runs
from rookery.studies.tables import Table, write_workbook
from rookery.training import logs
from rookery.training.folder import Kind, RunFolder, writing
from rookery.training.imports import open_config

_KINDS: tuple[Kind, ...] = ("evaluations", "final", "metrics", "timing")
_SHEET = 1_048_575  # rows below the heading
_SCORES = ("score", "return_mean", "return_sum", "success", "length")


def export(folders: Sequence[RunFolder], form: str, to: Path) -> Path:
    """Write runs to `to`, a new folder or file; returns it."""
    if to.exists():
        raise ConfigError(f"{to} exists already; give another place with --to-path.")
    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        FORMS[form](folders, to)
    return to


def default_path(form: str) -> Path:
    """Where an export goes unless told."""
    return Path({"xlsx": "export.xlsx", "marl-eval": "export.json"}.get(form, f"export-{form}"))


def _csv(folders: Sequence[RunFolder], to: Path) -> None:
    """One file for each kind of table, all runs together."""
    to.mkdir()
    for kind, frame in _tidy(folders):
        frame.write_csv(to / f"{kind}.csv")


def _xlsx(folders: Sequence[RunFolder], to: Path) -> None:
    tables = [Table(kind, kind, "", tuple(frame.columns), tuple(frame.iter_rows())) for kind, frame in _tidy(folders)]
    for table in tables:
        if len(table.rows) > _SHEET:
            raise ConfigError(f"{table.name} has {len(table.rows):,} rows; a sheet holds {_SHEET:,}. Try --to csv.")
    write_workbook(tables, to)


def _marl_eval(folders: Sequence[RunFolder], to: Path) -> None:
    """The JSON of id-marl-eval: environment -> task -> algorithm -> run -> step."""
    data: dict[str, Any] = {}
    runs = open_runs(folders)
    for folder in folders:
        members = runs.alive.filter(pl.col("run") == folder.name).rows(named=True)
        evaluations, final, clock = folder.evaluations(), folder.final(), _clock(folder)
        for member in members:
            environment, _, task = member["task"].partition("/")
            series = data.setdefault(environment, {}).setdefault(task or environment, {})
            seeds = series.setdefault(member["label"], {})
            name = f"seed_{member['seed']}"
            if name in seeds:
                raise ConfigError(f"{member['label']} on {member['task']} has {name} in two runs; export them apart.")
            seeds[name] = _marl_eval_run(member["member"], evaluations, final, clock)
    to.write_text(json.dumps(data))


def _marl_eval_run(
    member: int, evaluations: pl.DataFrame, final: pl.DataFrame, clock: Mapping[int, float]
) -> dict[str, Any]:
    own = evaluations.filter(pl.col("member") == member)
    steps: dict[str, Any] = {}
    for i, ((chunk,), rows) in enumerate(own.group_by(["chunk"], maintain_order=True)):
        key = int(str(chunk))
        when = {"step_count": rows["steps"][0], "elapsed_time": clock.get(key, 0.0)}
        steps[f"step_{i}"] = when | {name: rows[name].to_list() for name in _SCORES}
    if not final.is_empty():
        best = final.filter((pl.col("member") == member) & (pl.col("which") == "best"))
        steps["absolute_metrics"] = {name: best[name].to_list() for name in _SCORES}
    return steps


def _tensorboard(folders: Sequence[RunFolder], to: Path) -> None:
    """One log for each member: TO/<run>/seed_<seed>."""
    for folder in folders:
        with closing(logs.TensorBoard(open_config(folder), to / folder.name)) as log:
            logs.replay(log, folder)


def _tidy(folders: Sequence[RunFolder]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Every kind of table over all runs, with the columns that say what a row is of in front."""
    runs = open_runs(folders)
    for kind in _KINDS:
        frames = []
        for folder in folders:
            frame = folder.scan(kind).collect()
            if frame.is_empty():
                continue
            who = runs.members.filter(pl.col("run") == folder.name)
            protocol = runs.protocols.get(who["task"][0], {})
            who = who.with_columns(**{name: pl.lit(value) for name, value in protocol.items()})
            if "member" in frame.columns:
                own = frame.drop("seed", "returns", strict=False)
                frames.append(who.join(own, on="member", maintain_order="right").with_columns(pl.col("member")))
            else:
                frames.append(frame.select(pl.lit(folder.name).alias("run"), pl.all()))
        if frames:
            yield kind, pl.concat(frames, how="diagonal_relaxed")


def _clock(folder: RunFolder) -> dict[int, float]:
    timing = folder.timing()
    return {} if timing.is_empty() else dict(timing.select("chunk", pl.col("seconds").cum_sum()).iter_rows())


FORMS: dict[str, Callable[[Sequence[RunFolder], Path], None]] = {
    "csv": _csv,
    "xlsx": _xlsx,
    "marl-eval": _marl_eval,
    "tensorboard": _tensorboard,
}
