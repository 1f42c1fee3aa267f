"""Exploration by noise on continuous actions, kept within the bounds of each dimension.

One example is one agent's action; leading axes are free. Nothing is remembered here: the state of an
Ornstein-Uhlenbeck process is an argument and a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.errors import ConfigError
from rookery.core.ranges import NonNegative, Positive

Number = float | Float[Array, ""]


def gaussian(
    key: Array,
    action: Float[Array, "*b dim"],
    std: Number | Float[Array, "dim"],
    low: Float[Array, "dim"],
    high: Float[Array, "dim"],
) -> Float[Array, "*b dim"]:
    """The action plus Gaussian noise, clipped to its bounds."""
    return jnp.clip(action + std * jax.random.normal(key, action.shape), low, high)


def smoothed(
    key: Array,
    action: Float[Array, "*b dim"],
    std: Number | Float[Array, "dim"],
    limit: Number | Float[Array, "dim"],
    low: Float[Array, "dim"],
    high: Float[Array, "dim"],
) -> Float[Array, "*b dim"]:
    """A target action plus Gaussian noise of at most `limit`, clipped to its bounds (TD3, Fujimoto et al. 2018)."""
    noise = jnp.clip(std * jax.random.normal(key, action.shape), -limit, limit)
    return jnp.clip(action + noise, low, high)


def ornstein_uhlenbeck(
    key: Array, x_tm1: Float[Array, "*b dim"], sigma: Number, theta: Number = 0.15, dt: Number = 1.0
) -> Float[Array, "*b dim"]:
    """The next state of a process that reverts to 0, by the Euler step that DDPG's implementations take.

    Its stationary variance is sigma^2 / (theta (2 - theta dt)); its autocorrelation is (1 - theta dt) per step.
    """
    return x_tm1 - theta * dt * x_tm1 + sigma * jnp.sqrt(dt) * jax.random.normal(key, x_tm1.shape)


@dataclass(frozen=True)
class Noise:
    """What is added to continuous actions while collecting."""

    kind: Literal["none", "gaussian", "ou"] = "gaussian"
    """gaussian: independent at every step; ou: an Ornstein-Uhlenbeck process that starts at 0 in every episode."""
    scale: NonNegative = 0.1
    """Size of each step's random part, in units of half the range of its dimension."""
    theta: NonNegative = 0.15
    """Share of an ou process that is lost in a time of 1."""
    dt: Positive = 1.0
    """Time between two steps of an ou process."""

    def check(self, option: str = "algo.noise") -> None:
        """Refuse a process that diverges."""
        if not 0 < self.theta * self.dt < 2:
            raise ConfigError(
                f"{option}.theta times {option}.dt must be above 0 and below 2, or the process diverges; got "
                f"{self.theta:g} and {self.dt:g}."
            )

    def carry(self, *batch: int, dim: int) -> Float[Array, "*b n"]:
        """The state of the process at the start of an episode; of length 0 without a process."""
        return jnp.broadcast_to(jnp.float32(0), (*batch, dim if self.kind == "ou" else 0))

    def add(
        self,
        key: Array,
        action: Float[Array, "*b dim"],
        carry: Float[Array, "*b n"],
        first: Bool[Array, "*#b"],
        low: Float[Array, "dim"],
        high: Float[Array, "dim"],
    ) -> tuple[Float[Array, "*b n"], Float[Array, "*b dim"]]:
        """The next carry and the noisy action; where `first`, the process starts anew."""
        half = (high - low) / 2
        if self.kind == "none":
            return carry, action
        if self.kind == "gaussian":
            return carry, gaussian(key, action, self.scale * half, low, high)
        x = ornstein_uhlenbeck(key, jnp.where(first[..., None], 0.0, carry), self.scale, self.theta, self.dt)
        return x, jnp.clip(action + half * x, low, high)
