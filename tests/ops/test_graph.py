"""Graph operations against networkx, numpy and numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from compiled import AS_TRAINED
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.ops import graph
from rookery.ops.graph import FAR, Edges

N, E, A = 12, 3, 4
SMALL = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 100_000)


WALKS = jax.vmap(partial(graph.walk, length=4), (None, None, 0))


@cache
def program(f: Callable[..., Any], **static: Any) -> Any:
    """Compiled once for all examples."""
    return jax.jit(partial(f, **static))


def random_edges(seed: int, n: int = N, slots: int = E) -> Edges:
    """Random edges with holes, self-loops and doubles; actions of a node's slots may agree."""
    rng = np.random.default_rng(seed)
    to = np.where(rng.random((n, slots)) < 0.6, rng.integers(0, n, (n, slots)), -1)
    reward = rng.integers(-3, 4, (n, slots))
    arrays = (to, rng.integers(0, A, (n, slots)), reward, rng.integers(1, 5, (n, slots)))
    return Edges(
        *(jnp.asarray(x, dtype) for x, dtype in zip(arrays, ("int32", "int32", "float32", "int32"), strict=True))
    )


def digraph(next: Any) -> nx.MultiDiGraph:
    g = nx.MultiDiGraph()
    g.add_nodes_from(range(len(next)))
    g.add_edges_from((n, int(to)) for n, row in enumerate(np.asarray(next)) for to in row if to >= 0)
    return g


# --- features and abstraction


@SMALL
@given(SEEDS, st.integers(0, 3), st.booleans())
def test_aggregate_is_the_mean_over_neighbors_hop_by_hop(seed: int, hops: int, incoming: bool) -> None:
    next, h = random_edges(seed).next, np.random.default_rng(seed).normal(size=(N, 2))
    g, want = digraph(next), h
    for _ in range(hops):
        near = {
            n: [n, *(v for _, v in g.out_edges(n)), *((u for u, _ in g.in_edges(n)) if incoming else ())] for n in g
        }
        want = np.stack([want[near[n]].mean(0) for n in range(N)])
    got = program(graph.aggregate, hops=hops, incoming=incoming)(jnp.float32(h), next)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@SMALL
