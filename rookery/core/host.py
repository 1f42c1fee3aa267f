"""Tasks whose environments live outside XLA: they are opened, stepped in numpy and closed by an engine."""

from __future__ import annotations

import abc
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from rookery.core.codec import Codec, Padded
from rookery.core.types import Spec


class Rows(NamedTuple):
    """`Step` in numpy: what all agents of `env` environments see at one moment. The fields mean what `Step`'s do."""

    obs: np.ndarray  # [env, agent, *obs], of Spec.obs_dtype
    state: np.ndarray  # [env, *state] float32; [env, 0] where Spec.state_shape is ()
    legal: np.ndarray  # [env, agent, action] bool
    alive: np.ndarray  # [env, agent] bool
    reward: np.ndarray  # [env, agent] float32
    discount: np.ndarray  # [env, agent] float32
    first: np.ndarray  # [env] bool
    last: np.ndarray  # [env] bool
    success: np.ndarray  # [env] float32

    def at(self, index: slice) -> Rows:
        """Views of some environments' rows."""
        return Rows(*(field[index] for field in self))


@runtime_checkable
class HostEnvs(Protocol):
    """Environments that are stepped together. They write into arrays that they are given, for example shared memory."""

    def reset(self, seeds: np.ndarray, rows: Rows) -> None:
        """Begin an episode in every environment, from the given seeds [env]; write its first row."""
        ...

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        """Move every environment by one row; `rows` holds the current rows and receives the next ones.

        An environment whose current row is `last` ignores its action and begins an episode from its entry of `seeds`.
        """
        ...

    def close(self) -> None: ...


class HostTask(abc.ABC):
    """A frozen config that opens environments. A base class, not a protocol: asking for a protocol reads `spec`, which
    may build an environment."""

    @property
    @abc.abstractmethod
    def spec(self) -> Spec:
        """The static facts of this task."""

    @abc.abstractmethod
    def open(self, envs: int) -> HostEnvs:
        """So many environments."""

    @property
    def codec(self) -> Codec:
        """How a policy reads what one environment returns, and answers it."""
        return Padded(self.spec)

    @property
    def protocol(self) -> dict[str, bool | int | float | str]:
        """Settings by which published results on one task differ: tables of scores have a column for each."""
        return {}

    @property
    def score_unit(self) -> str:
        """What `Step.success` counts, if that is the task's score."""
        return "success"

    @property
    def frames_per_step(self) -> float:
        """Frames that one action lasts, on average; where it is not 1, reports count frames too."""
        return 1.0


def layout(spec: Spec) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of each field of one environment's row."""
    n = spec.n_agents
    return {
        "obs": ((n, *spec.obs_shape), np.dtype(spec.obs_dtype)),
        "state": (spec.state_shape or (0,), np.dtype(np.float32)),
        "legal": ((n, spec.action.width), np.dtype(bool)),
        "alive": ((n,), np.dtype(bool)),
        "reward": ((n,), np.dtype(np.float32)),
        "discount": ((n,), np.dtype(np.float32)),
        "first": ((), np.dtype(bool)),
        "last": ((), np.dtype(bool)),
        "success": ((), np.dtype(np.float32)),
    }


def empty_rows(spec: Spec, envs: int) -> Rows:
    """Rows of zeros for so many environments."""
    return Rows(**{name: np.zeros((envs, *shape), dtype) for name, (shape, dtype) in layout(spec).items()})
