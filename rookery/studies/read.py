"""Many run folders as tidy tables.

What reports need of a run is its digest (`rookery.training.digest`), which a complete run has in its folder. The
digests of many runs are kept together in shards in OUT/.digest, which are read one at a time. Shards are a cache: they
can be deleted at any time.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from rookery.core import config as configs
from rookery.core.errors import ConfigError, RunError
from rookery.core.host import HostTask
from rookery.core.registry import ALGORITHMS, TASK_FAMILIES
from rookery.studies.plan import task_label
from rookery.training import digest, imports
from rookery.training.failures import Failure, failed
from rookery.training.folder import RunFolder
from rookery.training.state import member_infos_of_json

_SHARD = 256  # runs
_SCHEMAS = {table: {"run": pl.String, **schema} for table, schema in digest.SCHEMAS.items()}
_SCHEMAS["runs"]["fingerprint"] = pl.String
TABLES = digest.TABLES

Digest = Mapping[str, pl.LazyFrame]


@dataclass(frozen=True)
class Runs:
    """Run folders, opened for reading."""

    folders: tuple[RunFolder, ...]
    members: pl.DataFrame
    """One row per seed and swept value: run, member, seed, preset, label, task, task_name, budget."""
    shards: tuple[Digest, ...]
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What tables of scores say of a task besides its label; by label, of tasks that have something to say."""
    frames_per_step: Mapping[str, float] = field(default_factory=dict)
    """By the task's label, where it is not 1."""
    failed: Mapping[tuple[str, int], Failure] = field(default_factory=dict)
    """By run and member. A failed member's rows are in no table."""

    @cached_property
    def alive(self) -> pl.DataFrame:
        """The members that did not fail."""
        keys = pl.DataFrame(list(self.failed), schema={"run": pl.String, "member": pl.Int64}, orient="row")
        return self.members.join(keys, on=["run", "member"], how="anti", maintain_order="left")

    def scan(self, table: str) -> pl.LazyFrame:
        """A table of all runs, with the members' columns beside it."""
        rows = pl.concat([pl.LazyFrame(schema=_SCHEMAS[table]), *(shard[table] for shard in self.shards)])
        if table == "runs":
            return rows
        return rows.join(self.alive.lazy(), on=["run", "member"], how="inner", maintain_order="left")

    @cached_property
    def finals(self) -> pl.DataFrame:
        """Absolute metric of each member's best and last policy."""
        return self.scan("finals").collect()

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """Training metrics of each member: mean, range and last value over the run."""
        return self.scan("metrics").collect()

    @cached_property
    def spent(self) -> pl.DataFrame:
        """Seconds and steps of each run."""
        return self.scan("runs").collect()

    def curves(self) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
        """Every member with its evaluations, one shard in memory at a time."""
        rows = {(row["run"], row["member"]): row for row in self.alive.iter_rows(named=True)}
        for shard in self.shards:
            frame = shard["curves"].collect()
            for key, curve in frame.group_by(["run", "member"], maintain_order=True):
                if key in rows:  # a comparison may leave members out, and some failed
                    yield rows[key], curve


def open_runs(folders: Sequence[RunFolder]) -> Runs:
    """Open run folders; unreadable ones are a `RunError`."""
    labels = _Labels()
    members = [row for folder in folders for row in labels.rows(folder)]
    schema = {"run": pl.String, "member": pl.Int64, "seed": pl.Int64, "preset": pl.String, "label": pl.String}
    schema |= {"task": pl.String, "task_name": pl.String, "budget": pl.Int64}
    frame, digests = pl.DataFrame(members, schema=schema), tuple(_digests(folders))
    failures = {(folder.name, member): one for folder in folders for member, one in failed(folder).items()}
    return Runs(tuple(folders), frame, digests, labels.protocols, labels.frames_per_step, failures)


class _Labels:
    """Labels of members, and what their tasks say of themselves; equal configs are parsed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], str] = {}
        self.protocols: dict[str, Mapping[str, Any]] = {}
        self.frames_per_step: dict[str, float] = {}

    def rows(self, folder: RunFolder) -> list[dict[str, Any]]:
        """The rows of a run's members."""
        config = folder.config()
        with suppress(ConfigError):  # a file that cannot be imported any more costs the label only
            imports.load(folder)
        try:
            infos = member_infos_of_json(config)
            task = self._task(config["task_name"], config["task"])
            common = {"run": folder.name, "preset": config["preset"], "task": task, "task_name": config["task_name"]}
            return [
                common
                | {"member": i, "seed": info.seed, "budget": config["steps"]}
                | {"label": self._algorithm(config["preset"], config["algo"], info.values, folder)}
                for i, info in enumerate(infos)
            ]
        except (KeyError, TypeError) as error:
            raise RunError(f"{folder.path / 'config.json'} is not the config of a run: {error!r}.") from error

    def _algorithm(self, preset: str, algo: Any, values: Mapping[str, float], folder: RunFolder) -> str:
        key = (preset, json.dumps(algo), json.dumps(values))
        if key not in self._known:
            try:
                config = configs.from_json(ALGORITHMS[algo["family"]], algo)
                for path, value in values.items():
                    config = configs.set_path(config, path.removeprefix("algo."), value)
                self._known[key] = configs.label(preset, config)
            except (ConfigError, KeyError):
                # The code that made it is not here; its id at least keeps it apart from others.
                return f"{preset} [{folder.id}]"
        return self._known[key]

    def _task(self, name: str, task: Any) -> str:
        key = (name, json.dumps(task))
        if key not in self._known:
            try:
                config = configs.from_json(TASK_FAMILIES[task["family"]], task)
            except (ConfigError, KeyError):
                return name
            label = self._known[key] = task_label(name, config)
            if isinstance(config, HostTask) and config.protocol:
                self.protocols[label] = config.protocol
            if isinstance(config, HostTask) and config.frames_per_step != 1:
                self.frames_per_step[label] = config.frames_per_step
        return self._known[key]


