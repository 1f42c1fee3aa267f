"""A compiled task whose observations are images: for presets with convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rookery.core.types import Action, ActionSpec, Spec, Step


class PicturesState(eqx.Module):
    t: Int[Array, ""]


@dataclass(frozen=True)
class Pictures:
    """Noise; the second action is worth 1. The smallest image that DQN's convolutions read, unless told otherwise."""

    family: Literal["test-pictures"] = "test-pictures"
    size: int = 36
    channels: int = 1
    limit: int = 3

    @property
    def spec(self) -> Spec:
        shape = (self.size, self.size, self.channels)
        return Spec("test/pictures", ("agent",), shape, ActionSpec("discrete", (3,)), self.limit, obs_dtype="uint8")

    def reset(self, key: Array) -> tuple[PicturesState, Step]:
        return self._seen(jnp.int32(0), jnp.float32(0), key)

    def step(self, state: PicturesState, action: Action, key: Array) -> tuple[PicturesState, Step]:
        return self._seen(state.t + 1, jnp.float32(action[0] == 1), key)

    def _seen(self, t: Array, reward: Array, key: Array) -> tuple[PicturesState, Step]:
        obs = jax.random.bits(key, (1, *self.spec.obs_shape), jnp.uint8)
        ones, legal = jnp.ones(1), jnp.ones((1, 3), bool)
        first, last = t == 0, t == self.limit
        step = Step(obs, jnp.zeros(0), legal, ones > 0, ones * reward, ones, first, last, jnp.float32(0))
        return PicturesState(t), step
