"""Learning from a replay store: store what was collected, then take gradient steps on what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from rookery.core.keys import stream
from rookery.core.types import Clock, Collect, Mean, Metrics, Packed, Rollout
from rookery.memory import replay
from rookery.memory.replay import Draw, Replay
from rookery.memory.sequences import Sequence, by_env, time_major, transitions

L = TypeVar("L", bound=Any)
"""What a gradient step moves: a module with a field `priorities` (None under uniform replay)."""
TRIES = 4
"""Draws of one transition: of these the first that is filled is taken."""


@dataclass(frozen=True)
class Replayed:
    """How a replay store is filled, and how often it is learned from."""

    replay: Replay
    collect: Collect

    @property
    def steps(self) -> int:
        """Gradient steps of one iteration."""
        return round(self.replay.steps_per_sequence * self.collect.envs)

    def update(
        self,
        learner: L,
        store: Sequence,
        rollout: Rollout,
        clock: Clock,
        key: Array,
        step: Callable[[L, Sequence, Draw, Int[Array, ""]], tuple[L, Metrics]],
    ) -> tuple[L, Sequence, Metrics]:
        """Learner and store after one iteration; `step` is one gradient step on a batch, the k-th of the iteration."""
        envs, capacity = self.collect.envs, self.replay.capacity
        position = replay.slot(clock.iteration, envs, capacity)
        store = replay.add(store, by_env(rollout), position)
        stored = replay.filled(clock.iteration, envs, capacity)

        def learn(learner: L) -> tuple[L, Packed]:
            def one(learner: L, k: Array) -> tuple[L, Packed]:
                draw = self.replay.draw(stream(key, "replay", k), learner.priorities, stored, clock)
                learner, metrics = step(learner, self._batch(store, draw, stored, stream(key, "time", k)), draw, k)
                return learner, Packed.of(metrics)

            learner, found = jax.lax.scan(one, learner, jnp.arange(self.steps))
            return learner, found.summed()

        def wait(learner: L) -> tuple[L, Packed]:
            shapes = jax.eval_shape(learn, learner)[1]
            return learner, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        # The condition is the same for all members, so it stays a branch under vmap; the store stays out of it,
        # because a branch copies what it returns.
        ready = stored >= self.replay.least
        learner = replace(learner, priorities=self.replay.welcome(learner.priorities, position, envs))
        learner, found = jax.lax.cond(ready, learn, wait, learner)
        metrics = found.metrics()
        metrics["gradient_steps"] = Mean.of(jnp.where(ready, float(self.steps), 0.0))
        return learner, store, metrics

    def _batch(self, store: Sequence, draw: Draw, stored: Array, key: Array) -> Sequence:
        if self.replay.unit == "sequence":
            return time_major(replay.take(store, draw.index))
        return transitions(store, *draw_filled(key, store.filled, stored, draw.index))


def draw_filled(
    key: Array, filled: Bool[Array, "capacity time"], stored: Int[Array, ""], index: Int[Array, "batch"]
) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
    """Sequence and time of uniformly drawn transitions. One that is not filled after all tries has no weight."""
    shape = (TRIES - 1, *index.shape)
    others = jax.random.randint(stream(key, "sequence"), shape, 0, stored)
    sequence = jnp.concatenate([index[None], others])
    time = jax.random.randint(stream(key, "row"), sequence.shape, 0, filled.shape[1])
    # argmax is the first that is filled.
    chosen = jnp.argmax(filled[sequence, time], axis=0)[None]

    def pick(x: Array) -> Array:
        return jnp.take_along_axis(x, chosen, axis=0)[0]

    return pick(sequence), pick(time)
