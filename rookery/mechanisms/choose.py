"""How a memory agent chooses actions from the values that it read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.keys import stream
from rookery.mechanisms.frontier import FAR
from rookery.nets.optimiser import Schedule
from rookery.ops.explore import weighted
from rookery.ops.td import only_legal


@dataclass(frozen=True)
class Act:
    """How actions are chosen."""

    epsilon: Schedule = field(default_factory=lambda: Schedule(0.03, 0.03))
    """Probability of an exploring action while collecting."""
    explore: Literal["uniform", "unseen", "frontier"] = "uniform"
    """Exploring actions: any legal one, or those without a value here first (the best one where all have a value).
    unseen also prefers them among equally good actions; frontier then prefers actions that lead toward the nearest node
    of the graph with an untried action. An action without a value counts as 0."""

    def choose(
        self,
        key: Array,
        q: Float[Array, "env action"],
        known: Bool[Array, "env action"],
        legal: Bool[Array, "env action"],
        epsilon: Float[Array, ""] | None,
        steps: Int[Array, "env action"] | None = None,
    ) -> Int[Array, "env"]:
        """Actions; ties are broken at random. Without epsilon: the best ones. `steps` lead to what is untried."""
        q = only_legal(jnp.where(known, q, 0.0), legal)
        best = legal & (q == jnp.max(q, axis=-1, keepdims=True))
        if epsilon is None:
            return weighted(stream(key, "best"), best.astype(jnp.float32))
        other = legal
        if self.explore != "uniform":
            far = jnp.where(best, jnp.where(known, 1 if steps is None else steps, 0), FAR)
            best = best & (far == jnp.min(far, axis=-1, keepdims=True))
            other = _prefer(legal & ~known, best)
        explores = jax.random.uniform(stream(key, "whether"), best.shape[:1]) < epsilon
        options = jnp.where(explores[:, None], other, best)
        return weighted(stream(key, "which"), options.astype(jnp.float32))


def _prefer(a: Bool[Array, "env action"], b: Bool[Array, "env action"]) -> Bool[Array, "env action"]:
    """`a` where it has any action, else `b`."""
    return jnp.where(jnp.any(a, axis=-1, keepdims=True), a, b)
