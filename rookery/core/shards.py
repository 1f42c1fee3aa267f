"""Shards: a run divided into shares that learn together.

Each shard has its share of the environments (and of the replay store); all have the same weights. Sums over a batch are
sums over all shards, so every shard takes the same gradient step. Shards with a device each run in parallel; otherwise
they are one more batch axis. A run with one shard compiles to a program without any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rookery.core.types import Mean

AXIS = "shard"
_jax: Any = jax  # not all of it is fully typed


def several() -> bool:
    """Whether what is being traced is one of several shards."""
    try:
        return jax.lax.axis_size(AXIS) > 1
    except NameError:
        return False


def total(tree: Any) -> Any:
    """Sum over all shards."""
    if not several():
        return tree
    # As one array: every sum is a meeting of all devices.
    flat, restore = ravel_pytree(tree)
    return restore(_jax.lax.psum(flat, AXIS))


def mean(m: Mean) -> Float[Array, ""]:
    """The mean over all shards."""
    return total(m).value


def mean_gradient(loss: Callable[[Any], tuple[Mean, Any]], at: Any) -> tuple[Any, Any]:
    """Gradient of a loss that is a mean over the batches of all shards, and the auxiliary outputs of `loss`."""

    def alone(at: dict[str, Any]) -> tuple[dict[str, Mean], Any]:
        found, more = loss(at["all"])
        return {"all": found}, more

    grads, more = mean_gradients(alone, {"all": at})
    return grads["all"], more


def mean_gradients(
    loss: Callable[[dict[str, Any]], tuple[dict[str, Mean], Any]], at: dict[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Gradients of losses over the batches of all shards, one mean for each group of weights, and auxiliary outputs.

    A group's weights must not be read by another group's loss. Gradients of sums are divided afterwards, so that shards
    meet only once.
    """

    def summed(at: dict[str, Any]) -> tuple[Any, tuple[dict[str, Any], Any]]:
        found, more = loss(at)
        return sum(mean.total for mean in found.values()), ({name: found[name].weight for name in at}, more)

    grads, (weights, more) = _jax.grad(summed, has_aux=True)(at)
    flat = {name: ravel_pytree(tree) for name, tree in grads.items()}
    sums, weights = total(({name: vector for name, (vector, _) in flat.items()}, weights))
    return {name: restore(sums[name] / jnp.maximum(weights[name], 1e-9)) for name, (_, restore) in flat.items()}, more


def own(key: Array) -> Array:
    """A key that no other shard has."""
    return jax.random.fold_in(key, jax.lax.axis_index(AXIS)) if several() else key


def joined(tree: Any) -> Any:
    """Arrays of all shards, one after the other along the first axis."""
    if not several():
        return tree

    def join(x: Array) -> Array:
        return _jax.lax.all_gather(x, AXIS, tiled=True)

    return jax.tree.map(join, tree)
