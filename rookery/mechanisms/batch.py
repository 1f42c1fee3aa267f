"""The data of one gradient step of the actor-critic families."""

from __future__ import annotations

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int

from rookery.core.types import Action, Carry, Extra, Step

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
