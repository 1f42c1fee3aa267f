"""Graphs of states as arrays with room for a fixed number of nodes and of outgoing edges per node.

Node n has edges (n, slot); `next` is -1 where there is none. Every function does a bounded amount of work: the number
of hops, sweeps, clusters or backups is given. Values are q [node, action]; `known` marks the pairs that have one.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.ops.loops import once, repeat, settle

FAR = 1 << 30
"""Distance of what cannot be reached."""


class Edges(eqx.Module):
    """Outgoing edges of all nodes."""

    next: Int[Array, "node slot"]
    """The node that an edge leads to; -1 where there is no edge."""
    action: Int[Array, "node slot"]
    reward: Float[Array, "node slot"]
    visits: Int[Array, "node slot"]


class Canopies(eqx.Module):
    """Clusters of keys: a point may lie in several canopies, and is owned by the nearest."""

    center: Int[Array, "canopy"]
    """The node at the middle of each; -1 beyond the last."""
    size: Int[Array, "canopy"]
    """Nodes within t1 of each."""
    owner: Int[Array, "node"]
    """The nearest canopy within t1; -1 where there is none."""


# --- features and abstraction


def aggregate(
    features: Float[Array, "node dim"], next: Int[Array, "node slot"], hops: int, *, incoming: bool = False
) -> Float[Array, "node dim"]:
    """Features after `hops` rounds of taking the mean over a node and its neighbors (GraphSAGE's mean, untrained).

    Neighbors are where edges lead, and with `incoming` also where they come from. Two edges to a node count twice.
    """

    def hop(_: Array, h: Array) -> Array:
        def add(slot: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            total, count = sums
            to = next[:, slot]
            there = to >= 0
            total = total + jnp.where(there[:, None], h[to], 0.0)
            count = count + there
            if incoming:
                drop = jnp.where(there, to, next.shape[0])
                total, count = total.at[drop].add(h, mode="drop"), count.at[drop].add(1, mode="drop")
            return total, count

        total, count = repeat(next.shape[1], add, (h, jax.lax.full(h.shape[:1], 1, jnp.int32)))
        return total / count[:, None]

    return repeat(hops, hop, features)


def canopy(keys: Float[Array, "node dim"], filled: Bool[Array, "node"], t1: float, t2: float, limit: int) -> Canopies:
    """At most `limit` canopies (McCallum et al. 2000), for distances t1 > t2.

    The first node that no canopy holds tightly (within t2) opens the next one, which holds all nodes within t1.
    """

    def one(state: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        free, least, owner = state
        number, free = free[-1], free[:-1]
        center = jnp.argmax(free)
        found = free[center] == 1
        distance = jnp.where(filled, jnp.sum(jnp.square(keys - keys[center]), axis=1), jnp.inf)
        distance = jnp.where(found, distance, jnp.inf)
        mine = (distance <= t1**2) & (distance < least)
        state = (
            jnp.append(jnp.where(distance <= t2**2, 0, free), number + 1),
            jnp.where(mine, distance, least),
            jnp.where(mine, number, owner),
        )
        return state, (jnp.where(found, center, -1).astype(jnp.int32), jnp.sum(distance <= t1**2))

    n = keys.shape[0]
    start = (
        jnp.append(filled.astype(jnp.int32), 0),
        jax.lax.full((n,), jnp.inf, jnp.float32),
        jax.lax.full((n,), -1, jnp.int32),
    )
    (_, _, owner), (center, size) = jax.lax.scan(one, start, None, limit)
    return Canopies(center, size, owner)


def kmeans(
    keys: Float[Array, "node dim"], filled: Bool[Array, "node"], start: Float[Array, "cluster dim"], iterations: int
) -> tuple[Float[Array, "cluster dim"], Int[Array, "node"]]:
    """Lloyd's centroids after so many iterations, and each node's nearest one (-1: empty slot).

    A cluster without nodes stays where it is. Ties go to the lower cluster.
    """

    def assign(centroid: Array) -> Array:
        score = jnp.sum(jnp.square(centroid), axis=1) - 2.0 * keys @ centroid.T
        return jnp.where(filled, jnp.argmin(score, axis=1), -1).astype(jnp.int32)

    def step(_: Array, centroid: Array) -> Array:
        member = (assign(centroid)[None, :] == np.arange(centroid.shape[0])[:, None]).astype(keys.dtype)
        size = jnp.sum(member, axis=1, keepdims=True)
        return jnp.where(size > 0, member @ keys / jnp.maximum(size, 1), centroid)

    centroid = repeat(iterations, step, start)
    return centroid, assign(centroid)


def top_nodes(score: Float[Array, "node"], filled: Bool[Array, "node"], k: int) -> Int[Array, "k"]:
    """The k nodes with the highest scores, best first; -1 beyond the last node. Ties go to the lower node."""
    best, node = jax.lax.top_k(jnp.where(filled, score, -jnp.inf), k)
    return jnp.where(jnp.isneginf(best), -1, node)


def degree_score(
    into: Int[Array, "node"], out: Int[Array, "node"], visits: Int[Array, "node"], nodes: Int[Array, ""]
) -> Float[Array, "node"]:
    """(in-degree + out-degree) / sqrt(visits / nodes): well connected for how often a node is visited."""
    return (into + out) / jnp.sqrt(jnp.maximum(visits, 1) / nodes)


# --- paths


def distances_to(next: Int[Array, "node slot"], target: Int[Array, "target"], sweeps: int) -> Int[Array, "target node"]:
    """Edges on the shortest way from each node to each target, up to `sweeps`; `FAR` beyond. Targets may be -1.

    Bellman-Ford by gathers: a node takes the least of its successors' distances. Follow them with `walk`.
    """
    start = _start(next.shape[0], target)

    def sweep(_: Array, distance: Array) -> Array:
        def relax(slot: Array, best: Array) -> Array:
            to = next[:, slot]
            return jnp.minimum(best, jnp.where(to[:, None] >= 0, distance[to] + 1, FAR))

        return repeat(next.shape[1], relax, distance)

    return jnp.minimum(settle(sweeps, sweep, start), FAR).T


def distances_from(
    next: Int[Array, "node slot"], source: Int[Array, "source"], sweeps: int
) -> Int[Array, "source node"]:
    """Edges on the shortest way from each source to each node, up to `sweeps`; `FAR` beyond. Sources may be -1."""
    n = next.shape[0]

    def sweep(_: Array, distance: Array) -> Array:
        def relax(slot: Array, best: Array) -> Array:
            to = next[:, slot]
            return best.at[jnp.where(to >= 0, to, n)].min(distance + 1, mode="drop")

        return repeat(next.shape[1], relax, distance)

    return jnp.minimum(settle(sweeps, sweep, _start(n, source)), FAR).T


def _start(n: int, at: Int[Array, "source"]) -> Int[Array, "node source"]:
    """0 at each source, `FAR` elsewhere. Sources are the minor axis: a gather then moves whole rows."""
    columns = np.arange(at.shape[0])
    return jax.lax.full((n, at.shape[0]), FAR, jnp.int32).at[jnp.where(at >= 0, at, n), columns].set(0, mode="drop")


def walk(
    next: Int[Array, "node slot"], distance: Int[Array, "node"], start: Int[Array, ""], length: int
) -> tuple[Int[Array, "length"], Int[Array, "length"]]:
    """The shortest path from `start` as (node, slot) of its edges in order, -1 beyond its end.

    `distance` is a row of `distances_to`. A path longer than `length`, or to what cannot be reached, is empty.
    """
    reachable = (start >= 0) & (distance[start] <= length)

    def step(node: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        to = next[node]
        left = jnp.where(to >= 0, distance[to], FAR)
        slot = jnp.argmin(left).astype(jnp.int32)
        goes = reachable & (distance[node] > 0)
        return jnp.where(goes, to[slot], node), (jnp.where(goes, node, -1), jnp.where(goes, slot, -1))

    return jax.lax.scan(step, start.astype(jnp.int32), None, length)[1]


# --- values


def state_value(
    q: Float[Array, "*b action"], known: Bool[Array, "*#b action"], terminal: Bool[Array, "*#b"]
) -> Float[Array, "*b"]:
    """The best known value; 0 where none is known, and at terminal nodes."""
    best = jnp.max(jnp.where(known, q, -jnp.inf), axis=-1)
    return jnp.where(jnp.any(known, axis=-1) & ~terminal, best, 0.0)


def node_backup(
    q: Float[Array, "node action"],
    known: Bool[Array, "node action"],
    terminal: Bool[Array, "node"],
    edges: Edges,
    node: Int[Array, ""],
    gamma: float,
) -> tuple[Float[Array, "action"], Bool[Array, "action"]]:
    """r + gamma max q(next) for each action of a node, and which have it: those known that have an edge.

    Where edges of one action lead to several nodes, their mean by visits.
    """
    to = edges.next[node]
    target = edges.reward[node] + gamma * state_value(q[to], known[to], terminal[to])
    taken = (edges.action[node][:, None] == np.arange(q.shape[1])) & (to >= 0)[:, None]
    weight = jnp.where(taken, edges.visits[node][:, None], 0)
    total = jnp.sum(weight, axis=0)
    return jnp.sum(weight * target[:, None], axis=0) / jnp.maximum(total, 1), (total > 0) & known[node]


def backup_paths(
    q: Float[Array, "node action"],
    known: Bool[Array, "node action"],
    terminal: Bool[Array, "node"],
    edges: Edges,
    node: Int[Array, "path length"],
    slot: Int[Array, "path length"],
    gamma: float,
) -> tuple[Float[Array, "node action"], Int[Array, ""]]:
    """q after one backup for each edge of each path, from its end to its start, and the number of backups made.

    Paths are taken one after the other; a later one sees what an earlier one has changed.
    """

    def one(state: tuple[Array, Array], edge: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        (q, made), (node, slot) = state, edge
        target, has = node_backup(q, known, terminal, edges, node, gamma)
        action = edges.action[node, slot]
        real = (node >= 0) & has[action]
        q = q.at[jnp.where(real, node, q.shape[0]), action].set(target[action], mode="drop")
        return (q, made + real), None

    backward = (node[:, ::-1].reshape(-1), slot[:, ::-1].reshape(-1))
    return jax.lax.scan(one, (q, jnp.int32(0)), backward)[0]


def bellman_errors(
    q: Float[Array, "node action"],
    known: Bool[Array, "node action"],
    terminal: Bool[Array, "node"],
    edges: Edges,
    gamma: float,
) -> Float[Array, "node"]:
    """The largest |backup - q| of each node's actions: priorities to begin sweeping with."""

    def error(node: Array) -> Array:
        target, has = node_backup(q, known, terminal, edges, node, gamma)
        return jnp.max(jnp.where(has, jnp.abs(target - q[node]), 0.0))

    return jax.vmap(error)(jax.lax.iota(jnp.int32, q.shape[0]))


def sweep(
    q: Float[Array, "node action"],
    known: Bool[Array, "node action"],
    terminal: Bool[Array, "node"],
    edges: Edges,
    priority: Float[Array, "node"],
    gamma: float,
    backups: int,
    tolerance: float = 1e-6,
) -> tuple[Float[Array, "node action"], Float[Array, "node"], Int[Array, ""]]:
    """Prioritized sweeping (Moore and Atkeson 1993): q and priorities after at most `backups`, and how many were made.

    One backup changes one (node, action), as along a path. The node of highest priority is taken; its action of largest
    error is backed up; predecessors rise to gamma times the change of its value, by how often an edge leads here.
    Give a node whose edges or values changed a positive priority; keep what is returned for the next call.
    """
    same = edges.action[:, :, None] == edges.action[:, None, :]
    visits = jnp.where(edges.next >= 0, edges.visits, 0)
    chance = visits / jnp.maximum(jnp.sum(same * visits[:, None, :], axis=2), 1)

    def one(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        q, priority, made = state
        node = jnp.argmax(priority)
        read = partial(node_backup, q, known, terminal, edges, node, gamma)
        row, (target, has) = once(lambda: (q[node], read()), made)
        largest, order = jax.lax.top_k(jnp.append(jnp.where(has, jnp.abs(target - row), 0.0), 0.0), 2)
        error, second, action = largest[0], largest[1], order[0]
        real = (priority[node] > tolerance) & (error > tolerance)
        after = jnp.where((np.arange(row.shape[0]) == action) & real, target, row)
        values = state_value(jnp.stack([row, after]), known[node][None], terminal[node][None])
        change = jnp.abs(values[1] - values[0])
        q = q.at[jnp.where(real, node, q.shape[0]), action].set(target[action], mode="drop")
        rise = jnp.max(jnp.where(edges.next == node, chance, 0.0), axis=1) * (gamma * change)
        left = jnp.where(second > tolerance, second, 0.0)
        return q, jnp.maximum(priority.at[node].set(left), rise), made + real

    return repeat(backups, one, (q, priority, jnp.int32(0)))
