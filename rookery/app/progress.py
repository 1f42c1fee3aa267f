"""A run as it is watched: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rookery.training.progress import Progress, Silent

if TYPE_CHECKING:
    from rookery.training.scores import Score

__all__ = ["Lines", "Live", "Progress", "Silent", "progress_for"]


def progress_for(stream: TextIO | None = None, quiet: bool = False) -> Progress:
    """The display that suits the stream (standard output unless given)."""
    if quiet:
        return Silent()
    shown_on: TextIO = sys.stdout if stream is None else stream
    return Live(shown_on) if shown_on.isatty() else Lines(shown_on)


class Lines:
    """Plain lines, at most one about progress every few seconds; for logs and pipes."""

    def __init__(self, stream: TextIO, every: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._next = clock()
        self._pending = ""

    def compiling(self, what: str) -> None:
        """Say nothing yet: the line with the time follows."""

    def compiled(self, what: str, seconds: float) -> None:
        """One line."""
        self._write(f"compiled {what} in {seconds:.1f} s")

    def update(self, steps: int, total_steps: int, steps_per_second: float, metrics: Mapping[str, float]) -> None:
        """One line, unless the last one was just written; the newest is kept back for `close`."""
        left = time_left(steps, total_steps, steps_per_second)
        self._pending = (
            f"step {steps:,} of {total_steps:,} ({share(steps, total_steps):.0%}), "
            f"{steps_per_second:,.0f} steps/s per seed, {left} left"
            f"{''.join(f', {name} {value:.4g}' for name, value in shown(metrics).items())}"
        )
        if self._clock() >= self._next or steps >= total_steps:
            self._flush()

    def evaluation(self, step: int, unit: str, scores: Sequence[Score]) -> None:
        """One line; with a sweep, one for each value."""
        self._write(score_text(f"step {step:,}", unit, scores))

    def message(self, text: str) -> None:
        """The text on lines of its own."""
        self._write(text)

    def close(self) -> None:
        """Write what was kept back."""
        self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._write(self._pending)
            self._pending = ""
            self._next = self._clock() + self._every

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Live:
    """A bar that redraws in place, with evaluations and messages scrolling above it."""

    def __init__(self, stream: TextIO) -> None:
        # Imported here: rich costs a tenth of a second that commands without a display should not pay.
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console(file=stream)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("starting", total=None, facts="")
        self._compile_seconds = 0.0
        self._bar.start()

    def compiling(self, what: str) -> None:
        """Say so in place of the steps: nothing else moves meanwhile."""
        self._bar.update(self._task, description=f"compiling {what}", refresh=True)

    def compiled(self, what: str, seconds: float) -> None:
        """Add to the compile time, which is shown apart from the time left."""
        self._compile_seconds += seconds
        self._bar.update(self._task, description="training", facts=f"compiled in {self._compile_seconds:.1f} s")

    def update(self, steps: int, total_steps: int, steps_per_second: float, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        facts = [
            f"{short(steps)}/{short(total_steps)} steps",
            f"{short(steps_per_second)} steps/s per seed",
            *(f"{name} {value:.4g}" for name, value in shown(metrics).items()),
            f"{time_left(steps, total_steps, steps_per_second)} left",
            f"compile {self._compile_seconds:.1f} s",
        ]
        self._bar.update(
            self._task, description="training", completed=steps, total=total_steps, facts=" · ".join(facts)
        )

    def evaluation(self, step: int, unit: str, scores: Sequence[Score]) -> None:
        """A line above the bar; with a sweep, one for each value."""
        self.message(score_text(f"step {step:>12,}", unit, scores))

    def message(self, text: str) -> None:
        """The text above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last state of the bar on the screen and give the terminal back."""
        self._bar.stop()


def share(steps: int, total_steps: int) -> float:
    """Part of the budget used, 0 to 1."""
    return min(steps / total_steps, 1.0) if total_steps else 1.0


def time_left(steps: int, total_steps: int, steps_per_second: float) -> str:
    """Hours, minutes and seconds to go at this rate."""
    if steps_per_second <= 0:
        return "?"
    seconds = round(max(total_steps - steps, 0) / steps_per_second)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"


def shown(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics worth a place beside the bar: scores of training episodes, else the first one."""
    short_names = {name.rpartition("/")[2]: value for name, value in metrics.items()}
    known = [name for name in ("return", "return_mean", "success") if name in short_names]
    return {name: short_names[name] for name in known or list(short_names)[:1]}


def score_text(step: str, unit: str, scores: Sequence[Score]) -> str:
    """An evaluation in words: one line, or one for each swept value below a heading."""
    from rookery.training.scores import lines

    first, *more = lines(scores)
    heading = f"{step}: evaluation: {unit}, IQM"
    return "\n".join([f"{heading}:", *(f"  {line}" for line in (first, *more))]) if more else f"{heading} {first}"


def short(number: float) -> str:
    """1234567 -> 1.23M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:.3g}"
