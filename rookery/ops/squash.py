"""Gaussians squashed by tanh: the policies of soft actor-critic on a box of -1 to 1 (Haarnoja et al. 2018)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


def sample(
    key: Array, mean: Float[Array, "*b dim"], log_std: Float[Array, "*b dim"]
) -> tuple[Float[Array, "*b dim"], Float[Array, "*b dim"]]:
    """tanh(x) with x ~ N(mean, std), and the log-density of each of its dimensions; differentiable in both arguments.

    `log_std` is limited smoothly: a hard limit has no gradient beyond it.
    """
    log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (jnp.tanh(log_std) + 1.0)
    noise = jax.random.normal(key, mean.shape)
    x = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(x)^2), in a form that neither overflows nor loses all digits for large x.
    log_slope = 2.0 * (jnp.log(2.0) - x - jax.nn.softplus(-2.0 * x))
    return jnp.tanh(x), log_normal - log_slope