@given(SEEDS, st.integers(1, 6))
def test_canopies(seed: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    keys, filled, t1, t2 = rng.integers(0, 6, (N, 2)), rng.random(N) < 0.8, 3.0, 1.5
    distance = np.linalg.norm(keys[:, None] - keys[None], axis=-1)
    distance[:, ~filled] = np.inf
    free, centers = filled.copy(), []
    while free.any() and len(centers) < limit:
        centers.append(int(np.argmax(free)))
        free &= distance[centers[-1]] > t2
    owner = np.full(N, -1)
    for n in np.flatnonzero(filled):
        close = [(distance[c, n], i) for i, c in enumerate(centers) if distance[c, n] <= t1]
        owner[n] = min(close)[1] if close else -1
    got = program(graph.canopy, t1=t1, t2=t2, limit=limit)(jnp.float32(keys), jnp.asarray(filled))
    np.testing.assert_array_equal(got.center, centers + [-1] * (limit - len(centers)))
    np.testing.assert_array_equal(got.owner, owner)
    sizes = [int((distance[c] <= t1).sum()) for c in centers]
    np.testing.assert_array_equal(got.size, sizes + [0] * (limit - len(centers)))


@SMALL
@given(SEEDS, st.integers(1, 4))
def test_kmeans_takes_lloyds_steps(seed: int, iterations: int) -> None:
    rng = np.random.default_rng(seed)
    keys, filled, start = rng.normal(size=(N, 2)), rng.random(N) < 0.8, rng.normal(size=(3, 2))
    centroid = start.copy()
    for i in range(iterations + 1):
        owner = np.argmin(((keys[:, None] - centroid) ** 2).sum(-1), axis=1)
        if i < iterations:
            centroid = np.stack(
                [
                    keys[filled & (owner == c)].mean(0) if (filled & (owner == c)).any() else centroid[c]
                    for c in range(3)
                ]
            )
    got, owners = program(graph.kmeans, iterations=iterations)(
        jnp.float32(keys), jnp.asarray(filled), jnp.float32(start)
    )
    np.testing.assert_allclose(got, centroid, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(owners, np.where(filled, owner, -1))


def test_top_nodes() -> None:
    score, filled = jnp.array([1.0, 5.0, 3.0, 3.0, 9.0]), jnp.array([True, True, True, True, False])
    np.testing.assert_array_equal(graph.top_nodes(score, filled, 3), [1, 2, 3])
    np.testing.assert_array_equal(graph.top_nodes(score, filled, 5), [1, 2, 3, 0, -1])


def test_degree_score_by_hand() -> None:
    """(3 + 1) / sqrt(8 / 2) = 2, and (1 + 0) / sqrt(2 / 2) = 1."""
    score = graph.degree_score(jnp.array([3, 1]), jnp.array([1, 0]), jnp.array([8, 2]), jnp.int32(2))
    np.testing.assert_allclose(score, [2.0, 1.0])


# --- paths


@SMALL
@given(SEEDS, st.integers(1, N))
def test_distances_and_paths_are_shortest(seed: int, sweeps: int) -> None:
    next, ends = random_edges(seed).next, np.array([0, 5, -1, 7])
    lengths = dict(nx.all_pairs_shortest_path_length(digraph(next)))
    bounded = [[lengths[n].get(e, FAR) if e >= 0 else FAR for n in range(N)] for e in ends]
    want = np.where(np.array(bounded) <= sweeps, bounded, FAR)
    to = program(graph.distances_to, sweeps=sweeps)(next, jnp.asarray(ends))
    np.testing.assert_array_equal(to, want)
    away = [[lengths[e].get(n, FAR) if e >= 0 else FAR for n in range(N)] for e in ends]
    got = program(graph.distances_from, sweeps=sweeps)(next, jnp.asarray(ends))
    np.testing.assert_array_equal(got, np.where(np.array(away) <= sweeps, away, FAR))
    walks = program(WALKS)
    nodes, slots = map(np.asarray, walks(next, to[1], jnp.arange(N, dtype=jnp.int32)))
    for n in range(N):
        length = int(to[1][n]) if to[1][n] <= 4 else 0
        assert (nodes[n] >= 0).sum() == (slots[n] >= 0).sum() == length
        at = n
        for node, slot in zip(nodes[n, :length], slots[n, :length], strict=True):
            assert node == at
            at = int(next[node, slot])
        assert length == 0 or at == 5


# --- values


def targets(q: np.ndarray, known: np.ndarray, terminal: np.ndarray, edges: Edges, gamma: float) -> dict[Any, float]:
    """r + gamma max q(next), mean over edges by visits, of all known pairs with an edge."""
    next, action, reward, visits = (np.asarray(x) for x in (edges.next, edges.action, edges.reward, edges.visits))
    value = [0.0 if terminal[n] or not known[n].any() else q[n][known[n]].max() for n in range(len(q))]
    found: dict[Any, list[tuple[float, float]]] = {}
    for n, e in zip(*np.nonzero(next >= 0), strict=True):
        if known[n, action[n, e]]:
            pair = (int(n), int(action[n, e]))
            found.setdefault(pair, []).append((visits[n, e], reward[n, e] + gamma * value[next[n, e]]))
    return {pair: sum(v * t for v, t in rows) / sum(v for v, _ in rows) for pair, rows in found.items()}


def random_values(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed + 1)
    return rng.normal(size=(N, A)).astype(np.float32), rng.random((N, A)) < 0.8, np.arange(N) == 0


@SMALL
@given(SEEDS)
def test_bellman_errors(seed: int) -> None:
    (q, known, terminal), edges = random_values(seed), random_edges(seed)
    want = np.zeros(N)
    for (n, a), target in targets(q, known, terminal, edges, 0.9).items():
        want[n] = max(want[n], abs(target - q[n, a]))
    got = program(graph.bellman_errors, gamma=0.9)(*map(jnp.asarray, (q, known, terminal)), edges)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@SMALL
@given(SEEDS)
def test_paths_are_backed_up_from_their_ends(seed: int) -> None:
    (q, known, terminal), edges = random_values(seed), random_edges(seed)
    distance = graph.distances_to(edges.next, jnp.array([0]), 5)[0]
    starts = jnp.array([3, 8, 5], jnp.int32)
    node, slot = jax.vmap(partial(graph.walk, length=5), (None, None, 0))(edges.next, distance, starts)
    want, count = q.copy(), 0
    for nodes, slots in zip(np.asarray(node), np.asarray(slot), strict=True):
        for n, e in [(n, e) for n, e in zip(nodes, slots, strict=True) if n >= 0][::-1]:
            pair = (int(n), int(edges.action[n, e]))
            found = targets(want, known, terminal, edges, 0.9)
            if pair in found:
                want[pair], count = found[pair], count + 1
    back = program(graph.backup_paths, gamma=0.9)
    got, made = back(*map(jnp.asarray, (q, known, terminal)), edges, node, slot)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert int(made) == count


def chain(n: int) -> tuple[Any, ...]:
    """0 is terminal; i leads to i - 1; only 1 -> 0 is rewarded, with 1."""
    next = jnp.arange(-1, n - 1, dtype=jnp.int32)[:, None]
    edges = Edges(next, jnp.zeros_like(next), (next == 0).astype(jnp.float32), jnp.ones_like(next))
    return jnp.zeros((n, 1)), jnp.arange(n)[:, None] > 0, jnp.arange(n) == 0, edges


def test_one_pass_along_a_path_carries_the_reward_to_its_start() -> None:
    """gamma^0 .. gamma^3 with as many backups as edges; the terminal node stays at 0."""
    q, known, terminal, edges = chain(5)
    distance = graph.distances_to(edges.next, jnp.array([0]), 4)[0]
    node, slot = graph.walk(edges.next, distance, jnp.int32(4), 4)
    q, made = graph.backup_paths(q, known, terminal, edges, node[None], slot[None], 0.5)
    np.testing.assert_allclose(q[:, 0], [0, 1, 0.5, 0.25, 0.125])
    assert int(made) == 4


def test_sweeping_spends_no_more_backups_than_a_path() -> None:
    """From the one node that changed; with fewer it has come so far, and what it keeps carries it on."""
    q, known, terminal, edges = chain(5)
    priority = jnp.zeros(5).at[1].set(1.0)
    q2, left, made = graph.sweep(q, known, terminal, edges, priority, 0.5, 2)
    np.testing.assert_allclose(q2[:, 0], [0, 1, 0.5, 0, 0])
    assert int(made) == 2 and float(left[3]) > 0
    q4, left, made = graph.sweep(q2, known, terminal, edges, left, 0.5, 10)
    np.testing.assert_allclose(q4[:, 0], [0, 1, 0.5, 0.25, 0.125])
    assert int(made) == 2 and float(jnp.max(left)) == 0


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_sweeping_converges_to_the_fixed_point(seed: int) -> None:
    (q, known, terminal), edges = random_values(seed), random_edges(seed)
    want = q.copy()
    for _ in range(200):
        for pair, target in targets(want, known, terminal, edges, 0.7).items():
            want[pair] = target
    args = tuple(map(jnp.asarray, (q, known, terminal)))
    errors = graph.bellman_errors(*args, edges, 0.7)
    got, _, made = program(graph.sweep, gamma=0.7, backups=1000)(*args, edges, errors)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    assert int(made) < 1000


def test_a_sweep_copies_no_table() -> None:
    """Values are changed in place, once they are donated."""
    q, known, terminal, edges = chain(20_000)
    q, known = jnp.zeros((20_000, 16)), jnp.ones((20_000, 16), bool)
    call = jax.jit(partial(graph.sweep, gamma=0.5, backups=20), donate_argnums=(0, 4))
    used = call.lower(q, known, terminal, edges, jnp.zeros(20_000)).compile(AS_TRAINED).memory_analysis()
    assert used.temp_size_in_bytes < q.nbytes / 2, used
    path = jnp.zeros((2, 5), jnp.int32)
    back = jax.jit(partial(graph.backup_paths, gamma=0.5), donate_argnums=0)
    used = back.lower(q, known, terminal, edges, path, path).compile(AS_TRAINED).memory_analysis()
    assert used.temp_size_in_bytes < q.nbytes / 2, used


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_the_value_of_a_terminal_node_is_zero(value: float) -> None:
    q, known = jnp.full((2, 2), value), jnp.array([[True, True], [False, False]])
    np.testing.assert_array_equal(graph.state_value(q, known, jnp.array([True, False])), [0, 0])
    np.testing.assert_array_equal(graph.state_value(q, known, jnp.array([False, False])), [value, 0])
