"""The data of one gradient step of the actor-critic families."""

from __future__ import annotations

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.types import Action, Carry, Collect, Extra, Step

Carries = tuple[Carry, Array]
"""The actor's and the critic's, at the start of each sequence [sequence, ...]."""


class Batch(eqx.Module):
    """Sequences [row, sequence, ...]."""

    step: Step
    action: Action
    extra: Extra
    advantage: Float[Array, "row sequence agent"]
    target: Float[Array, "row sequence agent"]
    value: Float[Array, "row sequence viewer"]
    filled: Bool[Array, "row sequence"]

    @property
    def active(self) -> Bool[Array, "row sequence agent"]:
        """Transitions that a living agent chose."""
        return self.filled[..., None] & self.step.alive


def pick(batch: Batch, carries: Carries, chosen: Int[Array, "part"]) -> tuple[Batch, Carries]:
    """Some of the sequences."""
    return jax.tree.map(lambda x: x[:, chosen], batch), jax.tree.map(lambda x: x[chosen], carries)


def sequences_of(collect: Collect, length: int, rows: int, minibatches: int) -> int:
    """Sequences of `rows` rows in a rollout of `length` transitions; refuses what cannot be divided evenly."""
    if length % rows:
        raise ConfigError(f"algo.bptt_length ({rows}) must divide the {length} transitions of a rollout.")
    if collect.replicated:
        raise ConfigError(
            f"{collect.shards} shards need several environments: PPO has no replay store to divide. Raise "
            "algo.collect.envs."
        )
    sequences = collect.envs * (length // rows)
    if sequences % (minibatches * collect.shards):
        raise ConfigError(
            f"{sequences} sequences (algo.collect.envs {collect.envs} x {length // rows}) cannot be "
            f"split into {minibatches} equal minibatches of {collect.shards} equal shards; change "
            "algo.minibatches or algo.collect.shards."
        )
    return sequences
