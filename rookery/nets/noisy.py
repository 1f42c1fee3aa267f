"""Learned noise on the dense layers of a network (NoisyNet, Fortunato et al. 2018, with factorised Gaussian noise)."""

from __future__ import annotations

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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
    dense = _dense(net.mean)
    shapes = [shape for layer in dense for shape in _factors(layer)]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    # All numbers at once, and a barrier behind them: XLA would draw them again for every weight that they are part of.
    x = jax.lax.optimization_barrier(jax.random.normal(key, (int(ends[-1]),)))
    x = jnp.sign(x) * jnp.sqrt(jnp.abs(x))
    factors = [part.reshape(shape) for part, shape in zip(jnp.split(x, ends[:-1]), shapes, strict=True)]
    pairs = zip(dense, net.spread, factors[::2], factors[1::2], strict=True)
    # The same for the layers: for one row XLA would make their weights within the product, again for every output.
    layers = jax.lax.optimization_barrier(tuple(_perturbed(*each) for each in pairs))
    p, after = net.mean, len(net.mean.before)
    head = after + len(p.after)
    return replace(p, before=layers[:after], after=layers[after:head], head=layers[head], aside=layers[head + 1 :])


def size(net: Noisy) -> Float[Array, ""]:
    """Mean deviation of a weight."""
    totals = jnp.stack([jnp.sum(jnp.abs(layer.weight)) for layer in net.spread])
    return jnp.sum(totals) / sum(layer.weight.size for layer in net.spread)


def _dense(p: Params) -> tuple[Linear, ...]:
    return (*p.before, *p.after, p.head, *p.aside)


def _sized(p: Params) -> list[tuple[Linear, int]]:
    return [(layer, layer.weight.shape[-2]) for layer in _dense(p)]


def _factors(layer: Linear) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the noise of inputs and of outputs."""
    *lead, n_in, n_out = layer.weight.shape
    return (*lead, n_in), (*lead, n_out)


def _perturbed(mean: Linear, spread: Linear, into: Array, out: Array) -> Linear:
    """Noise of a weight is the product of one number for its input and one for its output."""
    weight = mean.weight + spread.weight * into[..., :, None] * out[..., None, :]
    # Of per-agent weights, every array leads with an agent axis, which `Linear` itself would refuse.
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), mean, (weight, mean.bias + spread.bias * out))