# --- digests


def _digests(folders: Sequence[RunFolder]) -> Iterator[Digest]:
    """Digests that hold each run once: from the shards on the disk, then from the folders themselves."""
    by_out: dict[Path, list[RunFolder]] = {}
    for folder in folders:
        by_out.setdefault(folder.path.parent, []).append(folder)
    for out, runs in by_out.items():
        missing = {run.name: run for run in runs}
        prints = {run.name: _fingerprint(run) for run in runs}
        for shard in sorted((out / ".digest").glob("*-*")):
            held = _held(shard)
            usable = [name for name in missing if held.get(name, "?") == prints[name]]
            if usable:
                yield {table: _scan_shard(shard, table, usable, len(held)) for table in TABLES}
                for name in usable:
                    del missing[name]
        left = list(missing.values())
        for start in range(0, len(left), _SHARD):
            yield _digest_batch(left[start : start + _SHARD], prints, out / ".digest")


def _scan_shard(shard: Path, table: str, usable: Sequence[str], held: int) -> pl.LazyFrame:
    rows = pl.scan_parquet(shard / f"{table}.parquet")
    return rows if len(usable) == held else rows.filter(pl.col("run").is_in(list(usable)))


def _held(shard: Path) -> dict[str, str]:
    """Fingerprints of the runs in a shard; none if it is broken, for then it is made again."""
    with suppress(pl.exceptions.PolarsError, OSError):
        frame = pl.read_parquet(shard / "runs.parquet", columns=["run", "fingerprint"])
        return dict(frame.iter_rows())
    return {}


def _fingerprint(run: RunFolder) -> str:
    """Changes whenever the status is written, as it is when a run ends."""
    try:
        stat = (run.path / "status.json").stat()
    except OSError:
        return ""
    return f"{stat.st_mtime_ns}-{stat.st_size}"


def _digest_batch(runs: Sequence[RunFolder], prints: Mapping[str, str], cache: Path) -> Digest:
    """Digests of some runs; of those that are complete they are kept together for the next time."""
    done = {run.name for run in runs if run.status().state == "complete"}
    complete, others = [run for run in runs if run.name in done], [run for run in runs if run.name not in done]
    # The digest of a run whose status does not say complete may be older than its parts.
    kept = _tables(complete, [run for run in complete if digest.file_of(run, "runs").exists()], prints)
    fresh = _tables(others, [], prints)
    stored: Digest = {table: frame.lazy() for table, frame in kept.items()}
    if complete:
        # A folder that cannot be written to can still be read.
        with suppress(OSError):
            shard = _write_shard(cache, kept)
            stored = {table: pl.scan_parquet(shard / f"{table}.parquet") for table in TABLES}
    return {table: pl.concat([stored[table], fresh[table].lazy()]) for table in TABLES}


def _tables(
    runs: Sequence[RunFolder], ready: Sequence[RunFolder], prints: Mapping[str, str]
) -> dict[str, pl.DataFrame]:
    """The digests of some runs as one: `ready` ones are read from the folders, the others made now."""
    try:
        read = [_read_digests(ready)] if ready else []
    except (pl.exceptions.PolarsError, OSError):
        ready, read = [], []  # one of them is broken; the parts say all that it said
    names = {run.name for run in ready}
    made = [_named(digest.make(run), run.name) for run in runs if run.name not in names]
    joined = {
        table: pl.concat([*(one[table] for one in (*read, *made))], how="diagonal") if read or made else pl.DataFrame()
        for table in TABLES
    }
    if joined["runs"].width:
        prints_of = pl.col("run").replace_strict(prints, return_dtype=pl.String)
        joined["runs"] = joined["runs"].with_columns(fingerprint=prints_of)
    return {table: _fit(frame, table) for table, frame in joined.items()}


def _read_digests(runs: Sequence[RunFolder]) -> dict[str, pl.DataFrame]:
    """The digests in the folders of some runs, each table read in one go."""
    found = {}
    for table in TABLES:
        files = {str(digest.file_of(run, table)): run.name for run in runs}
        frame = pl.read_parquet(list(files), include_file_paths="run")
        # The rows of a file follow each other: one look-up for each file, not for each row.
        stretches = frame["run"].rle().struct.unnest()
        names = pl.Series([files[path] for path in stretches["value"]], dtype=pl.String)
        found[table] = frame.with_columns(run=names.gather(frame["run"].rle_id()))
    return found


def _named(tables: Mapping[str, pl.DataFrame], run: str) -> dict[str, pl.DataFrame]:
    return {table: frame.with_columns(run=pl.lit(run)) for table, frame in tables.items()}


def _fit(frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """The table's columns in its order."""
    return frame.select(list(_SCHEMAS[table])) if frame.height else pl.DataFrame(schema=_SCHEMAS[table])


def _write_shard(cache: Path, tables: Mapping[str, pl.DataFrame]) -> Path:
    """Write a shard under another name first, so that it is there whole or not at all."""
    cache.mkdir(exist_ok=True)
    side = cache / f".{uuid.uuid4().hex}"
    side.mkdir()
    try:
        for name, frame in tables.items():
            frame.write_parquet(side / f"{name}.parquet")
        return side.rename(cache / f"shard-{side.name[1:]}")
    except OSError:
        shutil.rmtree(side, ignore_errors=True)
        raise
