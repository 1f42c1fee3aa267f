"""Learned noise on the dense layers of a network (NoisyNet, Fortunato et al. 2018, with factorised Gaussian noise)."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.keys import stream
from rookery.nets.agent import Params
from rookery.nets.layers import Linear


class Noisy(eqx.Module):
    """A network whose dense layers are drawn anew from a distribution."""

    mean: Params
    spread: tuple[Linear, ...]
    """Deviations of the dense layers' weights and biases, in the order of `_dense`."""


def noisy(params: Params, start: float) -> Noisy:
    """The network with deviations of `start` / sqrt(inputs of the layer)."""
    spread = tuple(jax.tree.map(lambda x, n=n: jnp.full_like(x, start / n**0.5), layer) for layer, n in _sized(params))
    return Noisy(params, spread)


def drawn(net: Noisy, key: Array) -> Params:
    """One draw: layer = mean + spread * noise."""
    layers = tuple(
        _perturbed(mean, spread, stream(key, "layer", i))
        for i, (mean, spread) in enumerate(zip(_dense(net.mean), net.spread, strict=True))
    )
    p, after = net.mean, len(net.mean.before)
    head = after + len(p.after)
    return replace(p, before=layers[:after], after=layers[after:head], head=layers[head], aside=layers[head + 1 :])


def size(net: Noisy) -> Float[Array, ""]:
    """Mean deviation of a weight."""
    total = sum(jnp.sum(jnp.abs(layer.weight)) for layer in net.spread)
    return total / sum(layer.weight.size for layer in net.spread)


def _dense(p: Params) -> tuple[Linear, ...]:
    return (*p.before, *p.after, p.head, *p.aside)


def _sized(p: Params) -> list[tuple[Linear, int]]:
    return [(layer, layer.weight.shape[-2]) for layer in _dense(p)]


def _perturbed(mean: Linear, spread: Linear, key: Array) -> Linear:
    """Noise of a weight is the product of one number for its input and one for its output."""
    *lead, n_in, n_out = mean.weight.shape
    into, out = (_scaled(jax.random.normal(stream(key, k), (*lead, n))) for k, n in (("in", n_in), ("out", n_out)))
    weight = mean.weight + spread.weight * into[..., :, None] * out[..., None, :]
    # Of per-agent weights, every array leads with an agent axis, which `Linear` itself would refuse.
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), mean, (weight, mean.bias + spread.bias * out))


def _scaled(x: Array) -> Array:
    return jnp.sign(x) * jnp.sqrt(jnp.abs(x))
