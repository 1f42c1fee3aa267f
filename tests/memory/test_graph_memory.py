"""The graph against one written with dictionaries: nodes, edges, eviction, handles; no copies, no dangling edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import AS_TRAINED, copies
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.errors import ConfigError
from rookery.memory import graph
from rookery.memory.graph import TERMINAL, Graph, GraphState, Handle, Moves

ROWS, ACTIONS = 4, 2


@dataclass
class Edge:
    action: int
    to: int
    """Identity of the next node, which no other node ever has."""
    reward: float
    visits: int


@dataclass
class Node:
    key: np.ndarray
    name: int
    last_use: int
    score: float = np.inf
    visits: int = 0
    q: dict[int, float] = field(default_factory=dict)
    edges: list[Edge | None] = field(default_factory=list)


@dataclass
class Brute:
    """Nodes in slots. Edges name nodes, and are removed one by one when a node goes."""

    config: Graph
    nodes: list[Node | None]
    made: int = 0
    merges: int = 0
    evictions: int = 0

    def priority(self, slot: int, now: int) -> tuple[float, ...]:
        node = self.nodes[slot]
        if node is None:
            return (-np.inf, slot)
        if self.config.evict == "lru":
            return (node.last_use, slot)
        if node.last_use == now:
            return (np.inf, slot)
        visits = float(np.float32(node.visits) / np.float32(now - node.last_use) ** 2)
        return (visits if self.config.evict == "visits" else node.score, slot)

    def insert(self, key: np.ndarray, now: int, where: np.ndarray) -> list[int]:
        """Names of the rows' nodes; -1 for masked rows."""
        found: dict[int, int] = {}
        for i in np.flatnonzero(where):
            near = [(float(np.sum((n.key - key[i]) ** 2)), s) for s, n in enumerate(self.nodes) if n and s]
            if near and min(near)[0] <= self.config.merge**2:
                found[i] = min(near)[1]
        leaders: list[int] = []
        joins: dict[int, int] = {}
        for i in np.flatnonzero(where):
            if i not in found:
                same = [j for j in leaders if np.sum((key[j] - key[i]) ** 2) <= self.config.merge**2]
                joins[i] = same[0] if same else i
                leaders += [] if same else [i]
        before = {s: self.priority(s, now) for s in range(1, len(self.nodes)) if s not in found.values()}
        victims = sorted(before, key=lambda s: before[s])[: len(leaders)]
        for slot in victims:
            gone = self.nodes[slot]
            if gone is not None:
                self.evictions += 1
                for node in filter(None, self.nodes):
                    node.edges = [None if e and e.to == gone.name else e for e in node.edges]
                self.nodes[slot] = None
        for i, slot in zip(leaders, victims, strict=True):
            self.made += 1
            self.nodes[slot] = Node(key[i], self.made, now, edges=[None] * self.config.edges_per_node)
            found[i] = slot
        names = [-1] * len(where)
        for i in np.flatnonzero(where):
            node = self.nodes[found[i] if i in found else found[joins[i]]]
            assert node is not None
            self.merges += i not in leaders
            node.key = node.key + np.float32(self.config.key_rate) * (key[i] - node.key)
            node.visits, node.last_use, names[i] = node.visits + 1, now, node.name
        return names

    def named(self, name: int) -> Node | None:
        return next((n for n in self.nodes if n and n.name == name), None)

    def connect(self, name: list[int], moves: tuple[np.ndarray, ...], to: list[int]) -> None:
        for n, a, r, terminal, where, t in zip(name, *moves, to, strict=True):
            node, target = self.named(n), 0 if terminal else t
            if not where or node is None or node.name == 0 or self.named(target) is None:
                continue
            same = [e for e in node.edges if e and e.action == a and e.to == target]
            if same:
                same[0].visits += 1
                same[0].reward += (r - same[0].reward) / same[0].visits
                continue
            slot = min(range(len(node.edges)), key=lambda s: (e.visits if (e := node.edges[s]) else -1, s))
            node.edges[slot] = Edge(int(a), target, float(r), 1)

    def learn(self, name: list[int], action: np.ndarray, target: np.ndarray, where: np.ndarray) -> None:
        for n, a, x, w in zip(name, action, target, where, strict=True):
            node = self.named(n)
            if w and node is not None and n > 0:
                old = node.q.get(int(a))
                node.q[int(a)] = float(x) if old is None else old + self.config.value_rate * (float(x) - old)


