"""Examples (observation, action, target) for gradient steps of a memory's encoder (NEC's replay).

Rows of every environment, with frames that are stored once (`memory.frames`). A row becomes an example when its target
is complete:

    store = examples.see(store, obs, first, now)                   # the rows of a rollout, the first of them row `now`
    store = examples.complete(store, row, action, target, where)   # of rows seen by then
    obs, action, target = examples.draw(store, batch, key, stack)
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.types import Spec
from rookery.memory import frames
from rookery.memory.frames import Frames
from rookery.memory.replay import proportional


class Examples(eqx.Module):
    """The newest rows of every environment."""

    frames: Frames
    action: Int[Array, "row env"]
    target: Float[Array, "row env"]
    ready: Bool[Array, "row env"]
    """Its target is complete, and its frames are all there."""
    count: Int[Array, ""]
    """Examples so far."""


def empty(spec: Spec, rows: int, envs: int, block: int) -> Examples:
    """A store for so many rows of each environment, which come in blocks."""
    ring = frames.empty(spec, frames.length(rows, block, spec.frames), envs)
    slots = ring.first.shape
    action, target, ready = jnp.zeros(slots, jnp.int32), jnp.zeros(slots), jnp.zeros(slots, bool)
    return Examples(ring, action, target, ready, jnp.int32(0))


def see(store: Examples, obs: Array, first: Bool[Array, "rows env"], now: Int[Array, ""]) -> Examples:
    """The store with the rows of a rollout [time + 1, env, ...], over the oldest ones; `now` is a multiple of time."""
    rows, channels = store.frames.rows, store.frames.frame.shape[-1]
    # The oldest rows that are left lose frames of their stacks.
    lost = (now + np.arange(first.shape[0] + obs.shape[-1] // channels - 1)) % rows
    ring = frames.add(store.frames, obs, first, now % rows)
    return eqx.tree_at(lambda s: (s.frames, s.ready), store, (ring, store.ready.at[lost].set(False)))


def complete(
    store: Examples,
    row: Int[Array, "n"],
    action: Int[Array, "n"],
    target: Float[Array, "n"],
    where: Bool[Array, "n"],
) -> Examples:
    """The store after targets of earlier rows became known; of each environment in turn, as `pending` returns them."""
    rows, envs = store.ready.shape
    at = (jnp.where(where, row % rows, rows), np.arange(row.shape[0]) % envs)
    return eqx.tree_at(
        lambda s: (s.action, s.target, s.ready, s.count),
        store,
        (
            store.action.at[at].set(action, mode="drop"),
            store.target.at[at].set(target, mode="drop"),
            store.ready.at[at].set(True, mode="drop"),
            store.count + jnp.sum(where, dtype=jnp.int32),
        ),
    )


def draw(
    store: Examples, batch: int, key: Array, stack: int
) -> tuple[Array, Int[Array, "batch"], Float[Array, "batch"]]:
    """Observations, actions and targets of uniform examples, with replacement."""
    envs = store.ready.shape[1]
    index = proportional(key, store.ready.reshape(-1).astype(jnp.float32), batch)
    row, env = index // envs, index % envs
    return frames.stacks(store.frames, row, env, stack), store.action[row, env], store.target[row, env]
