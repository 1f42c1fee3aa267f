"""Run folders: everything a run leaves behind, readable without the code that wrote it, movable between machines.

    OUT/<preset>__<task>__<id>/
        config.json       the resolved config; never changes
        provenance.json   one entry per start
        imports.json      files of the user's own that the run needs, if any
        status.json       running, complete or failed
        metrics/          part-<chunk>.parquet, one per chunk
        evaluations/      part-<chunk>.parquet, one row per episode
        timing/           part-<chunk>.parquet, seconds of each chunk (apart: it differs from machine to machine)
        final/            part-<index>.parquet, the absolute evaluation after training
        checkpoints/      whole states, see rookery.training.checkpoint; gone when the run is complete
        digest/           then: what reports need of the run, see rookery.training.digest
        policies/         and the last and the best policy of each member, in the same format
        lock              held while a process trains

Write the parts of a chunk before its checkpoint: then all parts up to a checkpoint are there whenever it is. The
checkpoint's manifest lists them with their checksums (`Parts`), so that a resume notices what was lost later.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

import polars as pl

import rookery
from rookery.core.errors import RunError, suggest
from rookery.training.disk import SIDE, clear_side, make_folder, sync_folder, write_atomic

Kind = Literal["metrics", "evaluations", "timing", "final"]
KINDS: tuple[Kind, ...] = ("metrics", "evaluations", "timing", "final")
Parts = dict[str, str]
"""SHA-256 of each part by its name, for example "metrics/part-00000003.parquet"; empty for a part that was lost."""
_NAME = re.compile(r".+__.+__[0-9a-f]{8,}")
_PART = re.compile(r"part-\d{8,}\.parquet")


@dataclass(frozen=True)
class Status:
    """Where a run stands."""

    state: str
    """new, running, interrupted, complete, failed; broken if it cannot be read."""
    message: str = ""
    progress: float = 0.0
    """Share of the planned steps, 0 to 1."""
    updated: str = ""
    """When, in ISO 8601."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else is good to see while a run is under way: speed, score, remaining time."""


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. Holds no content of its own: every method reads or writes files."""

    path: Path

    @staticmethod
    def locate(out: Path, config_json: Mapping[str, Any], preset: str, task_name: str) -> RunFolder:
        """Where the run with this config is, or would be."""
        name = f"{_plain(preset)}__{_plain(task_name)}__{run_id(config_json, code_version())[:10]}"
        return RunFolder(Path(out) / name)

    @staticmethod
    def open_or_create(out: Path, config_json: Mapping[str, Any], preset: str, task_name: str) -> RunFolder:
        """The folder of the run with this config, made if it is new."""
        run = RunFolder.locate(out, config_json, preset, task_name)
        file = run.path / "config.json"
        if file.exists():
            if _canonical(_identity(run.config())) != _canonical(_identity(config_json)):
                raise RunError(
                    f"{file} was edited: it is not the config of this run. Restore it, or remove {run.path}."
                )
            return run
        with writing(run.path):
            make_folder(run.path)
            # A kill at this point leaves side names only, and another process may just be making the same run.
            others = [path for path in run.path.iterdir() if not path.name.startswith(SIDE)]
            if others and not file.exists():
                raise RunError(f"{file} is missing. Restore it, or remove {run.path} to start over.")
            write_json(file, config_json)
        return run

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def id(self) -> str:
        """The hexadecimal end of the name."""
        return self.name.rpartition("__")[2]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def policies(self) -> Path:
        return self.path / "policies"

    def config(self) -> dict[str, Any]:
        """The resolved config, as JSON."""
        config = read_json(self.path / "config.json")
        if not isinstance(config, dict):
            raise RunError(f"{self.path / 'config.json'} is corrupted: it holds no object. Restore it from a copy.")
        return config

    def problem(self) -> str:
        """Why this folder cannot be used; empty if it can."""
        try:
            self.config()
        except RunError as error:
            return str(error)
        status = self.status()
        return status.message if status.state == "broken" else ""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one process that trains this run. The lock dies with the process, however that ends."""
        with ExitStack() as stack:
            with writing(self.path / "lock"):
                file = stack.enter_context((self.path / "lock").open("a+b"))
                # A look at the lock (`holder`) takes it for an instant: that is no reason to give up.
                for _ in range(20):
                    if _take(file, exclusive=True):
                        break
                    time.sleep(0.02)
                else:
                    raise RunError(
                        f"{self.path} is being trained by {_describe_holder(file)}. Wait for it, or stop it."
                    )
                file.truncate(0)
                file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}).encode())
                file.flush()
            yield

    def holder(self) -> str:
        """Who trains this run at the moment; empty if nobody does."""
        try:
            with (self.path / "lock").open("rb") as file:
                return "" if _take(file, exclusive=False) else _describe_holder(file)
        except OSError:
            return ""

    def status(self) -> Status:
        """Where the run stands; a run whose process is gone is interrupted, not running."""
        file = self.path / "status.json"
        if not file.exists():
            return Status("new")
        try:
            status = Status(**read_json(file))
        except (RunError, TypeError) as error:
            return Status("broken", f"{file} is corrupted ({error}). Train the run again to write it anew.")
        if status.state == "running" and not self.holder():
            return Status("interrupted", status.message, status.progress, status.updated, status.facts)
        return status

    def set_status(
        self, state: Literal["running", "complete", "failed"], message: str = "", progress: float = 0.0, **facts: Any
    ) -> None:
        """Replace status.json."""
        with writing(self.path / "status.json"):
            write_json(self.path / "status.json", asdict(Status(state, message, progress, _now(), facts)))

    def write_part(self, kind: Kind, index: int, frame: pl.DataFrame) -> Parts:
        """Add an immutable part; it is on the disk, whole, when this returns. Returns its checksum by its name."""
        file = self.path / kind / f"part-{index:08d}.parquet"
        if file.exists():
            raise RunError(f"{file} exists already; parts are never overwritten.")
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        with writing(file):
            make_folder(file.parent)
            write_atomic(file, buffer.getvalue())
        return {f"{kind}/{file.name}": hashlib.sha256(buffer.getvalue()).hexdigest()}

    def damaged(self, parts: Parts) -> dict[str, str]:
        """What is wrong with each of these parts that is not as it was written; parts known to be lost are left out."""
        found = {}
        for name, checksum in parts.items():
            try:
                if checksum and hashlib.sha256((self.path / name).read_bytes()).hexdigest() != checksum:
                    found[name] = "damaged"
            except FileNotFoundError:
                found[name] = "missing"
            except OSError as error:
                found[name] = f"unreadable ({error.strerror or error})"
        return found

    def set_part_aside(self, name: str) -> None:
        """Rename a damaged part, so that nothing reads it; one that is missing is no error."""
        file = self.path / name
        with writing(file):
            if file.exists():
                file.replace(file.with_name(file.name + ".corrupt"))
                sync_folder(file.parent)

    def drop_after(self, chunk: int) -> None:
        """Before resuming from the checkpoint of `chunk` (-1: from nothing), remove the parts that will come again."""
        for kind in KINDS:
            folder = self.path / kind
            if not folder.is_dir():
                continue
            with writing(folder):
                clear_side(folder)
                # The final evaluation follows all of training. Newest first: a kill leaves no gap.
                for file in reversed(self.parts(kind)):
                    if kind == "final" or _index(file) > chunk:
                        file.unlink()
                sync_folder(folder)

    def parts(self, kind: Kind) -> list[Path]:
        """The parts of a kind, oldest first."""
        return sorted((path for path in (self.path / kind).glob("part-*") if _PART.fullmatch(path.name)), key=_index)

    def scan(self, kind: Kind) -> pl.LazyFrame:
        """All rows of a kind, read when and as far as they are needed."""
        parts = self.parts(kind)
        return pl.concat([pl.scan_parquet(part) for part in parts], how="diagonal_relaxed") if parts else pl.LazyFrame()

    def metrics(self) -> pl.DataFrame:
        """Training metrics, in the order of training."""
        return self._collect("metrics")

    def evaluations(self) -> pl.DataFrame:
        """Episodes of the evaluations under way, in the order of training."""
        return self._collect("evaluations")

    def timing(self) -> pl.DataFrame:
        """Wall-clock of each chunk, in the order of training."""
        return self._collect("timing")

    def final(self) -> pl.DataFrame:
        """Episodes of the absolute evaluation."""
        return self._collect("final")

    def _collect(self, kind: Kind) -> pl.DataFrame:
        try:
            return self.scan(kind).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise RunError(f"cannot read {_first_unreadable(self.parts(kind)) or self.path / kind}: {error}") from error


