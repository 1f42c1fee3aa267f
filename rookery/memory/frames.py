"""Frames stored once: a ring of the newest frame of every row, out of which stacks are made when they are read.

An observation that is a stack of four frames holds three that were seen before. Here every row is one frame, and the
row that closes one rollout is the row that opens the next. So a stack needs the rows before it, and a ring of rows for
each environment has them; a prefix kept with every sequence would store frames several times where sequences are short.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from rookery.core.types import Spec


class Frames(eqx.Module):
    """The newest rows of each environment."""

    frame: Array
    """[row, env, agent, *frame]"""
    first: Bool[Array, "row env"]
    """Whether an episode opens there."""

    @property
    def rows(self) -> int:
        """Rows of each environment."""
        return self.first.shape[0]


def length(rows: int, block: int, frames: int) -> int:
    """Rows of a ring that is written `block` rows at a time, and in which the newest `rows` can be read.

    The rows before the oldest of these belong to its stack, and the row after the newest closes its transition. Whole
    blocks, so that no write wraps.
    """
    return -(-(rows + frames) // block) * block


def empty(spec: Spec, rows: int, envs: int) -> Frames:
    """A ring of so many rows."""
    frame = jnp.zeros((rows, envs, spec.n_agents, *spec.frame_shape), spec.obs_dtype)
    return Frames(frame, jnp.zeros((rows, envs), bool))


def add(ring: Frames, obs: Array, first: Bool[Array, "rows env"], start: Int[Array, ""]) -> Frames:
    """The ring with the rows of a rollout, whose observations are `obs` [time + 1, env, agent, *obs].

    All but the last go to `start`, a multiple of their number or of one more; the last is the next block's first.
    """
    newest = obs[..., -ring.frame.shape[-1] :]
    end = (start + first.shape[0] - 1) % ring.rows

    def write(kept: Array, x: Array) -> Array:
        kept = jax.lax.dynamic_update_slice_in_dim(kept, x[:-1], start, axis=0)
        return jax.lax.dynamic_update_slice_in_dim(kept, x[-1:], end, axis=0)

    return Frames(write(ring.frame, newest), write(ring.first, first))


def stacks(ring: Frames, row: Int[Array, "*b"], env: Int[Array, "*b"], frames: int) -> Array:
    """Observations [*b, agent, *obs] of these rows of the ring, to the bit as they were seen."""
    back = jnp.arange(frames).reshape(-1, *[1] * row.ndim)
    at = (row - back) % ring.rows
    # A frame belongs to the stack unless an episode opened at a newer one.
    begun = jnp.cumsum(ring.first[at, env], axis=0)
    same = jnp.concatenate([jnp.ones_like(begun[:1]), (begun[:-1] == 0)]).astype(bool)
    seen = [jnp.where(_wide(same[j], ring), ring.frame[at[j], env], 0) for j in reversed(range(frames))]
    return jnp.concatenate(seen, axis=-1)


def _wide(mask: Array, ring: Frames) -> Array:
    return mask.reshape(*mask.shape, *[1] * (ring.frame.ndim - 2))
