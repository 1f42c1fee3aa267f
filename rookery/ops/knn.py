"""Exact k-nearest search over a table of keys with a fixed number of slots.

Distances are squared and Euclidean. A caller keeps the keys' squared norms beside them, with infinity where a slot is
empty: the ranking then needs one product of keys and queries, and empty slots need no mask of their own.

Why blocks: XLA's top-k on CPUs visits every score of every query. The k lowest scores lie in the k blocks with the
lowest minima, so that it is enough to rank minima of blocks and then the rows of k blocks. benchmarks/memory.py times
this beside `jax.lax.top_k` and `jax.lax.approx_max_k`.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.ops.loops import repeat, widest

Method = Literal["blocks", "top_k", "approx"]

BLOCK = 8
"""Rows of a block, and blocks of a block of blocks."""
SPARE = 8
"""Blocks (or rows) ranked beyond k: scores from norms and products are rounded, and may swap near neighbors."""
SLICE = 4096
"""Keys whose scores are held at once: they stay in the cache, and a search ends with the slice of the last entry."""


class Near(eqx.Module):
    """The k nearest entries of each query, nearest first; ties go to the lower index."""

    index: Int[Array, "*table query k"]
    distance: Float[Array, "*table query k"]
    """Squared, computed from differences; infinite where the table has fewer than k entries."""


def squared_norms(keys: Float[Array, "*n dim"], filled: Bool[Array, "*n"]) -> Float[Array, "*n"]:
    """|key|^2, and infinity where a slot is empty."""
    return jnp.where(filled, jnp.sum(jnp.square(keys), axis=-1), jnp.inf)


def kernel(distance: Float[Array, "*b"], delta: float) -> Float[Array, "*b"]:
    """NEC's weights 1 / (d^2 + delta), for squared distances (Pritzel et al. 2017, equation 5); 0 at infinity."""
    return 1.0 / (distance + delta)


def kernel_mean(
    query: Float[Array, "query dim"],
    key: Float[Array, "query k dim"],
    value: Float[Array, "query k column"],
    use: Bool[Array, "query k column"],
    delta: float,
) -> tuple[Float[Array, "query column"], Bool[Array, "query column"]]:
    """Kernel-weighted means of the values in use, 0 where there are none, and where there are any. Differentiable."""
    weight = kernel(jnp.sum(jnp.square(key - query[:, None]), axis=-1), delta)[..., None]
    weight = jnp.where(use, weight, 0.0)
    known = jnp.any(use, axis=1)
    return jnp.sum(weight * value, axis=1) / jnp.where(known, jnp.sum(weight, axis=1), 1.0), known


def nearest(
    keys: Float[Array, "n dim"],
    norms: Float[Array, "n"],
    query: Float[Array, "query dim"],
    k: int,
    method: Method = "blocks",
) -> Near:
    """The k keys nearest to each query. No gradient passes: take distances to the gathered keys for that."""
    near = nearest_in_each(keys[None], norms[None], query, k, method)
    return Near(near.index[0], near.distance[0])


