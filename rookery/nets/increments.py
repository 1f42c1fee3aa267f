"""Increments of dense layers: each is a linear function of a few features, and its effect is a bilinear form.

The increment of a layer is `sum_k f_k W_k` with one matrix `W_k` (a mode) for each feature. No matrix is made for each
example: the effect on an input x is the contraction of f, x and the modes (benchmarks/hyper.py has what that saves).
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.keys import stream
from rookery.nets.layers import Linear, orthogonal


class FullModes(eqx.Module):
    """A matrix for each feature. Zeros at the start: the layer is then as it would be without."""

    weight: Float[Array, "feature n_in n_out"]
    bias: Float[Array, "feature n_out"]

    def effect(self, f: Float[Array, "*b feature"], x: Float[Array, "*b n_in"]) -> Float[Array, "*b n_out"]:
        """sum_k f_k x W_k, in the order that keeps the smaller intermediate array."""
        count, n_in, n_out = self.weight.shape
        if n_in <= n_out:
            outer = (f[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], count * n_in)
            return outer @ self.weight.reshape(count * n_in, n_out) + f @ self.bias
        each = x @ jnp.swapaxes(self.weight, 0, 1).reshape(n_in, count * n_out)
        return jnp.sum(f[..., None] * each.reshape(*x.shape[:-1], count, n_out), axis=-2) + f @ self.bias

    def gram(self) -> Float[Array, "feature feature"]:
        """Products of the modes with each other."""
        flat = jnp.concatenate([self.weight.reshape(self.weight.shape[0], -1), self.bias], axis=1)
        return flat @ flat.T


class RankOneModes(eqx.Module):
    """A product of two vectors for each feature: an increment costs as much as a narrow layer, not as many layers.

    Left vectors are orthogonal, right ones zero at the start.
    """

    left: Float[Array, "n_in feature"]
    right: Float[Array, "feature n_out"]
    bias: Float[Array, "feature n_out"]

    def effect(self, f: Float[Array, "*b feature"], x: Float[Array, "*b n_in"]) -> Float[Array, "*b n_out"]:
        """sum_k f_k (x l_k) r_k."""
        both = jnp.concatenate([(x @ self.left) * f, f], axis=-1)
        return both @ jnp.concatenate([self.right, self.bias])

    def gram(self) -> Float[Array, "feature feature"]:
        """Products of the modes with each other: <l r', m s'> = <l, m> <r, s>."""
        return (self.left.T @ self.left) * (self.right @ self.right.T) + self.bias @ self.bias.T


Modes = FullModes | RankOneModes


class Changes(eqx.Module):
    """Changes of a network: by layer name ("before0", "after0", "head"), modes or scales of its output."""

    layers: dict[str, Modes | Array]
    features: Float[Array, "time b agent feature"]


def modes(layer: Linear, features: int, key: Array, *, full: bool) -> Modes:
    """Modes without effect yet. The layer's arrays may lead with an agent axis: all agents share the modes."""
    n_in, n_out = layer.weight.shape[-2:]
    if full:
        return FullModes(jnp.zeros((features, n_in, n_out)), jnp.zeros((features, n_out)))
    left = orthogonal(stream(key, "left"), n_in, features)
    return RankOneModes(left, jnp.zeros((features, n_out)), jnp.zeros((features, n_out)))


def changed(layer: Linear, x: Array, change: Modes | Array | None, features: Array | None) -> Array:
    """The output of a layer whose weights have the increment that the features make, or are scaled."""
    if change is None or features is None:
        return layer(x)
    if isinstance(change, FullModes | RankOneModes):
        return layer(x) + change.effect(features, x)
    # Scaled weights are a scaled output, and there are fewer of them.
    return Linear(layer.weight * change, layer.bias * change)(x)


def gram(layers: dict[str, Modes]) -> Float[Array, "feature feature"]:
    """Products of whole increments: the squared norm of one is f' G f, without the increment."""
    each = [m.gram() for m in layers.values()]
    return sum(each[1:], each[0])


def size(layers: dict[str, Modes]) -> int:
    """Numbers of an increment."""
    inputs = [m.weight.shape[1] if isinstance(m, FullModes) else m.left.shape[0] for m in layers.values()]
    return sum((n + 1) * m.bias.shape[1] for n, m in zip(inputs, layers.values(), strict=True))


def squared_norm(products: Float[Array, "feature feature"], f: Float[Array, "*b feature"]) -> Float[Array, "*b"]:
    """Squared norms of the increments of features."""
    return jnp.sum((f @ products) * f, axis=-1)
