"""A study as it is watched: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO

from rookery.app.progress import short, time_left
from rookery.studies.schedule import Entry


def watcher_for(stream: TextIO | None = None, quiet: bool = False) -> StudyLines | StudyLive:
    """The display that suits the stream (standard output unless given)."""
    shown_on: TextIO = sys.stdout if stream is None else stream
    if quiet:
        return StudyLines(shown_on, every=float("inf"))
    return StudyLive(shown_on) if shown_on.isatty() else StudyLines(shown_on)


class StudyLines:
    """Plain lines, one about all runs every few seconds; for logs and pipes."""

    def __init__(self, stream: TextIO, every: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._next = clock() + every

    def show(self, entries: Sequence[Entry], slots: int) -> None:
        """One line, unless the last one was just written."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._every
        under_way = [f"{e.planned.label} on {e.planned.task} {_stage(e)}" for e in _running(entries)]
        self.message(" | ".join([summary(entries, slots), *under_way]))

    def message(self, text: str) -> None:
        """The text on lines of its own."""
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is kept back."""


class StudyLive:
    """A table of the runs under way that redraws in place, with messages scrolling above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream)
        self._live = Live(console=self._console, refresh_per_second=4)
        self._live.start()

    def show(self, entries: Sequence[Entry], slots: int) -> None:
        """Redraw."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=None, title=summary(entries, slots), title_justify="left", title_style="bold")
        for heading in ("algorithm", "task", "seeds", "", "", "steps/s"):
            table.add_column(heading)
        for entry in _running(entries):
            bar = ProgressBar(100, 100 * entry.progress, width=30)
            row = (entry.planned.label, entry.planned.task, str(len(entry.planned.config.seeds)))
            table.add_row(*row, bar, _stage(entry), short(entry.rate) if entry.rate else "")
        self._live.update(table)

    def message(self, text: str) -> None:
        """The text above the table."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def summary(entries: Sequence[Entry], slots: int) -> str:
    """ "3 of 12 complete, 2 running, 41% of all steps, about 2:10 left"."""
    counts = Counter(entry.state for entry in entries)
    parts = [f"{counts['complete']} of {len(entries)} complete"]
    parts += [f"{counts[state]} {state}" for state in ("running", "failed") if counts[state]]
    steps = sum(entry.total for entry in entries)
    taken = sum(entry.total * (1 if entry.state == "complete" else entry.progress) for entry in entries)
    left = _seconds_left(entries)
    time = [f"about {time_left(0, round(left / slots), 1)} left"] if left is not None else []
    return ", ".join([*parts, f"{taken / steps:.0%} of all steps", *time])


def _seconds_left(entries: Sequence[Entry]) -> float | None:
    """Time that one process would need for the rest; None unless a run of every kind has been timed."""
    known = {_kind(entry): entry.rate for entry in entries if entry.rate}
    open_ = [entry for entry in entries if entry.state not in ("complete", "failed")]
    if not all(_kind(entry) in known for entry in open_):
        return None
    return sum(entry.total * (1 - entry.progress) / (entry.rate or known[_kind(entry)]) for entry in open_)


def _kind(entry: Entry) -> tuple[str, str]:
    return entry.planned.label, entry.planned.task


def _stage(entry: Entry) -> str:
    return f"{entry.progress:.0%}" if entry.rate else "compiling"


def _running(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.state == "running"]
