"""The preset `random`: legal actions at random, and nothing is learned. `host.py` imports this file into its runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rookery.core.errors import ConfigError
from rookery.core.registry import ALGORITHMS, PRESETS, family
from rookery.core.types import Action, Arrays, Carry, Clock, Collect, Extra, Metrics, Rollout, Spec, Step


class Played(eqx.Module):
    """The least that a state can be."""

    rollouts: Int[Array, ""]


@family(ALGORITHMS)
@dataclass(frozen=True)
class Random:
    """Uniformly random discrete actions."""

    family: Literal["random"] = "random"
    collect: Collect = field(default_factory=lambda: Collect(envs=16, length=32))

    def check(self, spec: Spec) -> None:
        """Discrete actions only."""
        if spec.action.kind != "discrete":
            raise ConfigError(f"random play is written for discrete actions, and {spec.name} has others.")

    def init(self, spec: Spec, key: Array) -> Played:
        """No rollouts yet."""
        return Played(jnp.int32(0))

    def policy(self, state: Played) -> Arrays:
        """What there is."""
        return state

    def snapshot(self, state: Played) -> Arrays:
        """What there is."""
        return state

    def stores(self, state: Played) -> Arrays:
        """None."""
        return ()

    def carry(self, spec: Spec, envs: int) -> Carry:
        """None."""
        return ()

    def carry_interval(self, spec: Spec) -> int:
        """None."""
        return 0

    def act(
        self, spec: Spec, policy: Arrays, carry: Carry, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Carry, Action, Extra]:
        """One of the legal actions."""
        return carry, jax.random.categorical(key, jnp.where(step.legal, 0.0, -jnp.inf)), {}

    def update(self, spec: Spec, state: Played, rollout: Rollout, clock: Clock, key: Array) -> tuple[Played, Metrics]:
        """One more rollout."""
        return Played(state.rollouts + 1), {}

    def shard(self) -> Random:
        """The same with a share of the environments."""
        return replace(self, collect=self.collect.shard())

    def warmup(self) -> int:
        """None."""
        return 0

    def small(self) -> Random:
        """The same with few environments."""
        return replace(self, collect=Collect(envs=2, length=4))


PRESETS["random"] = Random()
