"""Maths of variational autoencoders (Kingma and Welling 2014), and of values of any size as inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def kl_to_normal(mean: Float[Array, "dim"], log_var: Float[Array, "dim"]) -> Float[Array, ""]:
    """KL divergence of N(mean, exp(log_var)) from N(0, 1), summed over dimensions."""
    return 0.5 * jnp.sum(jnp.exp(log_var) + jnp.square(mean) - 1.0 - log_var)


def sample(key: Array, mean: Float[Array, "*b dim"], log_var: Float[Array, "*b dim"]) -> Float[Array, "*b dim"]:
    """A draw that gradients pass through."""
    return mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)


def symlog(x: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """sign(x) log(1 + |x|): values of any size as what a network can read or predict (Hafner et al. 2023)."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))
