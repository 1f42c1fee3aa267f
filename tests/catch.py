"""A game of frames that is learned in seconds: catch a ball that falls at a slant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt8

from rookery.core.keys import stream
from rookery.core.registry import TASK_FAMILIES, family
from rookery.core.types import Action, ActionSpec, Spec, Step

FRAMES = 4
CELLS = 4
"""Rows and columns; the ball falls one row with each step, and the paddle in the last row moves one column."""
PIXELS = 9
"""Height and width of a cell: 36 x 36 pixels are the least that every encoder reads."""


class CatchState(eqx.Module):
    stack: UInt8[Array, "h w frame"]
    ball: Int[Array, ""]
    """Column; its row is the time."""
    drift: Int[Array, ""]
    """Columns that the ball moves with each row. It is reflected at the walls. One frame does not show it."""
    paddle: Int[Array, ""]
    t: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Catch:
    """1 if the paddle is where the ball comes down, else -1. Whoever sees the drift is there in time, always."""

    family: Literal["catch"] = "catch"

    @property
    def spec(self) -> Spec:
        shape = (CELLS * PIXELS, CELLS * PIXELS, FRAMES)
        action = ActionSpec("discrete", (3,))
        return Spec("catch", ("player",), shape, action, CELLS - 1, obs_dtype="uint8", frames=FRAMES)

    def reset(self, key: Array) -> tuple[CatchState, Step]:
        ball = jax.random.randint(stream(key, "ball"), (), 0, CELLS)
        drift = jax.random.randint(stream(key, "drift"), (), -1, 2)
        empty = jnp.zeros(self.spec.obs_shape, jnp.uint8)
        return _seen(CatchState(empty, ball, drift, jnp.int32(CELLS // 2), jnp.int32(0)), jnp.bool_(True))

    def step(self, state: CatchState, action: Action, key: Array) -> tuple[CatchState, Step]:
        to = state.ball + state.drift
        drift = jnp.where((to < 0) | (to >= CELLS), -state.drift, state.drift)
        paddle = jnp.clip(state.paddle + action[0] - 1, 0, CELLS - 1).astype(jnp.int32)
        return _seen(CatchState(state.stack, state.ball + drift, drift, paddle, state.t + 1), jnp.bool_(False))


def _seen(state: CatchState, first: Bool[Array, ""]) -> tuple[CatchState, Step]:
    """The state with one more frame, and what the player sees and got."""
    cells = jnp.zeros((CELLS, CELLS), jnp.uint8).at[CELLS - 1, state.paddle].set(128).at[state.t, state.ball].set(255)
    frame = jnp.repeat(jnp.repeat(cells, PIXELS, axis=0), PIXELS, axis=1)
    stack = jnp.concatenate([state.stack[..., 1:], frame[..., None]], axis=-1)
    down = state.t == CELLS - 1
    step = Step(
        obs=stack[None],
        state=jnp.zeros(0),
        legal=jnp.ones((1, 3), bool),
        alive=jnp.ones(1, bool),
        reward=jnp.where(down, jnp.where(state.ball == state.paddle, 1.0, -1.0), 0.0)[None],
        discount=jnp.where(down, 0.0, 1.0)[None],
        first=first,
        last=down,
        success=jnp.float32(0),
    )
    return eqx.tree_at(lambda s: s.stack, state, stack), step
