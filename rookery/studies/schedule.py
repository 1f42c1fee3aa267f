"""Train the runs of a study side by side. Everything it knows of a run it reads from the run's folder."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import polars as pl

from rookery.core import config as configs
from rookery.core.errors import RookeryError, RunError
from rookery.studies.executors import LOG, Ended, Executor, Job
from rookery.studies.plan import Planned, Study
from rookery.training import imports
from rookery.training.folder import RunFolder

_TIMED = 20  # newest chunks that a speed is taken from


@dataclass(frozen=True)
class Entry:
    """One run of a study and where it stands."""

    planned: Planned
    folder: RunFolder
    state: str
    """new, interrupted, running, complete, failed, broken."""
    progress: float = 0.0
    """Share of the planned steps."""
    rate: float = 0.0
    """Steps per second, all members together; 0 if unknown."""
    message: str = ""

    @property
    def total(self) -> int:
        """Steps of all members."""
        return self.planned.config.steps * self.planned.members


class Watcher(Protocol):
    """Whoever watches a study."""

    def show(self, entries: Sequence[Entry], slots: int) -> None:
        """Where all runs stand; called a few times a second."""
        ...

    def message(self, text: str) -> None:
        """Something the user should read."""
        ...


@dataclass
class _Child:
    entry: Entry
    job: Job


@dataclass
class _Floor:
    """Everything that is under way."""

    waiting: deque[Entry]
    elsewhere: list[Entry] = field(default_factory=list)
    """Runs that another process trains; taken up should it stop before they are complete."""
    children: list[_Child] = field(default_factory=list)
    done: list[Entry] = field(default_factory=list)


def survey(study: Study, out: Path) -> list[Entry]:
    """Where every run of a study stands."""
    return [look(planned, planned.folder(out)) for planned in study.runs]


def look(planned: Planned, folder: RunFolder) -> Entry:
    """Where one run stands."""
    status = folder.status()
    entry = Entry(planned, folder, status.state, status.progress, message=status.message)
    if status.state == "new" and folder.holder():
        return replace(entry, state="running")
    return entry if status.state in ("new", "complete", "broken") else with_speed(entry)


def with_speed(entry: Entry) -> Entry:
    """The entry with progress and speed of its newest chunks (the status is written only now and then)."""
    metrics, timing = (entry.folder.parts(kind) for kind in ("metrics", "timing"))
    try:
        steps = pl.read_parquet(metrics[-1], columns=["steps"])["steps"].min() if metrics else 0
        rate = _rate(timing[-1:])
    except (pl.exceptions.PolarsError, OSError):
        return entry  # a part may vanish while a run begins again
    progress = min(int(steps) / entry.planned.config.steps, 1.0) if isinstance(steps, int) else entry.progress
    return replace(entry, progress=progress, rate=rate)


def estimate(entries: Sequence[Entry], out: Path, at_once: int) -> tuple[float, int]:
    """Seconds of training that remain, and how many runs they leave out as nothing like them was ever timed."""
    rates: dict[str, float] = {}
    seconds, unknown = 0.0, 0
    for entry in entries:
        if entry.state == "complete":
            continue
        kind = entry.folder.name.rpartition("__")[0]
        rate = entry.rate or rates.setdefault(kind, _known_rate(out, kind))
        seconds += entry.total * (1 - entry.progress) / rate if rate else 0.0
        unknown += not rate
    return seconds / at_once, unknown


def run(study: Study, out: Path, executor: Executor, watcher: Watcher, retry_failed: bool = False) -> list[Entry]:
    """Train what is not complete.

    One bad run does not stop the rest. On Ctrl-C (or SIGTERM) the runs finish their chunks and save them, then
    KeyboardInterrupt is raised; a second one kills them.
    """
    entries = survey(study, out)
    startable = ("new", "interrupted", "broken", *(["failed"] if retry_failed else []))
    floor = _Floor(
        waiting=deque(entry for entry in entries if entry.state in startable),
        elsewhere=[entry for entry in entries if entry.state == "running"],
        done=[entry for entry in entries if entry.state not in (*startable, "running")],
    )
    with _noting_interrupts() as interrupted, _stopping(floor, interrupted, watcher):
        while floor.waiting or floor.children or floor.elsewhere:
            if interrupted.is_set():
                raise KeyboardInterrupt
            _revisit(floor)
            _start(floor, out, executor, watcher)
            _collect(floor, watcher)
            watcher.show(_in_order(study, floor), executor.slots)
            time.sleep(0.25)
    return _in_order(study, floor)


def _revisit(floor: _Floor) -> None:
    """Look again at the runs that others train."""
    seen = [look(entry.planned, entry.folder) for entry in floor.elsewhere]
    floor.elsewhere = [entry for entry in seen if entry.state == "running"]
    floor.done += [entry for entry in seen if entry.state in ("complete", "failed")]
    floor.waiting += [entry for entry in seen if entry.state not in ("running", "complete", "failed")]


def _start(floor: _Floor, out: Path, executor: Executor, watcher: Watcher) -> None:
    """Fill the free places."""
    while floor.waiting and len(floor.children) < executor.slots:
        if floor.children and not executor.has_room():
            return
        entry = floor.waiting.popleft()
        config = entry.planned.config
        try:
            folder = RunFolder.open_or_create(out, configs.to_json(config), config.preset, config.task_name)
            imports.record(folder, config)  # where the process that trains it finds them
            floor.children.append(_Child(entry, executor.submit(entry.folder.path)))
        except (RookeryError, OSError) as error:
            floor.done.append(replace(entry, state="failed", message=str(error)))
            watcher.message(f"failed: {_title(entry)}: {error}")


def _collect(floor: _Floor, watcher: Watcher) -> None:
    """Take note of the runs that ended."""
    for child in list(floor.children):
        ended = child.job.poll()
        if ended is None:
            child.entry = with_speed(replace(child.entry, state="running"))
            continue
        floor.children.remove(child)
        entry = look(child.entry.planned, child.entry.folder)
        entry = with_speed(entry) if entry.state == "complete" else _failed(entry, ended)
        floor.done.append(entry)
        watcher.message(f"{entry.state}: {_title(entry)}{': ' + entry.message if entry.message else ''}")


def _failed(entry: Entry, ended: Ended) -> Entry:
    """The entry with the cause of its failure, which is left in the folder too."""
    if entry.state == "failed":
        return entry
    cause = ended.cause or _cause(entry.folder, ended.code)
    # A full disk may be the cause; then this cannot be written either.
    with suppress(RunError):
        entry.folder.set_status("failed", cause, entry.progress, label=entry.planned.label)
    return replace(entry, state="failed", message=cause)


def _cause(folder: RunFolder, code: int) -> str:
    """Why a process ended that did not say so itself."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the machine may be out of memory: try fewer runs with --jobs)" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    lines = (folder.path / LOG).read_text(errors="replace").split("\n") if (folder.path / LOG).exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1] if said else 'no message'} (exit code {code}; all of it is in {folder.path / LOG})"


