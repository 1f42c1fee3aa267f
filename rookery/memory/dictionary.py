"""Episodic dictionaries (NEC, MFEC): tables of keys and values that are read by nearest neighbors.

Entries live in `table`s of `capacity` slots. Either every action has a table of its own, with one value column (NEC,
MFEC), or all actions share one table with a value column each: the same code, one search instead of one per action.

    index = config.read(memory, query).index          # [table, query, k]; acting
    memory = touch(memory, index, now)                 # what was read is recently used
    memory, slots = config.write(memory, rows, now)    # one row per environment and step

Nothing here copies a table: all writes are scatters of a batch. A write matches the batch with the table as it was
before the batch; rows of one batch that are the same new state make one entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Fraction, NonNegative, Positive
from rookery.memory.slots import Slots, fingerprint, first_of, place, running
from rookery.ops.knn import kernel_mean, nearest_in_each, nearest_in_own
from rookery.ops.loops import once


class DictionaryState(eqx.Module):
    """The entries. A slot with infinite norm is empty."""

    keys: Float[Array, "table capacity dim"]
    norms: Float[Array, "table capacity"]
    """Squared norms of the keys; infinite where empty."""
    hashes: UInt[Array, "table 2 capacity"]
    """64 bits of what was hashed for each entry; matches survive a drift of the keys."""
    values: Float[Array, "table capacity column"]
    visits: Int[Array, "table capacity column"]
    """Writes into each value; a value without any is unknown."""
    last_use: Int[Array, "table capacity"]
    count: Int[Array, "table"]
    """Entries."""
    merges: Int[Array, ""]
    evictions: Int[Array, ""]


class Rows(eqx.Module):
    """What is written: one row per environment, say."""

    key: Float[Array, "*b row dim"]
    action: Int[Array, "*b row"]
    value: Float[Array, "*b row"]
    where: Bool[Array, "*b row"]
    """Rows that are written; the others are ignored."""
    hashed: UInt[Array, "*b row 2"] | None = None
    """`fingerprint` of the observation; None hashes the key."""
    first: Float[Array, "*b row"] | None = None
    """What a value starts at if there was none; None: at `value`."""


Address = tuple[Int[Array, "*#b"], Int[Array, "*b"]]
"""Tables and slots."""


class Entries(eqx.Module):
    """Entries that a search found; differentiable, unlike the search for them."""

    key: Float[Array, "*b dim"]
    value: Float[Array, "*b column"]
    use: Bool[Array, "*b column"]
    """Values that are known and near enough."""


class Read(eqx.Module):
    """What a query reads."""

    index: Int[Array, "table query k"]
    distance: Float[Array, "table query k"]
    """Squared; infinite where a table has fewer than k entries."""
    q: Float[Array, "query action"]
    known: Bool[Array, "query action"]
    """Whether a neighbor has a value of this action; q is 0 elsewhere."""


class _Plan(eqx.Module):
    """What a write found out before it writes."""

    slots: Slots
    table: Int[Array, "row"]
    column: Int[Array, "row"]
    key: Float[Array, "row dim"]
    hashed: UInt[Array, "row 2"]
    value: Float[Array, "row"]
    """Of the row's entry and column, after the batch."""
    evicted: Bool[Array, "row"]
    merged: Bool[Array, "row"]


