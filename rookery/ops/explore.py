"""Choosing actions at random."""

from __future__ import annotations

from itertools import accumulate

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.ops.td import only_legal


def epsilon_greedy(
    key: Array, q: Float[Array, "*b action"], legal: Bool[Array, "*b action"], epsilon: Float[Array, ""]
) -> Int[Array, "*b"]:
    """The best legal action, or with probability epsilon a uniform legal one."""
    which, whether = jax.random.split(key)
    explore = jax.random.uniform(whether, q.shape[:-1]) < epsilon
    best = jnp.argmax(only_legal(q, legal), axis=-1).astype(jnp.int32)
    return jnp.where(explore, weighted(which, legal.astype(jnp.float32)), best)


def weighted(key: Array, weights: Float[Array, "*b action"]) -> Int[Array, "*b"]:
    """Each action as often as its weight says; one with weight 0 never.

    The first whose running sum exceeds a share of the whole sum that is drawn. (Gumbel's trick would draw a number for
    every action, and take two logarithms of each.)
    """
    # One after the other: a weight of 0 leaves the sum exactly as it was, so that nothing can lie between the two.
    sums = list(accumulate(weights[..., i] for i in range(weights.shape[-1])))
    share = jax.random.uniform(key, weights.shape[:-1]) * sums[-1]
    passed = sum(((s <= share).astype(jnp.int32) for s in sums[:-1]), jnp.int32(0))
    return jnp.broadcast_to(passed, share.shape)
