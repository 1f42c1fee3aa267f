"""A graph network over the nodes of a memory, trained so that neighbors agree and other nodes do not.

One layer over aggregated features, unit vectors, and the unsupervised loss of GraphSAGE (Hamilton et al. 2017): the
ends of an edge are drawn together, and pairs at random are driven apart, without which all nodes would become one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.keys import stream
from rookery.core.ranges import Count, Whole
from rookery.memory.replay import proportional
from rookery.nets.layers import Linear, linear
from rookery.nets.optimiser import Optimiser
from rookery.ops.loops import repeat


class GnnState(eqx.Module):
    weights: Linear
    opt: Any
    loss: Float[Array, ""]
    """Of the last gradient step; log 4 where the network tells nothing apart."""


@dataclass(frozen=True)
class Gnn:
    """The network of `abstract.method gnn`."""

    steps: Whole = 0
    """Gradient steps of each call of reconstruction; 0: not trained, features as they are."""
    dim: Count = 16
    """Length of an embedding."""
    batch: Count = 64
    """Edges of a gradient step, and as many pairs at random."""
    optimiser: Optimiser = field(default_factory=lambda: Optimiser("adam", lr=1e-2))

    def init(self, features: int, key: Array) -> GnnState | None:
        """Fresh weights for nodes with so many features; None if it is not trained."""
        if not self.steps:
            return None
        weights = linear(key, features, self.dim)
        return GnnState(weights, self.optimiser.init(weights), jnp.log(jnp.float32(4)))

    def train(
        self,
        state: GnnState,
        features: Float[Array, "node n"],
        next: Int[Array, "node slot"],
        filled: Bool[Array, "node"],
        key: Array,
    ) -> GnnState:
        """The network after `steps` gradient steps on edges of a graph."""
        slots, batch = next.shape[1], self.batch
        edges = (next >= 0).reshape(-1).astype(jnp.float32)
        there = (jnp.sum(edges) > 0).astype(jnp.float32)

        def step(i: Array, now: GnnState) -> GnnState:
            edge = proportional(stream(key, "edge", i), edges, batch)
            a, b = edge // slots, next.reshape(-1)[edge]
            other = proportional(stream(key, "other", i), filled.astype(jnp.float32), batch)
            rows = [features[at] for at in (a, b, other)]

            def loss(weights: Linear) -> Array:
                one, near, far = (embed(weights, x) for x in rows)
                together, apart = jnp.sum(one * near, axis=1), jnp.sum(one * far, axis=1)
                return there * jnp.mean(jax.nn.softplus(-together) + jax.nn.softplus(apart))

            value, grad = jax.value_and_grad(loss)(now.weights)
            weights, opt = self.optimiser.step(now.weights, grad, now.opt, jnp.float32(0))
            return GnnState(weights, opt, value)

        return repeat(self.steps, step, state)


def embed(weights: Linear, features: Float[Array, "node n"]) -> Float[Array, "node dim"]:
    """Unit vectors of nodes, from their aggregated features."""
    x = weights(features)
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=1, keepdims=True) + 1e-6)
