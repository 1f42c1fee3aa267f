"""The data of one gradient step of the actor-critic families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.types import Action, Carry, Collect, Extra, Packed, Step
from rookery.ops import batches

S = TypeVar("S")
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


@dataclass(frozen=True)
class Passes:
    """How often, and in what minibatches, a rollout is learned from."""

    epochs: int
    minibatches: int
    advantages: Literal["rollout", "minibatch", "raw"]
    """Over what advantages are normalized."""

    def normalized(
        self, advantage: Float[Array, "time env agent"], active: Bool[Array, "time env agent"]
    ) -> Float[Array, "time env agent"]:
        """The advantages of a rollout; those that are normalized in minibatches are left as they are."""
        whole = self.advantages == "rollout" or (self.advantages == "minibatch" and self.minibatches == 1)
        return batches.standardise(advantage, active) if whole else advantage

    def steps(self, batch: Batch, key: Array) -> tuple[Int[Array, "step part"], Float[Array, "step row part agent"]]:
        """Sequences and advantages of every gradient step."""
        order = batches.epochs(key, self.epochs, self.minibatches, batch.filled.shape[1])
        normalized = self.advantages == "minibatch" and self.minibatches > 1
        return order, batches.minibatch_advantages(batch.advantage, batch.active, order, normalized=normalized)

    def take(
        self,
        step: Callable[[S, Batch, Carries], tuple[S, Packed]],
        state: S,
        batch: Batch,
        carries: Carries,
        key: Array,
    ) -> tuple[S, Packed]:
        """The state after all gradient steps, and the metrics of each."""

        def whole(state: S, _: None) -> tuple[S, Packed]:
            return step(state, batch, carries)

        def minibatch(state: S, now: tuple[Array, Array]) -> tuple[S, Packed]:
            chosen, advantage = now
            picked, starts = pick(batch, carries, chosen)
            return step(state, eqx.tree_at(lambda b: b.advantage, picked, advantage), starts)

        if self.minibatches == 1:
            return jax.lax.scan(whole, state, None, length=self.epochs)
        return jax.lax.scan(minibatch, state, self.steps(batch, key))


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
