"""What reading a memory costs, beside the Nature CNN's forward pass at the same batch.

    python benchmarks/memory.py [--keys 10000 100000 500000] [--batch 1 16 64] [--tables 1 18] [--out FILE]

The exact search in blocks, `jax.lax.top_k` and `jax.lax.approx_max_k` find 50 neighbors of random queries in tables of
random keys of dimension 64. All are called in turn, round after round, so that noise hits all; times are the least of
the rounds. Recall is the share of the true neighbors, found by numpy in float64 for up to four queries. Writes are 16
rows of new states into full memories with so many slots: with a match by hash, by distance, and into a graph (node,
edge and value). Tables of more than --gigabytes are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import add_out, least_seconds, markdown, save
from scaling import in_use

from rookery.memory.dictionary import Dictionary, Rows
from rookery.memory.graph import Graph, Moves, nowhere
from rookery.ops.knn import Method, nearest_in_each
from rookery.training.compiled.compiler import jit

DIM, NEIGHBORS, ROWS = 64, 50, 16
METHODS: tuple[Method, ...] = ("blocks", "top_k", "approx")


def compiled(f: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """A call of f that is compiled, as training compiles, and has run once."""
    call = jit(f)
    jax.block_until_ready(call(*args))
    return lambda: jax.block_until_ready(call(*args))


def nature_cnn(batch: int) -> Callable[[], Any]:
    """The forward pass of the Nature CNN to its 512 features, by XLA's convolutions."""
    shapes = ((8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512))
    keys = jax.random.split(jax.random.PRNGKey(0), len(shapes))
    weights = [0.05 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]
    frames = jnp.zeros((batch, 84, 84, 4), jnp.uint8)

    def forward(weights: list[jax.Array], frames: jax.Array) -> jax.Array:
        x = frames.astype(jnp.float32) / 255
        for w, stride in zip(weights[:3], (4, 2, 1), strict=True):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (stride, stride), "VALID", dimension_numbers=numbers))
        return jax.nn.relu(x.reshape(batch, -1) @ weights[3])

    return compiled(forward, weights, frames)


def recall(found: Any, keys: np.ndarray, query: np.ndarray) -> float:
    """Share of the true neighbors in the first table, for up to four queries."""
    shares = []
    for q, index in zip(query[:4].astype(np.float64), np.asarray(found.index)[0], strict=False):
        true = np.argpartition(((keys[0] - q) ** 2).sum(1), NEIGHBORS)[:NEIGHBORS]
        shares.append(np.isin(true, index).mean())
    return float(np.mean(shares))


def reads(tables: int, n: int, batch: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a batch of queries to all tables by each method, queries per second and recall of each."""
    keys = jax.random.normal(jax.random.PRNGKey(1), (tables, n, DIM))
    norms, query = jnp.sum(keys**2, axis=-1), jax.random.normal(jax.random.PRNGKey(2), (batch, DIM))
    searches = {m: compiled(partial(nearest_in_each, k=NEIGHBORS, method=m), keys, norms, query) for m in METHODS}
    seconds = least_seconds({**searches, "Nature CNN": nature_cnn(batch)}, rounds)
    row: dict[str, Any] = {"tables": tables, "keys": n, "batch": batch}
    row |= {f"{name}, ms": round(1e3 * s, 2) for name, s in seconds.items()}
    host, asked = np.asarray(keys[:1]), np.asarray(query)
    row |= {f"{m}, queries/s": round(batch / seconds[m]) for m in METHODS}
    return row | {f"{m}, recall": round(recall(search(), host, asked), 3) for m, search in searches.items()}


def writes(n: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of writing 16 rows of an endless stream of new states into full memories with n slots."""
    rows = 8
    keys = jax.random.normal(jax.random.PRNGKey(3), (rows, ROWS, DIM))
    on, action = jnp.ones(ROWS, bool), jnp.zeros(ROWS, jnp.int32)

    def dictionary(config: Dictionary) -> Callable[[], Any]:
        def one(memory: Any, key: Any) -> tuple[Any, None]:
            now = jnp.sum(memory.count) + memory.evictions
            return config.write(memory, Rows(key + now, action, jnp.ones(ROWS), on), now)[0], None

        return streamed(one, in_use(config.empty(DIM, 1)))

    def grown(config: Graph) -> Callable[[], Any]:
        def one(carry: Any, key: Any) -> tuple[Any, None]:
            now = carry[0].nodes + carry[0].evictions
            memory, to = config.insert(carry[0], key + now, now, on)
            memory = config.connect(memory, carry[1], Moves(action, jnp.ones(ROWS), ~on, on), to)
            return (config.learn(memory, carry[1], action, jnp.ones(ROWS), on), to), None

        return streamed(one, (in_use(config.empty(DIM, 1)), nowhere(ROWS)))

    def streamed(one: Callable[..., Any], start: Any) -> Callable[[], Any]:
        """A call that goes on writing, its memory donated."""
        call = jit(lambda state: jax.lax.scan(one, state, keys)[0], donate_argnums=0)
        held = [jax.block_until_ready(call(start))]

        def go_on() -> None:
            held[0] = jax.block_until_ready(call(held[0]))

        return go_on

    calls = {
        "dictionary, hash": dictionary(Dictionary(n, "shared")),
        "dictionary, distance": dictionary(Dictionary(n, "shared", merge=0.1)),
        "graph": grown(Graph(n, merge=0.1, key_rate=0.1)),
    }
    seconds = least_seconds(calls, rounds)
    return {"slots": n} | {f"{name}, ms": round(1e3 * s / rows, 3) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 500_000])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 18])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    add_out(parser)
    options = parser.parse_args()
    sizes = [(t, n) for t in options.tables for n in options.keys if 4e-9 * t * n * DIM <= options.gigabytes]
    read = [reads(t, n, batch, options.rounds) for t, n in sizes for batch in options.batch]
    written = [writes(n, options.rounds) for n in options.keys]
    for name, rows in {"memory_reads": read, "memory_writes": written}.items():
        print(markdown(rows), end="\n\n")
        save(options.out, name, rows)


if __name__ == "__main__":
    main()