@dataclass(frozen=True)
class Dictionary:
    """An episodic dictionary of action values."""

    capacity: Count = 100_000
    """Entries of each table. Multiples of 8 are searched fastest."""
    tables: Literal["per_action", "shared"] = "per_action"
    """A table for each action (NEC, MFEC), or one table with a value for each action."""
    neighbors: Count = 50
    """Entries that a read averages (NEC: 50, MFEC: 11)."""
    delta: Positive = 1e-3
    """Added to squared distances in the kernel's weights."""
    update: Literal["average", "max"] = "average"
    """How a known state's value changes: by `rate` toward the new one (NEC), or to the larger of both (MFEC)."""
    rate: Fraction = 0.1
    """Step size of `average`."""
    merge: NonNegative = 0.0
    """Keys up to this distance apart are the same state; 0: states with the same hash are."""
    reach: NonNegative = 0.0
    """Distance beyond which a neighbor is not read; 0: all are."""

    def check(self, rows: int) -> None:
        """Refuse sizes that do not fit together, for writes of so many rows."""
        if self.capacity < max(self.neighbors, rows):
            raise ConfigError(
                f"memory.capacity ({self.capacity}) must be at least memory.neighbors ({self.neighbors}) and the rows "
                f"written at a time ({rows}). Raise it, or lower those."
            )
        if min(self.neighbors, self.delta) <= 0 or not 0 < self.rate <= 1 or min(self.merge, self.reach) < 0:
            raise ConfigError(
                f"memory.neighbors ({self.neighbors}) and memory.delta ({self.delta}) must be positive, memory.rate "
                f"({self.rate}) above 0 and at most 1, memory.merge ({self.merge}) and memory.reach ({self.reach}) 0 "
                "or more."
            )

    def empty(self, dim: int, actions: int) -> DictionaryState:
        """A memory without entries."""
        tables, columns = (actions, 1) if self.tables == "per_action" else (1, actions)
        slots = (tables, self.capacity)
        return DictionaryState(
            keys=jnp.zeros((*slots, dim)),
            norms=jnp.full(slots, jnp.inf),
            hashes=jnp.zeros((tables, 2, self.capacity), jnp.uint32),
            values=jnp.zeros((*slots, columns)),
            visits=jnp.zeros((*slots, columns), jnp.int32),
            last_use=jnp.zeros(slots, jnp.int32),
            count=jnp.zeros(tables, jnp.int32),
            merges=jnp.int32(0),
            evictions=jnp.int32(0),
        )

    def read(self, memory: DictionaryState, query: Float[Array, "query dim"]) -> Read:
        """Kernel-weighted action values of each query's nearest entries, and which those are. No gradient passes."""
        memory, query = jax.lax.stop_gradient((memory, query))

        def look() -> Read:
            near = nearest_in_each(memory.keys, memory.norms, query, self.neighbors)
            found = self._entries(memory, (jnp.arange(near.index.shape[0])[:, None, None], near.index), near.distance)
            mean = jax.vmap(partial(kernel_mean, query, delta=self.delta))
            q, known = mean(found.key, found.value, found.use)
            return Read(near.index, near.distance, _by_action(q), _by_action(known))

        return once(look, memory.merges)

    def used(self, read: Read) -> Int[Array, "table query k"]:
        """The entries of a read that are near enough; the capacity, which `touch` drops, in place of others."""
        return jnp.where(read.distance <= self.reach**2, read.index, self.capacity) if self.reach else read.index

    def near(
        self, memory: DictionaryState, query: Float[Array, "query dim"], action: Int[Array, "query"]
    ) -> tuple[Address, Entries]:
        """What each query reads of one action: where the entries are, [query, k], and the entries.

        `value` of them is the mean that `read` has, and passes gradients; `shift` moves them.
        """
        memory, query = jax.lax.stop_gradient((memory, query))
        table, _ = self._place(action)

        def look() -> tuple[Array, Entries]:
            near = nearest_in_own(memory.keys, memory.norms, query, table, self.neighbors)
            return near.index, self._entries(memory, (table[:, None], near.index), near.distance)

        index, found = once(look, memory.merges)
        return (table[:, None], index), found

    def value(
        self, query: Float[Array, "query dim"], action: Int[Array, "query"], found: Entries
    ) -> Float[Array, "query"]:
        """Kernel-weighted means of one action's entries, 0 where it has none. Gradients reach queries and entries."""
        q, _ = kernel_mean(query, found.key, found.value, found.use, self.delta)
        return jnp.take_along_axis(q, self._place(action)[1][:, None], axis=1)[:, 0]

    def _entries(self, memory: DictionaryState, at: Address, distance: Float[Array, "*b"]) -> Entries:
        """The entries at these slots and squared distances; values beyond `reach` are not in use."""
        present = distance <= self.reach**2 if self.reach else jnp.isfinite(distance)
        return Entries(memory.keys[at], memory.values[at], (memory.visits[at] > 0) & present[..., None])

    def _place(self, action: Int[Array, "row"]) -> tuple[Int[Array, "row"], Int[Array, "row"]]:
        """Table and column of actions."""
        none = jnp.zeros_like(action)
        return (action, none) if self.tables == "per_action" else (none, action)

    def write(self, memory: DictionaryState, rows: Rows, now: Int[Array, ""]) -> tuple[DictionaryState, Slots]:
        """The memory after a batch, and where its rows went.

        New entries take empty slots, then those of the least recently used. A merge is no use: `touch` says what is.
        """
        memory, rows = jax.lax.stop_gradient((memory, rows))
        # All reads before all writes; rows that depend on an earlier `read` put that before the writes as well.
        plan = once(lambda: self._plan(memory, rows), memory.merges)
        table, new, slot = plan.table, plan.slots.new, plan.slots.slot
        cell, fresh = (table, slot, plan.column), (table, jnp.where(new, slot, self.capacity))
        # New entries are cleared first: the other columns of what they replace must not outlive it.
        values = memory.values.at[fresh].set(0.0, mode="drop").at[cell].set(plan.value, mode="drop")
        visits = memory.visits.at[fresh].set(0, mode="drop").at[cell].add(1, mode="drop")
        return DictionaryState(
            keys=memory.keys.at[fresh].set(plan.key, mode="drop"),
            norms=memory.norms.at[fresh].set(jnp.sum(jnp.square(plan.key), axis=1), mode="drop"),
            hashes=memory.hashes.at[fresh[0], :, fresh[1]].set(plan.hashed, mode="drop"),
            values=values,
            visits=visits,
            last_use=memory.last_use.at[fresh].set(now, mode="drop"),
            count=memory.count.at[table].add(new & ~plan.evicted),
            merges=memory.merges + jnp.sum(plan.merged),
            evictions=memory.evictions + jnp.sum(plan.evicted),
        ), plan.slots

    def _plan(self, memory: DictionaryState, rows: Rows) -> _Plan:
        """What a write writes, and where."""
        table, column = self._place(rows.action)
        hashed = fingerprint(rows.key) if rows.hashed is None else rows.hashed
        match, found = self._match(memory, rows.key, hashed, table)
        same = self._same(rows.key, hashed) & (table[:, None] == table[None, :])
        slots = _place_in_each(memory, match, found, same, rows.where, table)
        at = (table, slots.slot)
        # Same state, same action: same entry and column. The first write of a column sets it.
        cell = jnp.where(rows.where, slots.slot * memory.values.shape[2] + column, -1) * memory.keys.shape[0] + table
        opens = rows.where & (_visits(memory, slots, table, column) == 0) & first_of(cell)
        given = rows.value if rows.first is None else jnp.where(opens, rows.first, rows.value)
        value = self._value(cell, opens, rows.where, given, memory.values[(*at, column)])
        evicted = slots.new & jnp.isfinite(memory.norms[at])
        return _Plan(slots, table, column, rows.key, hashed, value, evicted, rows.where & ~slots.new)

    def _value(
        self,
        cell: Int[Array, "row"],
        opens: Bool[Array, "row"],
        where: Bool[Array, "row"],
        given: Float[Array, "row"],
        old: Float[Array, "row"],
    ) -> Float[Array, "row"]:
        """The value of each row's cell after the batch; rows of one cell agree."""
        if self.update == "average":
            return running(cell, opens, where, old, given, self.rate)
        shared = (cell[:, None] == cell[None, :]) & where[None, :]
        best = jnp.max(jnp.where(shared, given[None, :], -jnp.inf), axis=1)
        return jnp.where(jnp.any(shared & opens[None, :], axis=1), best, jnp.maximum(best, old))

    def _match(
        self, memory: DictionaryState, key: Array, hashed: Array, table: Array
    ) -> tuple[Int[Array, "row"], Bool[Array, "row"]]:
        """The entry that is the same state as each row, in the row's own table, and whether there is one."""
        if self.merge:
            near = nearest_in_own(memory.keys, memory.norms, key, table, 1)
            return near.index[:, 0], near.distance[:, 0] <= self.merge**2

        def look(row: tuple[Array, Array]) -> tuple[Array, Array]:
            bits, own = row
            equal = (memory.hashes[own] == bits[:, None]).all(axis=0) & jnp.isfinite(memory.norms[own])
            at = jnp.argmax(equal).astype(jnp.int32)
            return at, equal[at]

        return jax.lax.map(look, (hashed, table))

    def _same(self, key: Array, hashed: Array) -> Bool[Array, "row row"]:
        """Which rows of a batch are the same state."""
        if self.merge:
            return jnp.sum(jnp.square(key[:, None] - key[None, :]), axis=-1) <= self.merge**2
        return jnp.all(hashed[:, None] == hashed[None, :], axis=-1)


