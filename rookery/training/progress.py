"""What training tells whoever watches it. Displays live in `rookery.app`; training knows this protocol only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """A watcher of one run; calls come from the host loop, between compiled chunks."""

    def compiling(self, what: str) -> None:
        """A program is about to be compiled."""
        ...

    def compiled(self, what: str, seconds: float) -> None:
        """A program was compiled."""
        ...

    def update(self, steps: int, total_steps: int, steps_per_second: float, metrics: Mapping[str, float]) -> None:
        """Environment steps so far, planned and per second, all members together, and the newest metrics."""
        ...

    def evaluation(self, step: int, score: float, unit: str, interval: tuple[float, float]) -> None:
        """A greedy evaluation: mean score over members with its 95% interval."""
        ...

    def message(self, text: str) -> None:
        """Something the user should read."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class Silent:
    """A watcher that shows nothing."""

    def compiling(self, what: str) -> None: ...

    def compiled(self, what: str, seconds: float) -> None: ...

    def update(self, steps: int, total_steps: int, steps_per_second: float, metrics: Mapping[str, float]) -> None: ...

    def evaluation(self, step: int, score: float, unit: str, interval: tuple[float, float]) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...
