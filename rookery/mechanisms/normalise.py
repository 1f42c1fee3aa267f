"""Running statistics that bring values to mean 0 and deviation 1."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core import shards
from rookery.core.types import Mean


class Running(eqx.Module):
    """Exponential means of x and x squared, with the weight they have gathered so far."""

    mean: Float[Array, ""]
    square: Float[Array, ""]
    weight: Float[Array, ""]


def fresh() -> Running:
    return Running(jnp.float32(0), jnp.float32(0), jnp.float32(0))


def track(s: Running, x: Array, where: Array, memory: float) -> Running:
    """Take in the entries of `x` that `where` selects, of all shards of the run; `memory` is the share kept."""
    first, second = shards.total((Mean.of(x, where), Mean.of(x**2, where)))
    mean, square = first.value, second.value
    new = jnp.where(first.weight > 0, 1.0 - memory, 0.0)
    return Running(
        s.mean + new * (mean - s.mean), s.square + new * (square - s.square), s.weight + new * (1.0 - s.weight)
    )


def moments(s: Running) -> tuple[Array, Array]:
    """Debiased mean and standard deviation; (0, 1) before anything was seen."""
    known = jnp.maximum(s.weight, 1e-6)
    mean = s.mean / known
    std = jnp.sqrt(jnp.maximum(s.square / known - mean**2, 1e-2))
    return jnp.where(s.weight > 0, mean, 0.0), jnp.where(s.weight > 0, std, 1.0)


def normalise(s: Running, x: Array) -> Array:
    mean, std = moments(s)
    return (x - mean) / std


def denormalise(s: Running, x: Array) -> Array:
    mean, std = moments(s)
    return x * std + mean
