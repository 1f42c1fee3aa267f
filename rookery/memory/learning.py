"""Learning from a replay store: store what was collected, then take gradient steps on what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.keys import stream
from rookery.core.types import Clock, Collect, Mean, Metrics, Packed, Rollout, Spec
from rookery.memory import frames, replay
from rookery.memory.frames import Frames
from rookery.memory.replay import Draw, Replay
from rookery.memory.sequences import Sequence, by_env, example, spans, time_major, transitions
from rookery.ops.loops import when

W = TypeVar("W")
"""Weights, as an algorithm lays them out."""
TRIES = 4
"""Draws of one transition: of these the first that is filled is taken."""


class Store(eqx.Module):
    """What was collected."""

    items: Sequence  # [capacity, ...], without observations where there are frames
    frames: Frames | None
    """Of tasks whose observations are stacks of frames."""


class Learner(eqx.Module, Generic[W]):
    """What gradient steps move."""

    online: W
    target: W
    """The slow copy of those weights that have one."""
    opt: Any
    updates: Int[Array, ""]
    priorities: Float[Array, "item"] | None
    """Of what is stored; None under uniform replay."""
    recent: Any = None
    """What a mechanism keeps from one gradient step to the next; None if unused."""


class Minibatch(eqx.Module):
    """What one gradient step sees."""

    batch: Sequence  # [time, batch, ...]
    draw: Draw
    clock: Clock
    root: Array
    """The key of the iteration."""
    step: Int[Array, ""]
    """Which gradient step of the iteration it is."""

    def key(self, purpose: str) -> Array:
        """The gradient step's key for a purpose."""
        return stream(self.root, purpose, self.step)


