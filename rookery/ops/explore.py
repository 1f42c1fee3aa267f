"""Choosing actions at random."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.ops.td import only_legal


def epsilon_greedy(
    key: Array, q: Float[Array, "*b action"], legal: Bool[Array, "*b action"], epsilon: Float[Array, ""]
) -> Int[Array, "*b"]:
    """The best legal action, or with probability epsilon a uniform legal one.

    One draw per action decides both: the largest of iid uniforms over legal actions is a uniform legal action, and
    whether to explore is an independent draw.
    """
    which, whether = jax.random.split(key)
    noise = jax.random.uniform(which, q.shape)
    explore = jax.random.uniform(whether, q.shape[:-1]) < epsilon
    scores = jnp.where(explore[..., None], noise, q)
    return jnp.argmax(only_legal(scores, legal), axis=-1).astype(jnp.int32)
