"""A run in parts that learn as one.

Each part has its share of the environments (and of what is replayed); all have the same weights. What is summed over
a batch is summed over all parts, so that they take the same gradient steps. Parts that have a device each run at once;
otherwise they are one more batch axis. In a run of one part nothing of this is in the program.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rookery.core.types import Mean

AXIS = "part"
_lax: Any = jax.lax  # its collectives are not fully typed


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
    return restore(_lax.psum(flat, AXIS))


def mean(m: Mean) -> Float[Array, ""]:
    """The mean over all parts."""
    return total(m).value


def share(m: Mean) -> Float[Array, ""]:
    """What this part adds to the mean over all parts; the gradients of these shares add up to that of the mean."""
    return Mean(m.total, total(m.weight)).value


def own(key: Array) -> Array:
    """A key that no other part has."""
    return jax.random.fold_in(key, jax.lax.axis_index(AXIS)) if several() else key


def joined(tree: Any) -> Any:
    """Arrays of all parts, one after the other along the first axis."""
    if not several():
        return tree

    def join(x: Array) -> Array:
        return _lax.all_gather(x, AXIS, tiled=True)

    return jax.tree.map(join, tree)
