"""What training tells whoever watches it. Displays live in `rookery.app`; training knows this protocol only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rookery.training.scores import Score


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
        """Environment steps so far, planned and per second, of each seed, and the newest metrics.

        Metrics are means over seeds; there are none if values are swept.
        """
        ...

    def evaluation(self, step: int, unit: str, scores: Sequence[Score]) -> None:
        """An evaluation: one score for each swept value, with its interval (`rookery.core.stats.INTERVAL`)."""
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

    def evaluation(self, step: int, unit: str, scores: Sequence[Score]) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...
