"""Whether workers pay: environments are stepped in the training process unless workers were measured to be faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rookery.training.checkpoint import nbytes
from rookery.training.engine import Timing
from rookery.training.host.program import HostProgram
from rookery.training.provenance import usable_cores

_START = 10.0  # seconds that starting workers and trying them takes, about
_LARGE = 2 << 30  # bytes of a state that trials make no copy of
_WAKE = 100e-6  # seconds of one row that workers cost by themselves


@dataclass(frozen=True)
class Choice:
    """How many workers, and why."""

    count: int
    reason: str
    in_process: float = 0.0
    """Environment steps per second; 0: not measured."""
    in_workers: float = 0.0

    def record(self) -> dict[str, Any]:
        """For the run's record."""
        rates = {"in_process": round(self.in_process), "in_workers": round(self.in_workers)}
        measured = {name: rate for name, rate in rates.items() if rate}
        return {"count": self.count, "reason": self.reason, "steps_per_second": measured}


Trial = Callable[[int], list[Timing]]
"""Seconds of the pieces of an iteration with so many workers."""


def choose(program: HostProgram, trial: Trial) -> Choice:
    """Try both ways, unless it is plain before that workers cannot pay."""
    envs, length = program.members * program.envs, program.length
    count = min(usable_cores(), program.packing.envs)
    if program.halves == 1 and count < 2:
        return Choice(0, "there is one core, or one environment")
    if program.halves > 1:
        return Choice(max(count, 1), "halves overlap in workers only")
    if nbytes(program.shapes) > _LARGE:
        return Choice(0, "the state is too large to make a second one for trials; set --workers.count to try workers")
    here, stepping = _row(trial(0), length)
    gain = stepping * (1 - 1 / count) - _WAKE
    rows = program.config.steps / program.envs
    said = f"environments take {stepping * 1e6:.0f} of {here * 1e6:.0f} us of a row"
    if gain * rows < _START:
        return Choice(0, f"workers could not save the time that it takes to start them: {said}", envs / here)
    there, _ = _row(trial(count), length)
    return Choice(count if there < here else 0, f"measured to be faster; {said}", envs / here, envs / there)


def _row(timings: list[Timing], length: int) -> tuple[float, float]:
    """Seconds of one row with acting and learning, and of its environments."""
    walls = {timing.name: timing.wall for timing in timings}
    return walls["whole"] / length, walls["environment"] / length
