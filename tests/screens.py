"""A compiled task whose observations are stacks of frames, as Atari's are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt8

from rookery.core.registry import TASK_FAMILIES, family
from rookery.core.types import Action, ActionSpec, Spec, Step

FRAMES = 4


class ScreensState(eqx.Module):
    stack: UInt8[Array, "h w frame"]
    t: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Screens:
    """Half of each frame is bright, and pressing the button of that half is rewarded."""

    family: Literal["screens"] = "screens"
    size: int = 36
    """Height and width; the least that every encoder reads."""
    limit: int = 2

    @property
    def spec(self) -> Spec:
        shape = (self.size, self.size, FRAMES)
        return Spec(
            "screens", ("player",), shape, ActionSpec("discrete", (2,)), self.limit, obs_dtype="uint8", frames=FRAMES
        )

    def reset(self, key: Array) -> tuple[ScreensState, Step]:
        stack = jnp.zeros(self.spec.obs_shape, jnp.uint8)
        return self._step(stack, jnp.int32(0), jnp.float32(0), jnp.bool_(True), key)

    def step(self, state: ScreensState, action: Action, key: Array) -> tuple[ScreensState, Step]:
        bright = (state.stack[0, 0, -1] == 0).astype(jnp.int32)
        reward = (action[0] == bright).astype(jnp.float32)
        return self._step(state.stack, state.t + 1, reward, jnp.bool_(False), key)

    def _step(
        self, stack: Array, t: Array, reward: Array, first: Bool[Array, ""], key: Array
    ) -> tuple[ScreensState, Step]:
        right = jax.random.bernoulli(key)
        half = jnp.arange(self.size) >= self.size // 2
        row = jnp.where(half == right, 255, 0).astype(jnp.uint8)
        frame = jnp.broadcast_to(row[None, :, None], (self.size, self.size, 1))
        stack = jnp.concatenate([stack[..., 1:], frame], axis=-1)
        step = Step(
            obs=stack[None],
            state=jnp.zeros(0),
            legal=jnp.ones((1, 2), bool),
            alive=jnp.ones(1, bool),
            reward=reward[None],
            discount=jnp.ones(1),
            first=first,
            last=t >= self.limit,
            success=jnp.float32(0),
        )
        return ScreensState(stack, t), step
