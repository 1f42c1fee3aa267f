"""One general store: a ring of equal items, written in place, drawn uniformly or by priority, read by gather."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Fraction, NonNegative, Positive, Whole
from rookery.core.types import Clock, Collect


class Draw(eqx.Module):
    """Which items a batch has."""

    index: Int[Array, "batch"]
    weight: Float[Array, "batch"] | None
    """Importance weights; None under uniform replay."""

    def weigh(self, x: Float[Array, "time column n"]) -> Float[Array, "time column n"]:
        """Times the importance weights; an item may stand for several columns that follow one another."""
        if self.weight is None:
            return x
        return x * jnp.repeat(self.weight, x.shape[1] // self.weight.shape[0])[:, None]

    def sizes(
        self, q: Float[Array, "time batch n"], target: Float[Array, "time batch n"], valid: Bool[Array, "time batch n"]
    ) -> Float[Array, "batch"] | None:
        """Mean |TD error| of each item, where there are priorities to be made of it."""
        if self.weight is None:
            return None
        return jnp.sum(jnp.abs(q - target) * valid, axis=(0, 2)) / jnp.maximum(jnp.sum(valid, axis=(0, 2)), 1)


@dataclass(frozen=True)
class Replay:
    """The store of sequences; a sequence is what one environment collects in one iteration."""

    capacity: Count = 4096
    """Sequences kept."""
    batch: Count = 32
    """Sequences (or transitions, see `unit`) in one gradient step."""
    unit: Literal["sequence", "transition"] = "sequence"
    """What a batch is made of: whole sequences, or single transitions from anywhere (feed-forward networks only)."""
    start: Whole = 32
    """Sequences collected before the first gradient step."""
    steps_per_sequence: Positive = 1.0
    """Gradient steps for every sequence collected (PyMARL: 1; "8 environments, one update" is 0.125)."""
    priority: NonNegative = 0.0
    """Priority exponent: a sequence (or transition, see `unit`) is drawn with probability ~ (its mean |TD error|)^this
    (Schaul et al. 2016); 0: uniform."""
    importance: Fraction = 0.4
    """Exponent of the importance weights that correct for priorities, at the start of the run."""
    importance_end: Fraction = 1.0
    """The same at the end of the run."""
    eps: NonNegative = 0.1
    """Added to priorities, so that every item can be drawn."""
    eps_relative: bool = True
    """Whether `eps` is a multiple of the mean priority. An absolute one (as published) outweighs all priorities where
    TD errors are small."""

    def shard(self, collect: Collect) -> Replay:
        """The store of one shard: its share of this one, or a replica where all shards step the same environment."""
        batch = self.batch // collect.shards
        if collect.replicated:
            return replace(self, batch=batch)
        return replace(
            self,
            capacity=self.capacity // collect.shards,
            batch=batch,
            start=self.start // collect.shards,
            steps_per_sequence=self.steps_per_sequence * collect.shards,
        )

    def check(self, collect: Collect, *, recurrent: bool = False) -> None:
        """Refuse sizes that do not fit together, or not to what is collected at a time."""
        envs, shards = collect.envs, collect.shards
        if self.capacity % envs:
            raise ConfigError(
                f"algo.replay.capacity ({self.capacity}) must be a multiple of algo.collect.envs ({envs})."
            )
        if self.least > self.capacity:
            raise ConfigError(
                f"algo.replay.batch ({self.batch}) and algo.replay.start ({self.start}) must fit into "
                f"algo.replay.capacity ({self.capacity})."
            )
        if self.unit == "transition" and recurrent:
            raise ConfigError(
                "a recurrent network cannot learn from single transitions: use --algo.replay.unit sequence."
            )
        divided = (self.batch,) if collect.replicated else (self.batch, self.start)
        if shards > 1 and (any(size % shards for size in divided) or self.priority):
            raise ConfigError(
                f"algo.collect.shards ({shards}) must divide algo.replay.batch ({self.batch}) and algo.replay.start "
                f"({self.start}), and algo.replay.priority ({self.priority}) must be 0: shards do not see each "
                "other's sequences."
            )
        per_iteration = self.steps_per_sequence * envs
        if per_iteration < 1 or abs(per_iteration - round(per_iteration)) > 1e-6:
            raise ConfigError(
                f"algo.replay.steps_per_sequence ({self.steps_per_sequence}) times algo.collect.envs "
                f"({envs}) must be a whole number of gradient steps, at least 1; it is {per_iteration:g}."
            )

    def small(self) -> Replay:
        """The same store with little of everything; every environment's sequence is followed by a gradient step."""
        return replace(self, capacity=8, batch=4, start=4, steps_per_sequence=1.0)

    def warmup(self, collect: Collect) -> int:
        """Iterations until the first gradient step."""
        return -(-self.least // collect.envs)

    @property
    def least(self) -> int:
        """Sequences that must be stored before the first gradient step."""
        return max(self.start, self.batch if self.unit == "sequence" else 1)

    def priorities(self, transitions: int = 1) -> Float[Array, "item"] | None:
        """Of an empty store of sequences of so many transitions; None under uniform replay."""
        each = transitions if self.unit == "transition" else 1
        return jnp.zeros(self.capacity * each) if self.priority else None

    def welcome(
        self, priorities: Float[Array, "item"] | None, position: Int[Array, ""], n: int, each: int = 1
    ) -> Float[Array, "item"] | None:
        """`n` new sequences of `each` items from slot `position` on: as important as the most important item, so that
        they are drawn."""
        if priorities is None:
            return None
        if each > 1:
            position, n = position * each, n * each
        most = jnp.max(priorities)
        new = jnp.full(n, jnp.where(most > 0, most, 1.0))
        return jax.lax.dynamic_update_slice_in_dim(priorities, new, position, axis=0)

    def draw(
        self,
        key: Array,
        priorities: Float[Array, "item"] | None,
        stored: Int[Array, ""],
        clock: Clock,
        filled: Bool[Array, "item"] | None = None,
    ) -> Draw:
        """A batch of the `stored` items, with replacement; with priorities only of those that are `filled`."""
        if priorities is None:
            return Draw(jax.random.randint(key, (self.batch,), 0, stored), None)
        there = jnp.arange(priorities.shape[0]) < stored
        there = there if filled is None else there & filled
        unit = jnp.sum(priorities, where=there) / jnp.maximum(jnp.sum(there), 1) if self.eps_relative else 1.0
        # The tiny number is for a store without any error: everything is drawn alike.
        mass = jnp.where(there, (priorities + self.eps * unit + 1e-12) ** self.priority, 0.0)
        index = jnp.minimum(proportional(key, mass, self.batch), stored - 1)
        beta = self.importance + (self.importance_end - self.importance) * clock.progress
        chance = mass[index] / jnp.sum(mass)
        # Rounded sums may draw an item without mass: it has no weight, where it would have an infinite one.
        weight = jnp.where(chance > 0, (stored * chance) ** -beta, 0.0)
        return Draw(index, weight / jnp.maximum(jnp.max(weight), 1e-30))


def rate(
    priorities: Float[Array, "item"] | None, draw: Draw, sizes: Float[Array, "batch"] | None
) -> Float[Array, "item"] | None:
    """Priorities after a batch whose items have these mean |TD errors|."""
    return None if priorities is None or sizes is None else priorities.at[draw.index].set(sizes)


def proportional(key: Array, mass: Float[Array, "n"], draws: int) -> Int[Array, "draws"]:
    """`draws` independent indices, each with probability mass / sum(mass): the inverse of the distribution function.

    One pass of cumulative sums for all draws: no tree to keep (benchmarks/mechanisms.py times it).
    """
    upto = jnp.cumsum(mass)
    at = jax.random.uniform(key, (draws,)) * upto[-1]
    return jnp.minimum(jnp.searchsorted(upto, at, side="right"), mass.shape[0] - 1).astype(jnp.int32)


def empty(item: Any, capacity: int) -> Any:
    """A store for `capacity` items like `item` (arrays or shapes), in their own dtypes."""
    return jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), item)


def add(store: Any, items: Any, position: Int[Array, ""]) -> Any:
    """Write `n` items [n, ...] from slot `position` on; n must divide the capacity, so that no write wraps."""
    return jax.tree.map(lambda s, x: jax.lax.dynamic_update_slice_in_dim(s, x, position, axis=0), store, items)


def slot(iteration: Int[Array, ""], n: int, capacity: int) -> Int[Array, ""]:
    """Where the `iteration`-th group of `n` items goes."""
    return (iteration % (capacity // n)) * n


def filled(iteration: Int[Array, ""], n: int, capacity: int) -> Int[Array, ""]:
    """Items in the store after the `iteration`-th group (from 0) was added."""
    return jnp.minimum(iteration + 1, capacity // n) * n


def take(store: Any, index: Int[Array, "batch"]) -> Any:
    """The items at these slots."""
    return jax.tree.map(lambda s: s[index], store)
