"""Numbers that sharing decides by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def z(rate: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """A Gaussian is outside mean +- z std with probability `rate`."""
    return jax.scipy.special.ndtri(1.0 - rate / 2.0)


def smallest(x: Float[Array, "agent n"], k: Int[Array, "agent"]) -> Float[Array, "agent"]:
    """The k-th smallest of each row, none of which is negative; found bit by bit, in a fraction of a sort's time."""
    # Floats that are not negative are in the order of their bits, read as integers.
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = jnp.sum(bits <= middle[:, None], axis=1) >= k
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    most = jax.lax.bitcast_convert_type(jnp.full(k.shape, jnp.inf), jnp.int32)
    _, found = jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(most), most))
    return jax.lax.bitcast_convert_type(found, jnp.float32)


def largest(score: Float[Array, "time batch agent"], lived: Array, rate: Float[Array, "agent"]) -> Array:
    """The largest `rate` of each agent's scores."""
    flat = jnp.where(lived, score, -jnp.inf).reshape(-1, score.shape[-1])
    wanted = jnp.round(rate * jnp.sum(lived, axis=(0, 1))).astype(jnp.int32)
    ordered = jnp.sort(flat, axis=0, descending=True)
    pivot = jnp.take_along_axis(ordered, jnp.maximum(wanted - 1, 0)[None], axis=0)[0]
    return lived & (score >= pivot) & (wanted > 0)


def evenness(error: Float[Array, "time batch agent"], lived: Bool[Array, "time batch agent"]) -> Float[Array, "agent"]:
    """Entropy of priorities ~ |TD error|, as a share of its largest possible value."""
    mass = jnp.where(lived, jnp.abs(error) + 1e-6, 0.0)
    p = mass / jnp.maximum(jnp.sum(mass, axis=(0, 1)), 1e-6)
    entropy = -jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.maximum(p, 1e-12)), 0.0), axis=(0, 1))
    return entropy / jnp.log(jnp.maximum(jnp.sum(lived, axis=(0, 1)), 2.0))


def independence(obs: Float[Array, "time batch agent n"], lived: Array) -> Float[Array, "agent"]:
    """exp(-I), I the mutual information of an agent's observations with the others', mean over others and features, as
    if both were Gaussian: I = -log(1 - rho^2) / 2 for each feature."""
    n = obs.shape[-2]
    both = (lived[..., None] & lived[..., None, :]).astype(jnp.float32)
    weight = both / jnp.maximum(jnp.sum(both, axis=(0, 1)), 1.0)
    mean = jnp.einsum("tbij,tbid->ijd", weight, obs)
    square = jnp.einsum("tbij,tbid->ijd", weight, obs**2)
    product = jnp.einsum("tbij,tbid,tbjd->ijd", weight, obs, obs)
    variance = square - mean**2
    spread = jnp.sqrt(jnp.maximum(variance * jnp.swapaxes(variance, 0, 1), 1e-12))
    rho = jnp.clip((product - mean * jnp.swapaxes(mean, 0, 1)) / spread, -0.999, 0.999)
    information = jnp.mean(-0.5 * jnp.log1p(-(rho**2)), axis=-1)
    others = 1.0 - jnp.eye(n)
    return jnp.exp(-jnp.sum(information * others, axis=1) / (n - 1))


def standard(x: Float[Array, "agent n"]) -> Float[Array, "agent n"]:
    """Each feature with deviation 1 over agents, distances per feature (so that `radius` means the same everywhere)."""
    spread = jnp.std(x, axis=0)
    return jnp.where(spread > 1e-6, (x - jnp.mean(x, axis=0)) / jnp.maximum(spread, 1e-6), 0.0) / x.shape[1] ** 0.5


def mean_shift(x: Float[Array, "agent n"], width: float) -> Float[Array, "agent n"]:
    """The mode that each point climbs to, by a Gaussian kernel (Fukunaga and Hostetler 1975)."""

    def climb(_: Array, y: Array) -> Array:
        gap = jnp.sum((y[:, None] - x) ** 2, axis=-1)
        return jax.nn.softmax(-0.5 * gap / width**2) @ x

    return jax.lax.fori_loop(0, 10, climb, x)


def clusters(near: Bool[Array, "agent agent"]) -> Float[Array, ""]:
    """How many groups there are: agents that are near nobody before them."""
    first = jnp.argmax(near, axis=1) == jnp.arange(near.shape[0])
    return jnp.sum(first).astype(jnp.float32)
