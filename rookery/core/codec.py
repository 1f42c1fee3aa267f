"""Between one environment in numpy and the padded arrays of agents: what a policy outside of an engine needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rookery.core.errors import ConfigError
from rookery.core.types import Spec


@runtime_checkable
class Codec(Protocol):
    """How what an environment returns is written into arrays, and what it takes is made of them."""

    @property
    def legal(self) -> np.ndarray:
        """[agent, action], where nothing else is said."""
        ...

    def encode(self, agent: int, seen: Any, obs: np.ndarray, legal: np.ndarray) -> None:
        """Write what an agent observes into its row of zeros, and the mask in it, if there is one, into `legal`."""
        ...

    def decode(self, agent: int, action: Any) -> Any:
        """An agent's padded action as its environment takes it."""
        ...


@dataclass(frozen=True)
class Padded:
    """See `Codec`: observations and actions are arrays already, but for padding."""

    spec: Spec

    @property
    def legal(self) -> np.ndarray:
        """All real actions. The branches of each agent are not known, so all of theirs are."""
        width, sizes = self.spec.action.width, self._sizes()
        return np.arange(width) < np.asarray(sizes)[:, None]

    def encode(self, agent: int, seen: Any, obs: np.ndarray, legal: np.ndarray) -> None:
        """Write an observation into the beginning of its row."""
        array = np.asarray(seen)
        if array.ndim != obs.ndim or any(n > m for n, m in zip(array.shape, obs.shape, strict=True)):
            name, shape = self.spec.agents[agent], self.spec.obs_shape
            raise ConfigError(f"the observation of {name} has shape {array.shape}; {self.spec.name} has {shape}.")
        obs[tuple(slice(n) for n in array.shape)] = array

    def decode(self, agent: int, action: Any) -> Any:
        """The action without its padding."""
        return action[: self._sizes()[agent]] if self.spec.action.kind in ("box", "multi_binary") else action

    def _sizes(self) -> tuple[int, ...]:
        branches = self.spec.action.kind == "multi_discrete"
        return (() if branches else self.spec.action_sizes) or (self.spec.action.width,) * self.spec.n_agents
