"""A run in parts that learn as one.

Each part has its share of the environments (and of what is replayed); all have the same weights. What is summed over
a batch is summed over all parts, so that they take the same gradient steps. Parts that have a device each run at once;
otherwise they are one more batch axis. In a run of one part nothing of this is in the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rookery.core.types import Mean

AXIS = "part"
_jax: Any = jax  # not all of it is fully typed


def several() -> bool:
    """Whether what is being traced is one of several parts."""
    try:
        return jax.lax.axis_size(AXIS) > 1
    except NameError:
        return False


def total(tree: Any) -> Any:
    """Sum over all parts."""
    if not several():
        return tree
    # As one array: every sum is a meeting of all devices.
    flat, restore = ravel_pytree(tree)
    return restore(_jax.lax.psum(flat, AXIS))


def mean(m: Mean) -> Float[Array, ""]:
    """The mean over all parts."""
    return total(m).value


def mean_gradient(loss: Callable[[Any], tuple[Mean, Any]], at: Any) -> tuple[Any, Any]:
    """Gradient of a loss that is a mean over the batches of all parts, and what else `loss` found.

    The gradient of the sum is divided afterwards, so that the parts meet once: whoever is first waits for the others.
    """

    def summed(at: Any) -> tuple[Any, tuple[Any, Any]]:
        found, more = loss(at)
        return found.total, (found.weight, more)

    grads, (weight, more) = _jax.grad(summed, has_aux=True)(at)
    flat, restore = ravel_pytree(grads)
    flat, weight = total((flat, weight))
    return restore(flat / jnp.maximum(weight, 1e-9)), more


def own(key: Array) -> Array:
    """A key that no other part has."""
    return jax.random.fold_in(key, jax.lax.axis_index(AXIS)) if several() else key


def joined(tree: Any) -> Any:
    """Arrays of all parts, one after the other along the first axis."""
    if not several():
        return tree

    def join(x: Array) -> Array:
        return _jax.lax.all_gather(x, AXIS, tiled=True)

    return jax.tree.map(join, tree)
