"""Reshaping and scaling of batches of experience."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core import shards
from rookery.core.keys import stream
from rookery.core.types import Mean

_SHORT = 12
"""Bits of a number that leave enough of 32 for an order that is as good as any."""


def standardise(x: Array, where: Array) -> Array:
    """Mean 0 and deviation 1 over the entries that `where` selects, in all shards of the run."""
    centred = x - shards.mean(Mean.of(x, where))
    return centred / (jnp.sqrt(shards.mean(Mean.of(centred**2, where))) + 1e-5)


def shuffled(key: Array, count: int) -> Int[Array, "count"]:
    """The numbers below `count` in random order."""
    width = count.bit_length()
    if width > _SHORT:
        return jax.random.permutation(key, count)
    # Random bits above, the number below: CPUs sort numbers six times as fast as pairs.
    both = (jax.random.bits(key, (count,)) << width) | np.arange(count, dtype=np.uint32)
    return (jnp.sort(both) & ((1 << width) - 1)).astype(jnp.int32)


def epochs(key: Array, epochs: int, minibatches: int, count: int) -> Int[Array, "step item"]:
    """The items of every gradient step: each epoch is a random order of all of them, cut into minibatches."""

    def one(epoch: Any) -> Array:
        return shuffled(stream(key, "shuffle", epoch), count)

    order = jax.vmap(one)(np.arange(epochs, dtype=np.int32))
    return order.reshape(epochs * minibatches, -1)


def minibatch_advantages(
    advantage: Float[Array, "row item agent"],
    active: Bool[Array, "row item agent"],
    order: Int[Array, "step part"],
    *,
    normalized: bool,
) -> Float[Array, "step row part agent"]:
    """The advantages of every gradient step, each normalized over its own minibatch if asked for.

    Computed for all steps at once: shards must meet to normalize advantages, and every meeting costs time.
    """
    chosen, mask = (jnp.moveaxis(x[:, order], 1, 0) for x in (advantage, active))
    return jax.vmap(standardise)(chosen, mask) if normalized else chosen


def to_sequences(data: Any, rows: int) -> Any:
    """[time, env, ...] -> [rows, (time / rows) * env, ...]: cut time into sequences of `rows`."""

    def cut(x: Array) -> Array:
        time, env = x.shape[:2]
        x = x.reshape(time // rows, rows, env, *x.shape[2:])
        return jnp.swapaxes(x, 0, 1).reshape(rows, (time // rows) * env, *x.shape[3:])

    return jax.tree.map(cut, data)


def join_axes(tree: Any) -> Any:
    """[a, b, ...] -> [a * b, ...]."""

    def join(x: Array) -> Array:
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    return jax.tree.map(join, tree)