def touch(memory: DictionaryState, index: Int[Array, "table query k"], now: Int[Array, ""]) -> DictionaryState:
    """The memory with these entries used at time `now`."""
    tables = jnp.broadcast_to(jnp.arange(index.shape[0])[:, None, None], index.shape)
    last_use = memory.last_use.at[tables, index].set(now, mode="drop")
    return eqx.tree_at(lambda m: m.last_use, memory, last_use)


def shift(
    memory: DictionaryState, at: Address, keys: Float[Array, "*b dim"], values: Float[Array, "*b column"]
) -> DictionaryState:
    """The memory with these steps added to entries (a gradient step on what was read); entries read twice get both."""
    moved = memory.keys.at[at].add(keys)
    # An empty slot stays empty whatever is added to it.
    norms = jnp.where(jnp.isinf(memory.norms[at]), jnp.inf, jnp.sum(jnp.square(moved[at]), axis=-1))
    return eqx.tree_at(
        lambda m: (m.keys, m.norms, m.values),
        memory,
        (moved, memory.norms.at[at].set(norms), memory.values.at[at].add(values)),
    )


def _by_action(x: Array) -> Array:
    """[table, query, column] as [query, action]: one of table and column has length 1."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def _visits(memory: DictionaryState, slots: Slots, table: Array, column: Array) -> Int[Array, "row"]:
    """Writes that each row's cell had before the batch; 0 for an entry that the batch opens."""
    opened = (slots.slot[:, None] == slots.slot[None, :]) & (table[:, None] == table[None, :]) & slots.new[None, :]
    return jnp.where(jnp.any(opened, axis=1), 0, memory.visits[table, slots.slot, column])


def _place_in_each(
    memory: DictionaryState, match: Array, found: Array, same: Array, where: Array, table: Array
) -> Slots:
    """Slots of a batch whose rows go to different tables."""
    priority = jnp.where(jnp.isinf(memory.norms), -1, memory.last_use)
    if memory.keys.shape[0] == 1:
        return place(match, found, same, where, priority[0])
    mine = where[None] & (table[None] == jnp.arange(memory.keys.shape[0])[:, None])
    slots = jax.vmap(partial(place, match, found, same))(mine, priority)
    rows = jnp.arange(table.shape[0])
    return Slots(slots.slot[table, rows], slots.new[table, rows])