@contextmanager
def _noting_interrupts() -> Iterator[threading.Event]:
    """Take note of Ctrl-C and SIGTERM. As exceptions they could land, and be lost, in a callback of the collector."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noted  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, lambda *_: noted.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _stopping(floor: _Floor, interrupted: threading.Event, watcher: Watcher) -> Iterator[None]:
    """Leave no job behind, however this ends. A run saves only when its chunk ends, however long that takes."""
    try:
        yield
    finally:
        running = [child.job for child in floor.children]
        interrupted.clear()
        try:
            for job in running:
                job.stop()
            if running:
                watcher.message("stopping: every run finishes its chunk and saves it; interrupt again to kill them.")
            while any(job.poll() is None for job in running) and not interrupted.is_set():
                time.sleep(0.05)
        finally:
            left = [job for job in running if job.poll() is None]
            for job in left:
                job.kill()
            if left:
                watcher.message(f"killed {len(left)} runs: what they had not saved yet is lost.")


def _in_order(study: Study, floor: _Floor) -> list[Entry]:
    known = [*floor.done, *floor.elsewhere, *floor.waiting, *(child.entry for child in floor.children)]
    place = {id(planned): i for i, planned in enumerate(study.runs)}
    return sorted(known, key=lambda entry: place[id(entry.planned)])


def _title(entry: Entry) -> str:
    return f"{entry.planned.label} on {entry.planned.task}, seeds {configs.format_value(entry.planned.config.seeds)}"


def _known_rate(out: Path, kind: str) -> float:
    """Steps per second of earlier runs of a preset on a task; 0 if there are none."""
    rates = []
    for path in sorted(out.glob(f"{kind}__*"))[-_TIMED:]:
        with suppress(pl.exceptions.PolarsError, OSError):
            rates.append(_rate(RunFolder(path).parts("timing")[-_TIMED:]))
    known = sorted(rate for rate in rates if rate)
    return known[len(known) // 2] if known else 0.0


def _rate(parts: Sequence[Path]) -> float:
    """Steps per second over some parts of timing."""
    if not parts:
        return 0.0
    frame = pl.read_parquet(list(parts))
    return float(frame["steps"].sum()) / float(frame["seconds"].sum())
