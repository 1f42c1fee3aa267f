"""Which slot of a fixed-capacity table each row of a batch is written to; shared by dictionary and graph."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from rookery.ops.knn import lowest


class Slots(eqx.Module):
    """Where a batch goes. Rows with the same slot are the same state, and are applied in the order of the batch."""

    slot: Int[Array, "row"]
    """The capacity, which a scatter drops, for rows that are not written."""
    new: Bool[Array, "row"]
    """The rows that open a new entry: one for each new slot."""


def group(same: Bool[Array, "row row"], found: Bool[Array, "row"], where: Bool[Array, "row"]) -> Int[Array, "row"]:
    """The row that each row joins: the first earlier row that opens an entry and is the same state, or itself.

    `same` need not be transitive (it is a bound on a distance), so rows are taken one after the other. Rows that the
    table has already (`found`), or that are masked, stand for themselves.
    """
    rows = same.shape[0]
    opens = where & ~found

    def join(i: Array, leader: Array) -> Array:
        candidates = same[i] & opens & (leader == jnp.arange(rows)) & (jnp.arange(rows) < i)
        joins = opens[i] & jnp.any(candidates)
        return leader.at[i].set(jnp.where(joins, jnp.argmax(candidates).astype(jnp.int32), i))

    return jax.lax.fori_loop(0, rows, join, jnp.arange(rows, dtype=jnp.int32))


def place(
    match: Int[Array, "row"],
    found: Bool[Array, "row"],
    same: Bool[Array, "row row"],
    where: Bool[Array, "row"],
    priority: Float[Array, "capacity"] | Int[Array, "capacity"],
) -> Slots:
    """Slots of a batch: the matching entry, or the entries of lowest priority (empty ones must come first).

    No entry of the highest priority that the dtype has is ever evicted; entries that the batch matches are so raised.
    """
    capacity, rows = priority.shape[0], match.shape[0]
    found = found & where
    leader = group(same, found, where)
    new = where & ~found & (leader == jnp.arange(rows))
    kept = priority.at[jnp.where(found, match, capacity)].set(highest(priority.dtype), mode="drop")
    victims = lowest(kept[:, None], rows)[0].astype(jnp.int32)
    mine = victims[jnp.cumsum(new) - 1]
    slot = jnp.where(found, match, mine[leader])
    return Slots(jnp.where(where, slot, capacity), new)


def highest(dtype: jnp.dtype) -> float | int:
    """The priority that is never evicted."""
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def first_of(cell: Int[Array, "row"]) -> Bool[Array, "row"]:
    """The first row of each cell."""
    return ~jnp.any(jnp.tril(cell[:, None] == cell[None, :], -1), axis=1)


def running(
    cell: Int[Array, "row"],
    new: Bool[Array, "row"],
    where: Bool[Array, "row"],
    old: Float[Array, "row *x"],
    x: Float[Array, "row *x"],
    rate: float,
) -> Float[Array, "row *x"]:
    """Each row's cell after all rows moved theirs by `rate` toward x, in order; the row that is `new` sets its cell.

    Rows of one cell get the same result, so that they can be scattered in any order. In closed form: the last of n
    rows counts `rate`, the one before it rate (1 - rate), and so on. Differences are added to what was there, so that
    a cell which is told what it holds keeps it to the bit.
    """
    shared = (cell[:, None] == cell[None, :]) & where[None, :]
    later = jnp.triu(shared, 1).sum(axis=1)
    weight = rate * (1.0 - rate) ** later
    opened = shared & new[None, :]
    column = (-1, *(1,) * (x.ndim - 1))
    base = jnp.where(jnp.any(opened, axis=1).reshape(column), x[jnp.argmax(opened, axis=1)], old)
    share = (shared * weight[None, :]).reshape(*shared.shape, *(1,) * (x.ndim - 1))
    return base + jnp.sum(share * (x[None] - base[:, None]), axis=1)


def fingerprint(x: Array) -> UInt[Array, "row 2"]:
    """A 64-bit hash of each row of x [row, ...], of any dtype: equal rows, and in practice only those, agree."""
    flat = x.reshape(x.shape[0], -1)
    if jnp.issubdtype(flat.dtype, jnp.floating):
        flat = jax.lax.bitcast_convert_type(flat.astype(jnp.float32) + 0.0, jnp.uint32)  # + 0: -0 equals 0
    if flat.dtype == jnp.uint8 and flat.shape[1] % 4 == 0:
        flat = jax.lax.bitcast_convert_type(flat.reshape(flat.shape[0], -1, 4), jnp.uint32)  # four pixels a word
    words = flat.astype(jnp.uint32)
    position = jnp.arange(words.shape[1], dtype=jnp.uint32)

    def half(seed: int) -> Array:
        mixed = _mix(words + _mix(position * jnp.uint32(0x9E3779B9) + jnp.uint32(seed)))
        return _mix(jnp.sum(mixed, axis=1, dtype=jnp.uint32))

    return jnp.stack([half(0x243F6A88), half(0x85A308D3)], axis=1)


def _mix(x: UInt[Array, "*b"]) -> UInt[Array, "*b"]:
    """MurmurHash3's finalizer: every bit of x changes every bit of the result."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
