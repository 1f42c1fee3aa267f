"""One general store: a ring of equal items, written in place, sampled by gather."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def empty(item: Any, capacity: int) -> Any:
    """A store for `capacity` items like `item` (arrays or shapes), in their own dtypes."""
    return jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), item)


def add(store: Any, items: Any, position: Int[Array, ""]) -> Any:
    """Write `n` items [n, ...] from slot `position` on; n must divide the capacity, so that no write wraps."""
    return jax.tree.map(lambda s, x: jax.lax.dynamic_update_slice_in_dim(s, x, position, axis=0), store, items)


def slot(iteration: Int[Array, ""], n: int, capacity: int) -> Int[Array, ""]:
    """Where the `iteration`-th group of `n` items goes."""
    return (iteration % (capacity // n)) * n


def filled(iteration: Int[Array, ""], n: int, capacity: int) -> Int[Array, ""]:
    """Items in the store after the `iteration`-th group (from 0) was added."""
    return jnp.minimum(iteration + 1, capacity // n) * n


def sample(store: Any, key: Array, batch: int, stored: Int[Array, ""]) -> Any:
    """`batch` items drawn uniformly, with replacement."""
    index = jax.random.randint(key, (batch,), 0, stored)
    return jax.tree.map(lambda s: s[index], store)