def nearest_in_each(
    keys: Float[Array, "table n dim"],
    norms: Float[Array, "table n"],
    query: Float[Array, "query dim"],
    k: int,
    method: Method = "blocks",
) -> Near:
    """The k keys nearest to each query in each table: [table, query, k]."""
    keys, norms, query = jax.lax.stop_gradient((keys, norms, query))
    tables, n, dim = keys.shape
    block = _block(n, k) if method == "blocks" else 1
    wide = min(k + SPARE, n // block)
    if block == 1:
        top = jax.lax.approx_max_k if method == "approx" else jax.lax.top_k

        def scores(keys: Array, norms: Array) -> Array:
            return (2.0 * query) @ keys.T - norms

        chosen = top(jax.vmap(scores)(keys, norms), wide)[1]
    else:
        chosen = jax.vmap(partial(lowest, k=wide))(_block_scores(keys, norms, query, block))
    # One table after the other: the candidates of all tables together would not fit into the cache.
    blocks = (keys.reshape(-1, block, dim), norms.reshape(-1, block))

    def rank(first: Array, chosen: Array) -> tuple[Array, Near]:
        return first + n // block, _rank(*blocks, query, first + chosen, k)

    near = jax.lax.scan(rank, jnp.int32(0), chosen)[1]
    return Near(near.index - n * np.arange(tables)[:, None, None], near.distance)


def nearest_in_own(
    keys: Float[Array, "table n dim"],
    norms: Float[Array, "table n"],
    query: Float[Array, "query dim"],
    table: Int[Array, "query"],
    k: int,
) -> Near:
    """The k keys nearest to each query in the query's own table: [query, k]. Only those are ranked."""
    keys, norms, query = jax.lax.stop_gradient((keys, norms, query))
    n, dim = keys.shape[1:]
    block = _block(n, k)
    if block == 1 or not _sliced(n):
        near, own = nearest_in_each(keys, norms, query, k), (table, np.arange(query.shape[0]))
        return Near(near.index[own], near.distance[own])
    chosen = lowest(_block_scores(keys, norms, query, block, table)[0], k + SPARE)
    first = table[:, None] * (n // block)
    near = _rank(keys.reshape(-1, block, dim), norms.reshape(-1, block), query, first + chosen, k)
    return Near(near.index - n * table[:, None], near.distance)


def lowest(x: Array, k: int) -> Int[Array, "column k"]:
    """Rows [n] of the k lowest entries in each column of x [n, column], lowest first; ties go to the lower row."""
    n, columns = x.shape
    if n <= BLOCK * k:
        return jax.lax.top_k(-x.T, k)[1]
    above = jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).max
    if n % BLOCK:
        x = jnp.concatenate([x, jax.lax.full((-n % BLOCK, columns), above, x.dtype)])
    blocks = x.reshape(-1, BLOCK, columns)
    # In the order of their rows, so that ties among candidates go to the lower row as well.
    chosen = jnp.sort(lowest(jnp.min(blocks, axis=1), k), axis=-1)
    candidates = blocks[chosen, :, np.arange(columns)[:, None]].reshape(columns, -1)
    place = jax.lax.top_k(-candidates, k)[1]
    return jnp.take_along_axis(chosen, place // BLOCK, axis=1) * BLOCK + place % BLOCK


def _block(n: int, k: int) -> int:
    """Rows of a block: the largest power of two that divides n; 1 (rank all rows) where blocks would save nothing."""
    block = BLOCK
    while n % block:
        block //= 2
    return block if n >= 2 * block * (k + SPARE) else 1


def _block_scores(
    keys: Float[Array, "table n dim"],
    norms: Float[Array, "table n"],
    query: Float[Array, "query dim"],
    block: int,
    own: Int[Array, "query"] | None = None,
) -> Float[Array, "_ block query"]:
    """The least |key|^2 - 2 key query of each block of rows; with `own`, in each query's own table alone (one table).

    Queries are the minor axis, which reductions run along. Tables are filled from their first slot on: slices after the
    last entry are not visited, their scores are infinite.
    """
    (tables, n, dim), queries = keys.shape, query.shape[0]
    toward = (-2.0 * query).T

    def scores(keys: Array, norms: Array) -> Array:
        return jnp.min((norms[:, None] + keys @ toward).reshape(-1, block, queries), axis=1)

    rows = (keys.reshape(-1, dim), norms.reshape(-1))  # a loop over more axes would copy the table
    if not _sliced(n):
        return scores(*rows).reshape(tables, n // block, queries)
    end = jnp.max(jnp.where(jnp.isinf(norms), 0, np.arange(1, n + 1, dtype=np.int32)), axis=1)
    slices = widest(-(-end // SLICE))

    def search(table: Array, low: Array) -> Array:
        def part(i: Array, low: Array) -> Array:
            first = jnp.minimum(i * SLICE, n - SLICE)  # the last slice may overlap the one before it
            found = scores(*(jax.lax.dynamic_slice_in_dim(x, table * n + first, SLICE) for x in rows))
            at = (table if own is None else 0, first // block, 0)
            if own is not None:
                found = jnp.where(own == table, found, jax.lax.dynamic_slice(low, at, (1, *found.shape))[0])
            return jax.lax.dynamic_update_slice(low, found[None], at)

        return repeat(slices[table], part, low)

    start = jax.lax.full((tables if own is None else 1, n // block, queries), jnp.inf, keys.dtype)
    return repeat(tables, search, start)


def _sliced(n: int) -> bool:
    """Whether tables of n keys are searched in slices."""
    return n >= 2 * SLICE


def _rank(
    keys: Float[Array, "blocks rows dim"],
    norms: Float[Array, "blocks rows"],
    query: Float[Array, "query dim"],
    chosen: Int[Array, "query wide"],
    k: int,
) -> Near:
    """The k nearest rows of the chosen blocks, by exact differences: small distances drown in |a|^2 - 2ab + |b|^2."""
    block = keys.shape[1]
    chosen = jnp.sort(chosen, axis=-1)
    rows = (chosen[..., None] * block + np.arange(block)).reshape(query.shape[0], -1)
    distance = jnp.sum(jnp.square(keys[chosen] - query[:, None, None]), axis=-1)
    distance = jnp.where(jnp.isinf(norms[chosen]), jnp.inf, distance).reshape(rows.shape)
    least, place = jax.lax.top_k(-distance, k)
    return Near(jnp.take_along_axis(rows, place, axis=-1).astype(jnp.int32), -least)
