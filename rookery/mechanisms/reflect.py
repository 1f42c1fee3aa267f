"""What a graph memory does between steps: choose key nodes (abstraction), then propagate values (reconstruction).

Both do a bounded amount of work at each call, and every Bellman backup that is made is counted: reconstruction spends
updates that plain Q-learning does not have, so comparisons must say how many.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, Positive
from rookery.core.types import where_env
from rookery.mechanisms.gnn import Gnn, GnnState, embed
from rookery.memory.graph import TERMINAL, GraphState, Handle, alive, live
from rookery.ops import graph as ops
from rookery.ops.graph import Edges
from rookery.ops.knn import nearest
from rookery.ops.loops import once, repeat

Where = Bool[Array, "env"]
_LLOYD = 10
"""Steps of k-means from where it starts, which is the same at each call."""


class Trajectories(eqx.Module):
    """The nodes of the episodes under way, and of the best ones so far."""

    path: Handle
    """[env, length]"""
    length: Int[Array, "env"]
    returns: Float[Array, "env"]
    best: Handle
    """[trajectory, length]"""
    best_returns: Float[Array, "trajectory"]


@dataclass(frozen=True)
class Abstract:
    """Which nodes of the graph are key nodes."""

    method: Literal["none", "cluster", "kmeans", "gnn", "degree", "common"] = "none"
    """cluster: centers of canopies of keys (GCMR). kmeans: the nodes nearest to centroids of keys. gnn: nodes that
    differ most from the mean of their neighborhood (GBMR). degree: well connected for how often they are visited
    (GQSI). common: nodes that recur in the best trajectories (GQIL)."""
    nodes: Count = 8
    """Key nodes, at most."""
    t1: Positive = 1 / 3
    """Distance from its center up to which a canopy holds nodes."""
    t2: Positive = 2.5 / 9
    """Distance from its center up to which a canopy keeps nodes from opening another one; below t1."""
    hops: Count = 2
    """Rounds of aggregation of `gnn`."""
    gnn: Gnn = field(default_factory=Gnn)
    """A network of `gnn` over aggregated features, if it is trained."""
    trajectories: Count = 10
    """Best trajectories that `common` keeps."""
    length: Count = 256
    """Nodes of a trajectory that `common` keeps, the first ones."""

    @property
    def scores(self) -> bool:
        """Whether key nodes are those with the highest scores."""
        return self.method in ("gnn", "degree", "common")

    @property
    def remembers(self) -> bool:
        """Whether key nodes depend on more than the graph: on trajectories, or on a trained network."""
        return self.method == "common" or (self.method == "gnn" and self.gnn.steps > 0)

    def check(self, capacity: int, evict: str) -> None:
        """Refuse thresholds in the wrong order, more key nodes than the graph can have, and eviction without scores."""
        if evict == "score" and not self.scores:
            raise ConfigError(
                f"algo.graph.evict score needs scores of nodes, and algo.abstract.method {self.method} gives none: set "
                "it to gnn, degree or common, or evict lru or visits."
            )
        if self.method == "cluster" and self.t2 >= self.t1:
            raise ConfigError(f"algo.abstract.t2 ({self.t2}) must be below algo.abstract.t1 ({self.t1}).")
        if self.nodes > capacity:
            raise ConfigError(f"algo.abstract.nodes ({self.nodes}) must be at most algo.graph.capacity ({capacity}).")

    def empty(self, envs: int) -> Trajectories | None:
        """No trajectory yet; None for methods that need none."""
        if self.method != "common":
            return None

        def nodes(rows: int) -> Handle:
            return Handle(jnp.full((rows, self.length), -1, jnp.int32), jnp.zeros((rows, self.length), jnp.int32))

        best = jnp.full(self.trajectories, -jnp.inf)
        return Trajectories(nodes(envs), jnp.zeros(envs, jnp.int32), jnp.zeros(envs), nodes(self.trajectories), best)

    def begin(self, kept: Trajectories | None, node: Handle, first: Where) -> Trajectories | None:
        """The trajectories where those of some environments begin anew at these nodes."""
        if kept is None:
            return None
        start = where_env(first, node, jax.tree.map(lambda x: x[:, 0], kept.path))
        path = Handle(
            jnp.where(first[:, None], -1, kept.path.node).at[:, 0].set(start.node),
            kept.path.generation.at[:, 0].set(start.generation),
        )
        return replace(
            kept, path=path, length=jnp.where(first, 1, kept.length), returns=jnp.where(first, 0.0, kept.returns)
        )

    def follow(
        self, kept: Trajectories | None, node: Handle, reward: Float[Array, "env"], first: Where, last: Where
    ) -> Trajectories | None:
        """The trajectories after one more row of every environment."""
        if kept is None:
            return None
        envs = np.arange(first.shape[0])
        # A path is cleared where it begins; beyond its room nodes are dropped.
        at = jnp.where(first, 0, kept.length)
        path = Handle(
            jnp.where(first[:, None], -1, kept.path.node).at[envs, at].set(node.node, mode="drop"),
            kept.path.generation.at[envs, at].set(node.generation, mode="drop"),
        )
        returns = jnp.where(first, 0.0, kept.returns + reward)

        def rate(i: Array, best: tuple[Handle, Array]) -> tuple[Handle, Array]:
            handles, scores = best
            worst = jnp.argmin(scores)
            better = last[i] & (returns[i] > scores[worst])
            slot = jnp.where(better, worst, scores.shape[0])
            put = lambda x, new: x.at[slot].set(new[i], mode="drop")  # noqa: E731
            return jax.tree.map(put, handles, path), put(scores, returns)

        best, best_returns = repeat(first.shape[0], rate, (kept.best, kept.best_returns))
        return Trajectories(path, jnp.minimum(at + 1, self.length), returns, best, best_returns)

    def network(self, features: int, key: Array) -> GnnState | None:
        """The network of `gnn`; None where nothing is trained."""
        return self.gnn.init(features, key) if self.method == "gnn" else None

    def trained(self, gnn: GnnState | None, memory: GraphState, edges: Edges, key: Array) -> GnnState | None:
        """The network after it learned from the graph."""
        if gnn is None:
            return None
        features, next = _features(memory, edges)
        around = ops.aggregate(features, next, self.hops, incoming=True)
        return self.gnn.train(gnn, around, next, memory.filled, key)

    def key_nodes(
        self, memory: GraphState, edges: Edges, kept: Trajectories | None, gnn: GnnState | None = None
    ) -> Int[Array, "key"]:
        """The key nodes, -1 beyond the last."""
        filled = memory.filled
        if self.method == "cluster":
            return ops.canopy(memory.keys, filled, self.t1, self.t2, self.nodes).center
        if self.method == "kmeans":
            return _central(memory, self.nodes)
        score = self.score(memory, edges, kept, gnn)
        return ops.top_nodes(score, filled & (score > 0) if self.method == "common" else filled, self.nodes)

    def score(
        self, memory: GraphState, edges: Edges, kept: Trajectories | None, gnn: GnnState | None
    ) -> Float[Array, "node"]:
        """The scores of all nodes, of methods that have them."""
        if self.method == "degree":
            out = jnp.sum(edges.next >= 0, axis=1)
            return ops.degree_score(memory.in_degree, out, memory.visits, jnp.maximum(memory.nodes, 1))
        if self.method == "common":
            assert kept is not None, "made by `empty`"
            return _recurrence(memory, kept)
        return _contrast(memory, edges, self.hops, gnn)


def _recurrence(memory: GraphState, kept: Trajectories) -> Float[Array, "node"]:
    """In how many of the best trajectories each node occurs."""
    nodes = memory.norms.shape[0]

    def occurs(node: Array, generation: Array, score: Array) -> Array:
        # Returns may all be negative (Pong); places that no trajectory has taken are at minus infinity.
        real = alive(memory, Handle(node, generation)) & jnp.isfinite(score)
        return jnp.zeros(nodes).at[jnp.where(real, node, nodes)].set(1.0, mode="drop")

    return jnp.sum(jax.vmap(occurs)(kept.best.node, kept.best.generation, kept.best_returns), axis=0)


def _central(memory: GraphState, clusters: int) -> Int[Array, "key"]:
    """The node nearest to the centroid of each cluster of keys; -1 for clusters without nodes."""
    # From nodes at equal distances in the table on, which hold what was found at different times.
    rank = jnp.cumsum(memory.filled) - 1
    start = jnp.searchsorted(rank, np.arange(clusters) * memory.nodes // clusters)
    centroid, owner = ops.kmeans(memory.keys, memory.filled, memory.keys[start], _LLOYD)
    used = jnp.any(owner[None, :] == np.arange(clusters)[:, None], axis=1)
    return jnp.where(used, nearest(memory.keys, memory.norms, centroid, 1).index[:, 0], -1)


def _features(memory: GraphState, edges: Edges) -> tuple[Float[Array, "node n"], Int[Array, "node slot"]]:
    """What nodes are compared by (key, value), and their edges; the terminal node has no key of its own."""
    value = ops.state_value(memory.q, memory.known, memory.terminal)
    value = value / jnp.maximum(jnp.max(jnp.abs(value)), 1e-6)
    features = jnp.concatenate([memory.keys, value[:, None]], axis=1)
    return features, jnp.where(edges.next == TERMINAL, -1, edges.next)


def _contrast(memory: GraphState, edges: Edges, hops: int, gnn: GnnState | None) -> Float[Array, "node"]:
    """How far each node's features are from their mean over its `hops`-hop neighborhood.

    With a trained network: how far its embedding is from the mean of its neighbors' embeddings.
    """
    features, next = _features(memory, edges)
    around = ops.aggregate(features, next, hops, incoming=True)
    if gnn is not None:
        features = embed(gnn.weights, around)
        around = ops.aggregate(features, next, 1, incoming=True)
    return jnp.sum(jnp.square(features - around), axis=1)


@dataclass(frozen=True)
class Reconstruct:
    """Which Bellman backups are made besides those of the steps taken."""

    method: Literal["none", "key_paths", "from_start", "all_pairs", "sweep"] = "none"
    """Backups along shortest paths, from their ends to their starts: between key nodes, from the start of the episode
    to key nodes, between any nodes. sweep: prioritized sweeping instead."""
    every: Count = 1
    """Iterations between two calls."""
    paths: Count = 8
    """Paths of a call; calls go through all pairs in turn. Paths to the terminal node come first."""
    length: Count = 32
    """Edges of a path, at most."""
    backups: Count = 64
    """Backups of a call of `sweep`, at most."""
    tolerance: Positive = 1e-4
    """Errors that `sweep` leaves."""

    def check(self, abstract: str) -> None:
        """Refuse paths between key nodes that nobody chooses, and key nodes that nothing uses."""
        needs = self.method in ("key_paths", "from_start")
        if needs and abstract == "none":
            raise ConfigError(
                f"algo.reconstruct.method {self.method} needs key nodes: set algo.abstract.method to cluster, gnn, "
                "degree or common, or reconstruct with all_pairs or sweep."
            )
        if not needs and abstract != "none":
            raise ConfigError(
                f"algo.abstract.method {abstract} chooses key nodes that algo.reconstruct.method {self.method} does "
                "not use: set it to key_paths or from_start, or abstract.method to none."
            )

    def priorities(self, capacity: int) -> Float[Array, "node"] | None:
        """Priorities of `sweep`; None for the other methods."""
        return jnp.zeros(capacity) if self.method == "sweep" else None

    def notice(
        self,
        priority: Float[Array, "node"] | None,
        memory: GraphState,
        node: Handle,
        change: Float[Array, "row"],
        gamma: float,
    ) -> Float[Array, "node"] | None:
        """Priorities after the values of these nodes changed by so much: theirs, and those of their predecessors."""
        if priority is None:
            return None
        edges = live(memory)

        def error(n: Array) -> Array:
            target, has = ops.node_backup(memory.q, memory.known, memory.terminal, edges, n, gamma)
            return jnp.max(jnp.where(has, jnp.abs(target - memory.q[n]), 0.0))

        def look() -> tuple[Array, Array]:
            there = alive(memory, node)
            leads = jnp.any(edges.next[None] == node.node[:, None, None], axis=2) & there[:, None]
            rise = jnp.max(jnp.where(leads, gamma * change[:, None], 0.0), axis=0)
            return rise, jnp.where(there, jax.vmap(error)(node.node), 0.0)

        # All reads before the values are written again.
        rise, own = once(look, memory.merges)
        return jnp.maximum(priority, rise).at[node.node].max(own, mode="drop")

    def backups_of(
        self,
        memory: GraphState,
        priority: Float[Array, "node"] | None,
        key_nodes: Int[Array, "key"] | None,
        start: Handle,
        call: Int[Array, ""],
        gamma: float,
        key: Array,
    ) -> tuple[Float[Array, "node action"], Float[Array, "node"] | None, Int[Array, ""]]:
        """Values and priorities after one call, and the backups that it made."""
        edges = live(memory)
        about = (memory.q, memory.known, memory.terminal, edges)
        if priority is not None:
            return ops.sweep(*about, priority, gamma, self.backups, self.tolerance)
        paths = self._paths(memory, edges, key_nodes, start, call, key)
        q, made = ops.backup_paths(*about, *paths, gamma)
        return q, None, made

    def _paths(
        self,
        memory: GraphState,
        edges: Edges,
        key_nodes: Int[Array, "key"] | None,
        start: Handle,
        call: Int[Array, ""],
        key: Array,
    ) -> tuple[Int[Array, "path length"], Int[Array, "path length"]]:
        """(node, slot) of the edges of this call's paths."""
        if key_nodes is None:
            score = jnp.where(memory.filled, 0.0, -jnp.inf)
            draw = partial(jax.random.categorical, logits=score, shape=(self.paths,))
            source, targets = draw(stream(key, "source")), draw(stream(key, "target")).at[0].set(TERMINAL)
            target = np.arange(self.paths)
        else:
            targets = jnp.append(jnp.int32(TERMINAL), key_nodes)
            sources = key_nodes if self.method == "key_paths" else jnp.where(alive(memory, start), start.node, -1)
            pair = (call * self.paths + np.arange(self.paths)) % (targets.shape[0] * sources.shape[0])
            source, target = sources[pair % sources.shape[0]], pair // sources.shape[0]
        # Once for each target: many paths may lead to it.
        distance = ops.distances_to(edges.next, targets, self.length)
        return jax.vmap(lambda t, s: ops.walk(edges.next, distance[t], s, self.length))(target, source)


