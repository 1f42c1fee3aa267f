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
from rookery.nets.layers import Linear, Noise
from rookery.ops.loops import repeat


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
    """One draw of the noise of all dense layers."""
    dense = _dense(net.mean)
    shapes = [shape for layer in dense for shape in _factors(layer)]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    x = _normal(key, int(ends[-1]))
    x = jnp.sign(x) * jnp.sqrt(jnp.abs(x))
    factors = [part.reshape(shape) for part, shape in zip(jnp.split(x, ends[:-1]), shapes, strict=True)]
    layers = tuple(map(_with_noise, dense, net.spread, factors[::2], factors[1::2]))
    p, after = net.mean, len(net.mean.before)
    head = after + len(p.after)
    return replace(p, before=layers[:after], after=layers[after:head], head=layers[head], aside=layers[head + 1 :])


def _normal(key: Array, n: int) -> Float[Array, "n"]:
    """Normal numbers, drawn before anything reads them.

    In a loop of one round, whose length XLA does not know and whose key changes: otherwise it would draw them again
    within every product that they are part of, and make the key again for every number, and compile that for minutes.
    """

    def draw(_: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        return now[0] + 1, jax.random.normal(now[0], (n,))

    rounds = jnp.where((key[0] >> 1).astype(jnp.int32) < 0, 0, 1)
    return repeat(rounds, draw, (key, jnp.zeros(n)))[1]


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


def _with_noise(mean: Linear, deviation: Linear, into: Array, out: Array) -> Linear:
    """The layer with one draw of its noise."""

    def one(mean: Linear, deviation: Linear, into: Array, out: Array) -> Linear:
        return replace(mean, noise=Noise(deviation, into, out))

    # Of per-agent weights, every array leads with an agent axis.
    return (one if into.ndim == 1 else jax.vmap(one))(mean, deviation, into, out)
