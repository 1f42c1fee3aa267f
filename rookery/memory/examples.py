"""A ring of single examples (observation, action, target) for gradient steps of a memory's encoder (NEC's replay)."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Examples(eqx.Module):
    """The newest examples; `count` were added in all."""

    obs: Array
    """[capacity, ...]"""
    action: Int[Array, "capacity"]
    target: Float[Array, "capacity"]
    count: Int[Array, ""]


def empty(obs: jax.ShapeDtypeStruct, capacity: int) -> Examples:
    """A store without examples, for observations of this shape."""
    action, target = jnp.zeros(capacity, jnp.int32), jnp.zeros(capacity)
    return Examples(jnp.zeros((capacity, *obs.shape), obs.dtype), action, target, jnp.int32(0))


def add(
    store: Examples, obs: Array, action: Int[Array, "row"], target: Float[Array, "row"], where: Bool[Array, "row"]
) -> Examples:
    """The store with the rows that `where` selects, over the oldest ones."""
    capacity = store.action.shape[0]
    slot = jnp.where(where, (store.count + jnp.cumsum(where) - 1) % capacity, capacity)
    return Examples(
        store.obs.at[slot].set(obs, mode="drop"),
        store.action.at[slot].set(action, mode="drop"),
        store.target.at[slot].set(target, mode="drop"),
        store.count + jnp.sum(where, dtype=jnp.int32),
    )


def draw(store: Examples, batch: int, key: Array) -> tuple[Array, Int[Array, "batch"], Float[Array, "batch"]]:
    """Uniform observations, actions and targets, with replacement."""
    stored = jnp.clip(store.count, 1, store.action.shape[0])
    index = jax.random.randint(key, (batch,), 0, stored)
    return store.obs[index], store.action[index], store.target[index]
