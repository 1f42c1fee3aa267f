"""Gradient steps of a memory's encoder on examples (observation, action, target), and of the entries that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery.core.keys import stream
from rookery.core.ranges import Count, NonNegative
from rookery.core.types import Clock, Collect, Mean, Metrics, Spec
from rookery.mechanisms.encode import Encoder, EncoderParams
from rookery.mechanisms.writer import Table
from rookery.memory import dictionary as dictionaries
from rookery.memory import examples
from rookery.memory.dictionary import Address, Dictionary, DictionaryState, Entries
from rookery.memory.examples import Examples
from rookery.memory.graph import Graph
from rookery.nets.optimiser import Optimiser, norm
from rookery.ops.knn import kernel_mean
from rookery.ops.loops import alone, repeat

Now = tuple[EncoderParams, Table, Any, Metrics]
Batch = tuple[Array, Int[Array, "batch"], Float[Array, "batch"]]
"""Observations, actions, targets."""


@dataclass(frozen=True)
class Learn:
    """Gradient steps of a trained encoder, and of the entries that it reads."""

    optimiser: Optimiser = field(default_factory=lambda: Optimiser("rmsprop", lr=1e-4))
    capacity: Count = 100_000
    """Examples (observation, action, target) kept. Frames of stacked observations are kept once."""
    batch: Count = 32
    """Examples of a gradient step."""
    start: Count = 1000
    """Examples before the first gradient step."""
    every: Count = 1
    """Iterations between two that take gradient steps."""
    steps: Count = 1
    """Gradient steps of such an iteration."""
    key_rate: NonNegative = 1e-4
    """Step size of the keys that were read; dictionaries only."""
    value_rate: NonNegative = 0.1
    """Step size of the values that were read; dictionaries only."""

    def store(self, spec: Spec, collect: Collect, waiting: int) -> Examples:
        """A store for `capacity` examples, besides the rows that wait for a target."""
        block = collect.transitions(spec)
        return examples.empty(spec, max(-(-self.capacity // collect.envs), block) + waiting, collect.envs, block)


@dataclass(frozen=True)
class Refiner:
    """What trains an encoder."""

    encoder: Encoder
    memory: Dictionary | Graph
    learn: Learn

    def step(
        self, spec: Spec, params: EncoderParams, memory: Table, opt: Any, store: Examples, clock: Clock, key: Array
    ) -> Now:
        """Encoder, memory and optimiser after the gradient steps of this iteration, and the metrics of those."""
        steps, ready = self.learn.steps, store.count >= self.learn.start
        drawn = examples.draw(store, steps * self.learn.batch, stream(key, "examples"), spec.frames)
        batches = jax.tree.map(lambda x: x.reshape(steps, -1, *x.shape[1:]), drawn)

        def one(i: Array, now: Now) -> Now:
            params, memory, opt, sums = now
            batch = jax.tree.map(lambda x: x[i], batches)
            grads, at, found = self._gradients(spec, params, memory, batch, stream(key, "latent", i))
            # Members of a run are ready at different times, and a loop that only some of them take copies tables.
            d_params, *d_entries = jax.tree.map(lambda x: jnp.where(ready, x, 0.0), grads)
            params, opt = self.learn.optimiser.step(params, d_params, opt, clock.progress)
            if at is not None and isinstance(memory, DictionaryState):
                d_key, d_value = d_entries
                memory = dictionaries.shift(memory, at, -self.learn.key_rate * d_key, -self.learn.value_rate * d_value)
            metrics = Mean.of_each({**found, "grad_norm": norm(d_params)}, jnp.float32(ready))
            return params, memory, opt, jax.tree.map(jnp.add, sums, metrics) if sums else metrics

        found = jax.eval_shape(lambda: one(jnp.int32(0), (params, memory, opt, {}))[3])
        nothing = {name: Mean(jnp.float32(0), jnp.float32(0)) for name in found}
        # A loop of no or some rounds: a branch would copy the tables.
        times = jnp.where(clock.iteration % self.learn.every == 0, steps, 0)
        return repeat(times, one, (params, memory, opt, nothing))

    def _gradients(
        self, spec: Spec, params: EncoderParams, memory: Table, batch: Batch, key: Array
    ) -> tuple[Any, Address | None, dict[str, Array]]:
        """Gradients of the encoder and of the entries that it reads, where a dictionary has those, and the losses."""
        obs, action, target = batch
        at = near = None
        if self.encoder.by_memory:
            at, near = self._near(memory, alone(lambda params: self.encoder(spec, params, obs), params), action)

        def loss(params: EncoderParams, *entries: Array) -> tuple[Array, dict[str, Array]]:
            own = self.encoder.losses(spec, params, obs, target, key)
            total = sum((weight * x for weight, x in own.values()), start=jnp.float32(0))
            if near is not None:
                query, read = self.encoder(spec, params, obs), Entries(entries[0], entries[1], near.use)
                total = total + jnp.mean(jnp.square(self._value(query, action, read) - target))
            found = {name: x for name, (_, x) in own.items()}
            return total, {**found, **{f"{name}_weight": jnp.float32(w) for name, (w, _) in own.items()}, "loss": total}

        entries = () if near is None else (near.key, near.value)
        gradients = jax.value_and_grad(loss, tuple(range(1 + len(entries))), has_aux=True)
        (_, found), grads = alone(gradients, params, *entries)
        return grads, at, found

    def _near(
        self, memory: Table, query: Float[Array, "query dim"], action: Int[Array, "query"]
    ) -> tuple[Address | None, Entries]:
        """The entries that queries read of an action, and where a dictionary has them."""
        if isinstance(memory, DictionaryState):
            assert isinstance(self.memory, Dictionary), "made by it"
            return self.memory.near(memory, query, action)
        assert isinstance(self.memory, Graph), "made by it"
        read = self.memory.read(memory, query)
        use = self.memory.usable(memory, read.index, read.distance)
        return None, Entries(memory.keys[read.index], memory.q[read.index], use)

    def _value(
        self, query: Float[Array, "query dim"], action: Int[Array, "query"], read: Entries
    ) -> Float[Array, "query"]:
        """The action's value for each query; gradients reach queries and entries."""
        if isinstance(self.memory, Dictionary):
            return self.memory.value(query, action, read)
        q, _ = kernel_mean(query, read.key, read.value, read.use, self.memory.delta)
        return jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