class Reflection(eqx.Module):
    """What reflecting on a graph keeps."""

    start: Handle
    """The first node of each environment's episode."""
    trajectories: Trajectories | None
    priority: Float[Array, "node"] | None
    updates: Int[Array, ""]
    """Backups made so far."""
    gnn: GnnState | None = None
    """A trained network of the abstraction only."""


_Now = tuple[Array, Array | None, Array, GnnState | None, Array | None]


def reflect(
    abstract: Abstract,
    reconstruct: Reconstruct,
    memory: GraphState,
    kept: Reflection,
    gamma: float,
    iteration: Int[Array, ""],
    key: Array,
    *,
    scored: bool = False,
) -> tuple[GraphState, Reflection]:
    """The graph after one call of reconstruction, in every so many iterations; `scored`: with new scores of nodes."""
    if reconstruct.method == "none":
        return memory, kept

    def call(_: Array, now: _Now) -> _Now:
        q, priority, made, gnn, score = now
        # The graph with the loop's own values: the ones from outside would have to be kept beside them.
        graph = eqx.tree_at(lambda m: m.q, memory, q)
        keys = None
        if abstract.method != "none":
            gnn = abstract.trained(gnn, graph, live(graph), stream(key, "gnn"))
            keys = abstract.key_nodes(graph, live(graph), kept.trajectories, gnn)
        if score is not None:
            score = jnp.where(graph.filled, abstract.score(graph, live(graph), kept.trajectories, gnn), jnp.inf)
        number = iteration // reconstruct.every
        q, priority, more = reconstruct.backups_of(graph, priority, keys, kept.start, number, gamma, key)
        return q, priority, made + more, gnn, score

    # A loop of no or one round: a branch would copy the values that it returns.
    times = jnp.where(iteration % reconstruct.every == 0, 1, 0)
    start = (memory.q, kept.priority, kept.updates, kept.gnn, memory.score if scored else None)
    q, priority, updates, gnn, score = repeat(times, call, start)
    memory = eqx.tree_at(lambda m: (m.q, m.score), memory, (q, memory.score if score is None else score))
    return memory, replace(kept, priority=priority, updates=updates, gnn=gnn)
