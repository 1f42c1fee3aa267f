"""Target networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rookery.core.ranges import Count, Fraction

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """The slow copy of the weights that bootstrap targets are computed from."""

    every: Count = 200
    """Gradient steps between two refreshes."""
    tau: Fraction = 1.0
    """Polyak coefficient of a refresh; 1 is a hard copy."""

    def refresh(self, target: T, online: T, updates: Int[Array, ""]) -> T:
        """The target weights after the `updates`-th gradient step."""
        weight = jnp.where(updates % self.every == 0, self.tau, 0.0)
        return jax.tree.map(lambda new, old: weight * new + (1.0 - weight) * old, online, target)
