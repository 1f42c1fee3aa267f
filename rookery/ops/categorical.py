"""Distributions of returns on fixed atoms (C51, Bellemare et al. 2017)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def support(low: float, high: float, atoms: int) -> Float[np.ndarray, "atom"]:
    """Evenly spaced returns."""
    return np.linspace(low, high, atoms, dtype=np.float32)


def project(
    p: Float[Array, "*b atom"], z: Float[Array, "*b atom"], atoms: Float[np.ndarray, "atom"]
) -> Float[Array, "*b atom"]:
    """Probabilities `p` of returns `z` as probabilities of `atoms`.

    Each goes to its two neighbors, the nearer the more; what lies outside goes to the outermost atom.
    """
    z = jnp.clip(z, atoms[0], atoms[-1])
    share = jnp.clip(1.0 - jnp.abs(z[..., None, :] - atoms[:, None]) / (atoms[1] - atoms[0]), 0.0, 1.0)
    return jnp.sum(share * p[..., None, :], axis=-1)


def cross_entropy(p: Float[Array, "*b atom"], logits: Float[Array, "*b atom"]) -> Float[Array, "*b"]:
    """Of the distribution that `logits` describe, relative to `p`."""
    return -jnp.sum(p * jax.nn.log_softmax(logits), axis=-1)