def run_id(config: Mapping[str, Any], code_version: str) -> str:
    """SHA-256 of what a config computes and the code version."""
    return hashlib.sha256(_canonical({"code": code_version, "config": _identity(config)}).encode()).hexdigest()


def _identity(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config without what changes no number: how many workers step environments, and how long they may take."""
    workers = config.get("workers")
    if workers is None:
        return config
    usual = {"on_failure": "stop", "overlap": False}
    changed = {name: value for name, value in workers.items() if usual.get(name, value) != value}
    rest = {name: value for name, value in config.items() if name != "workers"}
    return {**rest, "workers": changed} if changed else rest


def code_version() -> str:
    """Major and minor version: a patch release does not change what a run computes."""
    return ".".join(getattr(rookery, "__version__", "0.0").split(".")[:2])


def find_runs(out: Path) -> list[RunFolder]:
    """The run folders in `out`, by name, broken ones included (see `RunFolder.problem`)."""
    try:
        paths = sorted(path for path in Path(out).iterdir() if path.is_dir())
    except OSError:
        return []
    return [RunFolder(path) for path in paths if _is_run(path)]


def resolve(name_or_path: str, out: Path) -> RunFolder:
    """The run with this path, folder name, or unique beginning of a name or id."""
    path = Path(name_or_path).resolve()
    if name_or_path and _is_run(path):
        return RunFolder(path)
    runs = {run.name: run for run in find_runs(out)}
    if name_or_path in runs:
        return runs[name_or_path]
    matches = [run for run in runs.values() if run.name.startswith(name_or_path) or run.id.startswith(name_or_path)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RunError(
            f"'{name_or_path}' means several runs: {', '.join(run.name for run in matches)}. Give more of it."
        )
    hint = suggest(name_or_path, runs) if runs else " There are no runs."
    raise RunError(f"no run '{name_or_path}' in {out}.{hint}")


def read_json(path: Path) -> Any:
    """What a JSON file holds, or a `RunError` that names it."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunError(f"{path} is corrupted: {error}. Restore it from a copy.") from error


def write_json(path: Path, value: Any) -> None:
    """Make or replace a JSON file atomically and durably."""
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into a `RunError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}. What was written before is intact; "
            "free some space or make the folder writable, then give the same command again."
        ) from error


def _is_run(path: Path) -> bool:
    return path.is_dir() and ((path / "config.json").exists() or _NAME.fullmatch(path.name) is not None)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name)


def chunk_of(part: str) -> int:
    """The chunk that a part is of, by the part's name."""
    return _index(Path(part))


def _index(part: Path) -> int:
    return int(part.stem.removeprefix("part-"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _first_unreadable(parts: list[Path]) -> Path | None:
    for part in parts:
        try:
            pl.read_parquet(part)
        except (pl.exceptions.PolarsError, OSError):
            return part
    return None


def _take(file: IO[bytes], *, exclusive: bool) -> bool:
    """Lock an open file, or say that another has it; closing the file releases it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            file.seek(1 << 20)  # beyond the holder's note, which others must be able to read
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _describe_holder(file: IO[bytes]) -> str:
    file.seek(0)
    try:
        note = json.loads(file.read())
        return f"process {note['pid']} on {note['host']} since {note['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