def compare(memory: GraphState, brute: Brute, now: int) -> None:
    edges = jax.tree.map(np.asarray, graph.live(memory))
    name_of = {s: n.name for s, n in enumerate(brute.nodes) if n}
    for s, node in enumerate(brute.nodes):
        assert bool(memory.filled[s]) == (node is not None and s != TERMINAL)
        if node is None or s == TERMINAL:
            assert np.all(edges.next[s] == -1)
            continue
        np.testing.assert_allclose(memory.keys[s], node.key, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(memory.norms[s], np.sum(node.key**2), rtol=1e-5, atol=1e-6)
        assert (int(memory.visits[s]), int(memory.last_use[s])) == (node.visits, node.last_use)
        for a in range(ACTIONS):
            assert bool(memory.known[s, a]) == (a in node.q)
            np.testing.assert_allclose(memory.q[s, a], node.q.get(a, 0.0), rtol=1e-5, atol=1e-5)
        for e, want in enumerate(node.edges):
            # Never dangling: what is left leads to the node that it was made for.
            assert (edges.next[s, e] >= 0) == (want is not None)
            if want is not None:
                assert name_of[int(edges.next[s, e])] == want.to
                assert (int(edges.action[s, e]), int(edges.visits[s, e])) == (want.action, want.visits)
                np.testing.assert_allclose(edges.reward[s, e], want.reward, rtol=1e-5, atol=1e-5)
    assert int(memory.edge_count) == int(np.sum(edges.next >= 0))
    into = np.bincount(edges.next[edges.next >= 0], minlength=len(edges.next))
    np.testing.assert_array_equal(memory.in_degree, into)
    assert int(memory.nodes) == len(name_of) - 1
    assert (int(memory.merges), int(memory.evictions)) == (brute.merges, brute.evictions)


CONFIGS = [
    Graph(capacity, 2, neighbors=2, merge=merge, key_rate=rate, value_rate=0.25, evict=evict)
    for capacity, merge, rate in ((5, 0.0, 0.0), (7, 1.0, 0.25))
    for evict in ("lru", "visits", "score")
]
insert = eqx.filter_jit(lambda config, *x: config.insert(*x))
connect = eqx.filter_jit(lambda config, *x: config.connect(*x))
learn = eqx.filter_jit(lambda config, *x: config.learn(*x))
read = eqx.filter_jit(lambda config, *x: config.read(*x))


@pytest.mark.parametrize("config", CONFIGS)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 100_000))
def test_it_does_what_dictionaries_do(config: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config.check(ROWS)
    memory, at = config.empty(2, ACTIONS), graph.nowhere(ROWS)
    brute, names = Brute(config, [Node(np.zeros(2), 0, 0)] + [None] * (config.capacity - 1)), [-1] * ROWS
    for now in range(1, 11):
        key, where = rng.integers(0, 4, (ROWS, 2)).astype(np.float32), rng.random(ROWS) < 0.8
        memory, to = insert(config, memory, jnp.asarray(key), jnp.int32(now), jnp.asarray(where))
        to_names = brute.insert(key, now, where)
        reward, terminal = rng.integers(-3, 4, ROWS).astype(np.float32), rng.random(ROWS) < 0.2
        moves = (rng.integers(0, ACTIONS, ROWS).astype(np.int32), reward, terminal, rng.random(ROWS) < 0.9)
        memory = connect(config, memory, at, Moves(*map(jnp.asarray, moves)), to)
        brute.connect(names, moves, to_names)
        values = (moves[0], rng.integers(-5, 6, ROWS).astype(np.float32), moves[3])
        memory = learn(config, memory, at, *map(jnp.asarray, values))
        brute.learn(names, *values)
        if config.evict == "score":
            score = rng.permutation(config.capacity).astype(np.float32)
            memory = eqx.tree_at(lambda m: m.score, memory, jnp.asarray(score))
            for s, node in enumerate(brute.nodes):
                if node:
                    node.score = float(score[s])
        compare(memory, brute, now)
        assert [bool(x) for x in graph.alive(memory, to)] == [bool(w) for w in where]
        # Handles are kept for a while, so that some outlive their nodes.
        keep = rng.random(ROWS) < 0.3
        at = Handle(jnp.where(keep, at.node, to.node), jnp.where(keep, at.generation, to.generation))
        names = [n if k else t for n, k, t in zip(names, keep, to_names, strict=True)]


def test_an_evicted_node_takes_its_edges_along() -> None:
    """Room for two nodes. a -> b, b -> a, a -> terminal; then c takes the slot of a, and d that of b."""
    config = Graph(3, 4, neighbors=1)
    keys, on = jnp.array([[1.0], [2.0], [3.0], [4.0]]), jnp.array([True])
    memory, a = config.insert(config.empty(1, 1), keys[:1], jnp.int32(1), on)
    memory, b = config.insert(memory, keys[1:2], jnp.int32(2), on)
    step = Moves(jnp.array([0]), jnp.array([1.0]), jnp.array([False]), on)
    end = eqx.tree_at(lambda m: m.terminal, step, on)
    memory = config.connect(config.connect(config.connect(memory, a, step, b), b, step, a), a, end, b)
    assert int(memory.edge_count) == 3 and int(memory.in_degree[TERMINAL]) == 1
    memory, c = config.insert(memory, keys[2:3], jnp.int32(3), on)
    assert int(c.node[0]) == int(a.node[0]) and not bool(graph.alive(memory, a)[0]) and bool(graph.alive(memory, b)[0])
    assert int(memory.edge_count) == 0 and int(memory.in_degree[TERMINAL]) == 0
    np.testing.assert_array_equal(graph.live(memory).next, -1)
    # The old handle adds nothing, and the slot that b's edge held is free for the next.
    assert int(config.connect(memory, a, step, b).edge_count) == 0
    memory = config.connect(memory, b, step, c)
    np.testing.assert_array_equal(graph.live(memory).next[b.node[0]], [c.node[0], -1, -1, -1])


def test_reads_skip_the_terminal_node_and_unknown_values() -> None:
    config = Graph(16, neighbors=3, delta=1.0)
    keys, on = jnp.array([[1.0], [2.0]]), jnp.array([True, True])
    memory, node = config.insert(config.empty(1, 2), keys, jnp.int32(1), on)
    memory = config.learn(memory, node, jnp.array([0, 0]), jnp.array([7.0, 0.0]), on)
    got = read(config, memory, jnp.zeros((1, 1)))
    # Squared distances 1 and 4: weights 1/2 and 1/5. The terminal node has key 0 and would weigh 1.
    np.testing.assert_allclose(got.q, [[5.0, 0.0]], rtol=1e-6)
    np.testing.assert_array_equal(got.known, [[True, False]])
    assert np.isinf(got.distance[0, 2])


def test_what_is_beyond_reach_is_not_used() -> None:
    """Nodes at 0 and 1; a query at 0.4 reads neither, and the one that was used earlier is still the next to go."""
    config = Graph(3, neighbors=1, reach=0.1)
    memory, node = config.insert(config.empty(1, 1), jnp.array([[0.0]]), jnp.int32(1), jnp.array([True]))
    memory, _ = config.insert(memory, jnp.array([[1.0]]), jnp.int32(2), jnp.array([True]))
    for time, query in ((3, 0.4), (4, 1.0)):
        memory = graph.touch(memory, config.used(read(config, memory, jnp.array([[query]]))), jnp.int32(time))
    memory, new = config.insert(memory, jnp.array([[2.0]]), jnp.int32(5), jnp.array([True]))
    assert int(new.node[0]) == int(node.node[0]) and memory.last_use.tolist() == [0, 5, 4]


def test_keys_move_slowly_and_values_fast() -> None:
    config = Graph(16, neighbors=1, merge=2.0, key_rate=0.1, value_rate=0.5)
    on = jnp.array([True])
    memory, node = config.insert(config.empty(1, 1), jnp.array([[0.0]]), jnp.int32(1), on)
    memory = config.learn(memory, node, jnp.array([0]), jnp.array([4.0]), on)
    memory, node = config.insert(memory, jnp.array([[1.0]]), jnp.int32(2), on)
    memory = config.learn(memory, node, jnp.array([0]), jnp.array([8.0]), on)
    np.testing.assert_allclose((memory.keys[node.node[0], 0], memory.q[node.node[0], 0]), (0.1, 6.0), rtol=1e-6)
    np.testing.assert_allclose(memory.norms[node.node[0]], 0.01, rtol=1e-5)


@pytest.mark.parametrize(("evict", "seeds"), [("lru", 2), ("visits", 0), ("score", 0)])
def test_no_table_is_copied(evict: Any, seeds: int) -> None:
    """Act, insert, connect, learn, touch in a loop, with the memory donated."""
    config = Graph(32_768, 4, neighbors=5, merge=0.1, key_rate=0.1, evict=evict)

    def step(carry: tuple[GraphState, Handle], x: tuple[Any, Any]) -> tuple[tuple[GraphState, Handle], Any]:
        (memory, at), (key, now) = carry, x
        got = config.read(memory, key)
        action = jnp.argmax(got.q, axis=1).astype(jnp.int32)
        memory = graph.touch(memory, got.index, now)
        on = jnp.ones(ROWS, bool)
        # The next key depends on the action, as an environment's does: what was read comes before what is written.
        memory, to = config.insert(memory, key + action[:, None], now, on)
        reward = jnp.max(got.q, axis=1)
        memory = config.connect(memory, at, Moves(action, reward, ~on, on), to)
        return (config.learn(memory, at, action, reward, on), to), got.q

    memory, keys = config.empty(32, ACTIONS), jnp.ones((3, ROWS, 32))
    run = lambda memory, keys: jax.lax.scan(step, (memory, graph.nowhere(ROWS)), (keys, jnp.arange(3)))  # noqa: E731
    if seeds:
        run = jax.vmap(run)
        memory, keys = jax.tree.map(lambda x: jnp.stack([x] * seeds), (memory, keys))
    compiled = jax.jit(run, donate_argnums=0).lower(memory, keys).compile(AS_TRAINED)
    assert copies(compiled, memory.last_use.nbytes) == []
    assert compiled.memory_analysis().temp_size_in_bytes < memory.keys.nbytes / 2
    (after, _), _ = compiled(memory, keys)
    assert memory.keys.is_deleted(), "it was not donated"
    assert np.all(np.asarray(after.nodes) > 0)


@pytest.mark.parametrize(
    "config",
    [Graph(8, neighbors=9), Graph(ROWS, neighbors=1), Graph(delta=0.0), Graph(value_rate=0.0), Graph(edges_per_node=0)],
)
def test_bad_sizes_are_refused(config: Graph) -> None:
    with pytest.raises(ConfigError, match="memory"):
        config.check(ROWS)
