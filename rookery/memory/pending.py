"""Rows that wait for their n-step target: a ring of the last n transitions of every environment.

A target is complete n transitions after its state, or at the episode's end, whichever comes first. Nothing as long as
an episode is kept, and a step costs the same whenever it comes:

    ring, due = pending.step(ring, row, now, drain)    # one transition of every environment
    memory = write(memory, due)                           # at most `drain` rows of each environment

With `drain` below n, an episode's end completes more targets than are written at once; the rest follow in the next
steps, oldest first. A slot is used again n transitions later, by when its row has been written at any `drain`.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.types import Arrays


class Ring(eqx.Module):
    """Transitions whose targets are not complete, or not written."""

    kept: Arrays
    """[n, env, ...] what the caller wants back with the target."""
    action: Int[Array, "n env"]
    total: Float[Array, "n env"]
    """Discounted rewards so far."""
    tail: Float[Array, "n env"]
    """The discounted value that the target ends with; set when it is complete."""
    discount: Float[Array, "n env"]
    """Of the next reward."""
    open: Bool[Array, "n env"]
    """More rewards are to come."""
    waits: Bool[Array, "n env"]
    """Not written yet."""


class Row(eqx.Module):
    """One transition of every environment."""

    kept: Arrays
    """[env, ...]"""
    action: Int[Array, "env"]
    reward: Float[Array, "env"]
    discount: Float[Array, "env"]
    """gamma, or 0 where the action terminated."""
    value: Float[Array, "env"]
    """Of the row that the action led to: what a cut target is bootstrapped from."""
    last: Bool[Array, "env"]
    """The episode ends with it: terminated or cut."""
    filled: Bool[Array, "env"]
    """It is a transition; not the reset after a last row."""


class Due(eqx.Module):
    """Rows to be written now, oldest first."""

    kept: Arrays
    action: Int[Array, "row"]
    rewards: Float[Array, "row"]
    """The target without what it is bootstrapped from."""
    target: Float[Array, "row"]
    where: Bool[Array, "row"]


def empty(kept: Arrays, n: int, envs: int) -> Ring:
    """A ring without rows. `kept` is laid out as [env, ...]."""
    slots = (n, envs)

    def zeros(x: Array) -> Array:
        return jnp.zeros((n, *x.shape), x.dtype)

    return Ring(
        kept=jax.tree.map(zeros, kept),
        action=jnp.zeros(slots, jnp.int32),
        total=jnp.zeros(slots),
        tail=jnp.zeros(slots),
        discount=jnp.zeros(slots),
        open=jnp.zeros(slots, bool),
        waits=jnp.zeros(slots, bool),
    )


def step(ring: Ring, row: Row, now: Int[Array, ""], drain: int) -> tuple[Ring, Due]:
    """The ring after one transition of every environment, and the rows whose targets are written now."""
    n, envs = ring.action.shape
    slot = now % n

    def put(x: Array, new: Array) -> Array:
        return x.at[slot].set(new)

    kept = jax.tree.map(put, ring.kept, row.kept)
    action, waits = put(ring.action, row.action), put(ring.waits, row.filled)
    open_ = put(ring.open, row.filled)
    total, discount = put(ring.total, jnp.zeros(envs)), put(ring.discount, jnp.ones(envs))
    total = total + jnp.where(open_, discount * row.reward, 0.0)
    discount = jnp.where(open_, discount * row.discount, 0.0)
    full = (np.arange(n) == (slot + 1) % n)[:, None]
    complete = open_ & (full | row.last)
    # where(), not a product: no value is asked of a terminal state.
    tail = jnp.where(complete, jnp.where(discount > 0, discount * row.value, 0.0), ring.tail)
    open_ = open_ & ~complete
    at = _oldest(waits & ~open_, slot, drain)
    taken = at < n
    pick = (jnp.minimum(at, n - 1), np.arange(envs)[None])
    rewards = _rows(total[pick])
    target = rewards + _rows(tail[pick])
    due = Due(jax.tree.map(lambda x: _rows(x[pick]), kept), _rows(action[pick]), rewards, target, _rows(taken))
    waits = waits.at[at, pick[1]].set(False, mode="drop")
    return Ring(kept, action, total, tail, discount, open_, waits), due


def forget(ring: Ring, env: Bool[Array, "env"]) -> Ring:
    """The ring without the open rows of these environments: their episodes will not go on."""
    return eqx.tree_at(lambda r: (r.open, r.waits), ring, (ring.open & ~env, ring.waits & ~(ring.open & env)))


def _oldest(ready: Bool[Array, "n env"], slot: Int[Array, ""], drain: int) -> Int[Array, "drain env"]:
    """Slots of the oldest ready rows of each environment; n where there are fewer."""
    n = ready.shape[0]
    age = (slot - np.arange(n)) % n
    least, at = jax.lax.top_k(jnp.where(ready, age[:, None], -1).T, min(drain, n))
    return jnp.where(least >= 0, at, n).T


def _rows(x: Array) -> Array:
    """[drain, env, ...] as rows."""
    return x.reshape(-1, *x.shape[2:])