@dataclass(frozen=True)
class Replayed:
    """How a replay store is filled, and how often it is learned from."""

    replay: Replay
    collect: Collect
    spec: Spec
    n_step: int = 1
    """Transitions that a drawn transition spans (not for sequences)."""
    gamma: Any = 1.0
    """Discount of rewards within such a span."""

    @property
    def steps(self) -> int:
        """Gradient steps of one iteration."""
        return round(self.replay.steps_per_sequence * self.collect.envs)

    @property
    def _length(self) -> int:
        return self.collect.transitions(self.spec)

    @property
    def _block(self) -> int:
        """Rows that an iteration adds: the last one is the next iteration's first, unless that begins with a reset."""
        return self._length + self.collect.restart

    def empty(self, hidden: int) -> Store:
        """A store without anything in it, for networks with so long a hidden state."""
        framed, envs = self.spec.frames > 1, self.collect.envs
        item = jax.eval_shape(lambda: example(self.spec, self._length, hidden, framed=framed))
        ring = None
        if framed:
            rows = frames.length(self.replay.capacity // envs * self._block, self._block, self.spec.frames)
            ring = frames.empty(self.spec, rows, envs)
        return Store(replay.empty(item, self.replay.capacity), ring)

    def priorities(self) -> Float[Array, "item"] | None:
        """Of an empty store; None under uniform replay."""
        return self.replay.priorities(self._length)

    def add(self, store: Store, rollout: Rollout, iteration: Int[Array, ""], position: Int[Array, ""]) -> Store:
        """The store with what was collected in an iteration, from slot `position` on."""
        envs, capacity = self.collect.envs, self.replay.capacity
        items, kept, ring = by_env(rollout), store.items, store.frames
        if ring is not None:
            start = iteration % (ring.rows // self._block) * self._block
            ring = frames.add(ring, rollout.step.obs, rollout.step.first, start)
            items = eqx.tree_at(lambda x: x.step.obs, items, _nothing(items))
            if not self.collect.restart:
                before = replay.slot(iteration - 1, envs, capacity)
                kept = eqx.tree_at(lambda x: x.filled, kept, _joined(kept, before, rollout.step.first[0]))
        return Store(replay.add(kept, items, position), ring)

    def update(
        self,
        learner: Learner[W],
        store: Store,
        rollout: Rollout,
        clock: Clock,
        key: Array,
        step: Callable[[Learner[W], Minibatch], tuple[Learner[W], Metrics]],
    ) -> tuple[Learner[W], Store, Metrics]:
        """Learner and store after one iteration; `step` is one gradient step."""
        envs, capacity = self.collect.envs, self.replay.capacity
        position = replay.slot(clock.iteration, envs, capacity)
        store = self.add(store, rollout, clock.iteration, position)
        stored = replay.filled(clock.iteration, envs, capacity)

        def learn(learner: Learner[W]) -> tuple[Learner[W], Packed]:
            def one(learner: Learner[W], k: Array) -> tuple[Learner[W], Packed]:
                draw = self._draw(store, learner.priorities, stored, clock, stream(key, "replay", k))
                batch, about = self._batch(store, draw, stored, clock.iteration, stream(key, "time", k))
                learner, metrics = step(learner, Minibatch(batch, draw, clock, key, k))
                return learner, Packed.of(metrics | about)

            learner, found = jax.lax.scan(one, learner, jnp.arange(self.steps))
            return learner, found.summed()

        # The condition is the same for all members, so it stays a branch under vmap; the store stays out of it,
        # because a branch copies what it returns.
        ready = stored >= self.replay.least
        each = self._length if self.replay.unit == "transition" else 1
        learner = replace(learner, priorities=self.replay.welcome(learner.priorities, position, envs, each))
        learner, found = when(ready, learn, learner)
        metrics = found.metrics()
        metrics["gradient_steps"] = Mean.of(jnp.where(ready, float(self.steps), 0.0))
        return learner, store, metrics

    def _draw(self, store: Store, priorities: Array | None, stored: Array, clock: Clock, key: Array) -> Draw:
        if self.replay.unit == "transition" and priorities is not None:
            filled = store.items.filled.reshape(-1)
            return self.replay.draw(key, priorities, stored * self._length, clock, filled)
        return self.replay.draw(key, priorities, stored, clock)

    def _batch(self, store: Store, draw: Draw, stored: Array, iteration: Array, key: Array) -> tuple[Sequence, Metrics]:
        """What was drawn [time, batch, ...], and metrics about it."""
        items, about = store.items, {}
        if self.replay.unit == "sequence":
            index, steps = draw.index, np.arange(self._length + 1)[:, None]
            batch, time = time_major(replay.take(items, index)), 0
        else:
            if draw.weight is None:
                index, time = draw_filled(key, items.filled, stored, draw.index)
            else:
                index, time = draw.index // self._length, draw.index % self._length
            if self.n_step == 1:
                batch, steps = transitions(items, index, time), np.arange(2)[:, None]
            else:
                newer = self._newer(index, iteration)
                batch, spanned = spans(items, index, time, newer, self.collect.envs, self.n_step, self.gamma)
                about["n_step"], steps = Mean.of(spanned), np.arange(2)[:, None] * spanned
        if store.frames is None:
            return batch, about
        blocks = store.frames.rows // self._block
        start = (iteration - self._newer(index, iteration)) % blocks * self._block
        at = (start + time + steps) % store.frames.rows
        seen = frames.stacks(store.frames, at, jnp.broadcast_to(index % self.collect.envs, at.shape), self.spec.frames)
        return eqx.tree_at(lambda x: x.step.obs, batch, seen), about

    def _newer(self, index: Int[Array, "batch"], iteration: Int[Array, ""]) -> Int[Array, "batch"]:
        """How many iterations ago these sequences were collected."""
        envs = self.collect.envs
        return (iteration - index // envs) % (self.replay.capacity // envs)


def _joined(items: Sequence, before: Int[Array, ""], first: Bool[Array, "env"]) -> Bool[Array, "capacity time"]:
    """`filled` once the sequences from slot `before` on are followed by these rows, which take their last rows' place.

    A row that opens an episode although none had ended (a run was resumed with fresh ones) is not where the last
    transition led to.
    """
    old = lambda x: jax.lax.dynamic_slice_in_dim(x, before, first.shape[0])[:, -1]  # noqa: E731
    same = jnp.logical_not(first) | old(items.step.last)
    return jax.lax.dynamic_update_slice(
        items.filled, (old(items.filled) & same)[:, None], (before, items.filled.shape[1] - 1)
    )


def _nothing(items: Sequence) -> Array:
    """What stands where there are no observations."""
    return jnp.zeros((*items.step.alive.shape, 0), items.step.obs.dtype)


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
