"""Environments that are stepped together, in this process or in workers: what the engine sees of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rookery.core.errors import RookeryError, TrainingError
from rookery.core.host import HostEnvs, HostTask, Rows
from rookery.training.host.packing import Packing


@runtime_checkable
class Stepper(Protocol):
    """Environments with their current rows, which are views of one block of bytes."""

    block: np.ndarray
    """The current rows as bytes."""
    rows: Rows
    """The same rows by field. Set `last` of an environment, and the next step begins an episode in it."""
    restarts: int
    """Workers that were restarted so far."""

    def reset(self, seeds: np.ndarray) -> None:
        """Begin an episode in every environment."""
        ...

    def send(self, action: np.ndarray, seeds: np.ndarray) -> None:
        """Begin to move every environment by one row. The rows must not be touched until `wait` returns."""
        ...

    def wait(self) -> np.ndarray | None:
        """Finish what `send` began. Returns the environments [env] that lost their episode, None if none did."""
        ...

    def close(self) -> None: ...


class InProcess:
    """Environments of this process: `send` has moved them when it returns."""

    def __init__(self, task: HostTask, packing: Packing) -> None:
        self.block = packing.empty()
        self.rows = packing.rows(self.block)
        self.restarts = 0
        self._name = packing.spec.name
        self._envs: HostEnvs = task.open(packing.envs)

    def reset(self, seeds: np.ndarray) -> None:
        """Begin an episode in every environment."""
        self._guard(self._envs.reset, seeds, self.rows)

    def send(self, action: np.ndarray, seeds: np.ndarray) -> None:
        """Move every environment by one row."""
        self._guard(self._envs.step, action, seeds, self.rows)

    def wait(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _guard(self, f: Callable[..., None], *args: Any) -> None:
        try:
            f(*args)
        except RookeryError:
            raise
        except Exception as error:
            raise TrainingError(f"an environment of {self._name} raised:\n{traceback.format_exc()}") from error
