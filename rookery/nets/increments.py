"""Increments of dense layers: each is a linear function of a few features, and its effect is a bilinear form.

The increment of a layer is `sum_k f_k W_k` with one matrix `W_k` (a mode) for each feature. No matrix is made for each
example: the effect on an input x is the contraction of f, x and the modes (benchmarks/hyper.py has what that saves).
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.nets.layers import Linear


class Modes(eqx.Module):
    """What each feature adds to a layer. Zeros at the start: the layer is then as it would be without."""

    weight: Float[Array, "feature n_in n_out"]
    bias: Float[Array, "feature n_out"]


class Changes(eqx.Module):
    """Changes of a network: by layer name ("before0", "after0", "head"), modes or scales of its output."""

    layers: dict[str, Modes | Array]
    features: Float[Array, "time b agent feature"]


def modes(layer: Linear, features: int) -> Modes:
    """Zero modes for a layer; its arrays may lead with an agent axis, which all agents' modes share."""
    return Modes(jnp.zeros((features, *layer.weight.shape[-2:])), jnp.zeros((features, layer.bias.shape[-1])))


def bilinear(
    weight: Float[Array, "feature n_in n_out"], f: Float[Array, "*b feature"], x: Float[Array, "*b n_in"]
) -> Float[Array, "*b n_out"]:
    """sum_k f_k x W_k, in the order that keeps the smaller intermediate array."""
    count, n_in, n_out = weight.shape
    if n_in <= n_out:
        outer = f[..., :, None] * x[..., None, :]
        return outer.reshape(*x.shape[:-1], count * n_in) @ weight.reshape(count * n_in, n_out)
    each = x @ jnp.swapaxes(weight, 0, 1).reshape(n_in, count * n_out)
    return jnp.sum(f[..., None] * each.reshape(*x.shape[:-1], count, n_out), axis=-2)


def changed(layer: Linear, x: Array, change: Modes | Array | None, features: Array | None) -> Array:
    """The output of a layer whose weights have the increment that the features make."""
    y = layer(x)
    if change is None or features is None:
        return y
    if isinstance(change, Modes):
        return y + bilinear(change.weight, features, x) + features @ change.bias
    return y * change


def gram(layers: dict[str, Modes]) -> tuple[Float[Array, "feature feature"], int]:
    """Products of the modes with each other, and how many numbers an increment has.

    The squared norm of an increment is f' G f, without the increment.
    """
    flat = [x.reshape(x.shape[0], -1) for m in layers.values() for x in (m.weight, m.bias)]
    return sum((x @ x.T for x in flat[1:]), flat[0] @ flat[0].T), sum(x.shape[1] for x in flat)


def squared_norm(products: Float[Array, "feature feature"], f: Float[Array, "*b feature"]) -> Float[Array, "*b"]:
    """Squared norms of the increments of features."""
    return jnp.sum((f @ products) * f, axis=-1)
