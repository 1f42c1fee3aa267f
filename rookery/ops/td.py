"""Temporal differences of action values."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

ILLEGAL = -1e9
"""Stands in for minus infinity: finite, so that 0 * ILLEGAL is 0."""


def take(q: Float[Array, "*b action"], action: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Value of the chosen action."""
    # By comparing, not by index: the gradient of an index is a scatter, which CPUs do one number at a time.
    return jnp.sum(jnp.where(action[..., None] == np.arange(q.shape[-1]), q, 0.0), axis=-1)


def only_legal(q: Float[Array, "*b action"], legal: Bool[Array, "*b action"]) -> Float[Array, "*b action"]:
    """Values with illegal actions out of any argmax's reach."""
    return jnp.where(legal, q, ILLEGAL)


def next_values(
    q_target: Float[Array, "*b action"],
    q_online: Float[Array, "*b action"],
    legal: Bool[Array, "*b action"],
    *,
    double: bool,
) -> Float[Array, "*b"]:
    """Target value of the best legal action, chosen by the online values if `double` (van Hasselt 2016)."""
    chooser = q_online if double else q_target
    return take(q_target, jnp.argmax(only_legal(chooser, legal), axis=-1))


def squared(error: Float[Array, "*b"], linear_from: float) -> Float[Array, "*b"]:
    """The squared error; beyond `linear_from` its tangent, which is twice Huber's loss. 0: squared everywhere."""
    if not linear_from:
        return error**2
    size = jnp.abs(error)
    return jnp.where(size <= linear_from, error**2, linear_from * (2.0 * size - linear_from))
