"""A graph of states that grows as an agent acts (GQ, GCMR, GBMR): nodes with action values, edges with rewards.

    memory, node = config.insert(memory, keys, now, where)         # one key per environment: merged, or a new node
    memory = config.connect(memory, node_tm1, Moves(...), node)    # the edge that led there
    memory = config.learn(memory, node_tm1, action, target, where) # its action value
    read = config.read(memory, query)                              # kernel-weighted values of the nearest nodes

A node that others remember (in a carry, in a ring of rows waiting for their n-step return) is a `Handle`: its slot and
the slot's generation. Evicting a node raises the generation, and that alone removes every edge to it, without a search
for them: an edge counts if the generation it was made for is still there. `live` returns the edges that count.

Node 0 is the terminal node: it is never found, never evicted, and its value is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Fraction, NonNegative, Positive
from rookery.memory.slots import Slots, first_of, place, running
from rookery.ops.graph import Edges
from rookery.ops.knn import kernel_mean, nearest
from rookery.ops.loops import once

TERMINAL = 0
"""The node that every terminating action leads to."""


class GraphState(eqx.Module):
    """Nodes and edges. A slot with infinite norm has no node (or is the terminal one)."""

    keys: Float[Array, "node dim"]
    norms: Float[Array, "node"]
    visits: Int[Array, "node"]
    last_use: Int[Array, "node"]
    generation: Int[Array, "node"]
    """How often the slot was evicted."""
    score: Float[Array, "node"]
    """What `evict: score` keeps nodes by, which abstraction sets. Infinite for new nodes: kept until scored."""
    q: Float[Array, "node action"]
    q_visits: Int[Array, "node action"]
    """Updates of each value; one without any is unknown."""
    in_degree: Int[Array, "node"]
    edges: Edges
    """May hold edges to evicted nodes: read them through `live`."""
    edge_generation: Int[Array, "node slot"]
    """Generation of the next node when the edge was made."""
    nodes: Int[Array, ""]
    """Nodes, without the terminal one."""
    edge_count: Int[Array, ""]
    merges: Int[Array, ""]
    evictions: Int[Array, ""]

    @property
    def filled(self) -> Bool[Array, "node"]:
        """Slots that hold a node, without the terminal one."""
        return jnp.isfinite(self.norms)

    @property
    def terminal(self) -> Bool[Array, "node"]:
        """The terminal node."""
        return jnp.arange(self.norms.shape[0]) == TERMINAL

    @property
    def known(self) -> Bool[Array, "node action"]:
        """Action values that were learned."""
        return self.q_visits > 0


class Handle(eqx.Module):
    """A node that may be evicted while it is remembered."""

    node: Int[Array, "*b row"]
    generation: Int[Array, "*b row"]


class Moves(eqx.Module):
    """Transitions between nodes."""

    action: Int[Array, "*b row"]
    reward: Float[Array, "*b row"]
    terminal: Bool[Array, "*b row"]
    """Leads to the terminal node instead."""
    where: Bool[Array, "*b row"]
    """Rows that are written."""


class GraphRead(eqx.Module):
    """What a query reads."""

    index: Int[Array, "query k"]
    distance: Float[Array, "query k"]
    """Squared; infinite where there are fewer than k nodes."""
    q: Float[Array, "query action"]
    known: Bool[Array, "query action"]
    """Whether a neighbor knows a value of this action; q is 0 elsewhere."""


class _Plan(eqx.Module):
    """What an insert found out before it writes."""

    slots: Slots
    key: Float[Array, "row dim"]
    """Of the row's node, after the batch."""
    old: Bool[Array, "row"]
    """Rows that evict a node."""
    out: Int[Array, "row slot"]
    """Where the evicted nodes' edges lead; -1 elsewhere."""
    removed: Int[Array, ""]
    """Edges that go with the evicted nodes."""
    generation: Int[Array, "row"]
    merges: Int[Array, ""]


class _EdgePlan(eqx.Module):
    """What a connect found out before it writes."""

    node: Int[Array, "row"]
    """The node whose edges a row holds; the capacity, which a scatter drops, where another row does."""
    edges: Edges
    generation: Int[Array, "row slot"]
    dropped: Int[Array, "row"]
    """Where edges led that gave way; -1 where none did."""
    added: Int[Array, "row"]
    """Where new edges lead; -1 where there is none."""


@dataclass(frozen=True)
class Graph:
    """A graph memory."""

    capacity: Count = 10_000
    """Nodes, with the terminal one. Multiples of 8 are searched fastest."""
    edges_per_node: Count = 8
    """Outgoing edges that a node keeps; the least visited goes."""
    neighbors: Count = 20
    """Nodes that a read averages."""
    delta: Positive = 1e-3
    """Added to squared distances in the kernel's weights."""
    merge: NonNegative = 0.0
    """A key up to this distance from a node is that node."""
    reach: NonNegative = 0.0
    """Distance beyond which a neighbor is not read; 0: all are."""
    key_rate: Fraction = 0.0
    """How far a node's key moves toward a key that merges with it; 0: never."""
    value_rate: Fraction = 0.5
    """How far a known action value moves toward its target."""
    evict: Literal["lru", "visits", "score"] = "lru"
    """The node that goes when the graph is full. lru: the least recently used. visits: that with the fewest visits for
    the square of the time since its last use, so that four times the visits keep a node twice as long; by visits alone
    a new node, with its one visit, would always be the next to go. score: that with the lowest score by which
    abstraction chooses key nodes. A node that was just used stays."""

    def check(self, rows: int) -> None:
        """Refuse sizes that do not fit together, for inserts of so many rows."""
        if self.capacity < max(self.neighbors, rows + 1):
            raise ConfigError(
                f"memory.capacity ({self.capacity}) must be at least memory.neighbors ({self.neighbors}), and more "
                f"than the rows inserted at a time ({rows}). Raise it, or lower those."
            )
        if min(self.neighbors, self.edges_per_node, self.delta) <= 0 or min(self.merge, self.reach) < 0:
            raise ConfigError(
                f"memory.neighbors ({self.neighbors}), memory.edges_per_node ({self.edges_per_node}) and memory.delta "
                f"({self.delta}) must be positive, memory.merge ({self.merge}) and memory.reach ({self.reach}) 0 or "
                "more."
            )
        if not (0 <= self.key_rate <= 1 and 0 < self.value_rate <= 1):
            raise ConfigError(
                f"memory.key_rate must be 0 to 1 and memory.value_rate above 0 and at most 1; got {self.key_rate} and "
                f"{self.value_rate}."
            )

    def empty(self, dim: int, actions: int) -> GraphState:
        """A graph with the terminal node alone."""
        n, slots = self.capacity, (self.capacity, self.edges_per_node)

        # An array for each field: no buffer can be donated twice.
        def zeros(*shape: int) -> Array:
            return jnp.zeros(shape, jnp.int32)

        return GraphState(
            keys=jnp.zeros((n, dim)),
            norms=jnp.full(n, jnp.inf),
            visits=zeros(n),
            last_use=zeros(n),
            generation=zeros(n),
            score=jnp.full(n, jnp.inf),
            q=jnp.zeros((n, actions)),
            q_visits=zeros(n, actions),
            in_degree=zeros(n),
            edges=Edges(jnp.full(slots, -1, jnp.int32), zeros(*slots), jnp.zeros(slots), zeros(*slots)),
            edge_generation=zeros(*slots),
            nodes=zeros(),
            edge_count=zeros(),
            merges=zeros(),
            evictions=zeros(),
        )

    def read(self, memory: GraphState, query: Float[Array, "query dim"]) -> GraphRead:
        """The kernel-weighted action values of each query's nearest nodes, and which those are."""
        memory, query = jax.lax.stop_gradient((memory, query))

        def look() -> GraphRead:
            near = nearest(memory.keys, memory.norms, query, self.neighbors)
            use = self.usable(memory, near.index, near.distance)
            q, known = kernel_mean(query, memory.keys[near.index], memory.q[near.index], use, self.delta)
            return GraphRead(near.index, near.distance, q, known)

        return once(look, memory.merges)

    def used(self, read: GraphRead) -> Int[Array, "query k"]:
        """The nodes of a read that are near enough; the capacity, which `touch` drops, in place of others."""
        return jnp.where(read.distance <= self.reach**2, read.index, self.capacity) if self.reach else read.index

    def usable(
        self, memory: GraphState, index: Int[Array, "query k"], distance: Float[Array, "query k"]
    ) -> Bool[Array, "query k action"]:
        """Which values of these nodes, at these squared distances, a read averages."""
        present = distance <= self.reach**2 if self.reach else jnp.isfinite(distance)
        return (memory.q_visits[index] > 0) & present[..., None]

    def insert(
        self, memory: GraphState, key: Float[Array, "row dim"], now: Int[Array, ""], where: Bool[Array, "row"]
    ) -> tuple[GraphState, Handle]:
        """The graph with each row's key in it, and the node it is: the nearest within `merge`, or a new one.

        Rows are compared with the graph before the batch, and with each other: equal new keys make one node.
        """
        memory, key = jax.lax.stop_gradient((memory, key))
        # All reads before all writes.
        plan = once(lambda: self._plan(memory, key, now, where), memory.merges)
        memory = _evict(memory, plan)
        slot, new = plan.slots.slot, plan.slots.new
        changed = slot if self.key_rate else jnp.where(new, slot, self.capacity)
        memory = eqx.tree_at(
            lambda m: (m.keys, m.norms, m.visits, m.last_use, m.nodes, m.merges),
            memory,
            (
                memory.keys.at[changed].set(plan.key, mode="drop"),
                memory.norms.at[changed].set(jnp.sum(jnp.square(plan.key), axis=1), mode="drop"),
                memory.visits.at[slot].add(1, mode="drop"),
                memory.last_use.at[slot].set(now, mode="drop"),
                memory.nodes + jnp.sum(new),
                memory.merges + plan.merges,
            ),
        )
        return memory, Handle(slot, plan.generation)

    def _plan(self, memory: GraphState, key: Array, now: Array, where: Array) -> _Plan:
        """What an insert writes, and where."""
        near = nearest(memory.keys, memory.norms, key, 1)
        same = jnp.sum(jnp.square(key[:, None] - key[None, :]), axis=-1) <= self.merge**2
        slots = place(near.index[:, 0], near.distance[:, 0] <= self.merge**2, same, where, self._priority(memory, now))
        slot, old = slots.slot, slots.new & memory.filled[slots.slot]
        key = running(slot, slots.new, where, memory.keys[slot], key, self.key_rate)
        out = _live(memory.generation, memory.edges.next[slot], memory.edge_generation[slot])
        out = jnp.where(old[:, None], out, -1)
        # Edges between evicted nodes are among both one's outgoing and the other's incoming ones: counted once.
        into = memory.in_degree[slot] - jnp.sum(out.reshape(1, -1) == slot[:, None], axis=1)
        removed = jnp.sum(out >= 0) + jnp.sum(jnp.where(old, into, 0))
        opened = jnp.any((slot[:, None] == slot[None, :]) & old[None, :], axis=1)
        generation = memory.generation[slot] + opened
        return _Plan(slots, key, old, out, removed, generation, jnp.sum(where & ~slots.new))

    def connect(self, memory: GraphState, node: Handle, moves: Moves, to: Handle) -> GraphState:
        """The graph with an edge for each row, or one more visit to it. Rows whose nodes were evicted add nothing.

        A new edge takes a free slot of its node, or that of the least visited edge. Rewards are running means.
        """
        plan = once(lambda: _plan_edges(memory, node, moves, to), memory.merges)
        at, edges, full = plan.node, memory.edges, self.capacity
        in_degree = memory.in_degree.at[jnp.where(plan.dropped >= 0, plan.dropped, full)].add(-1, mode="drop")
        new = Edges(
            edges.next.at[at].set(plan.edges.next, mode="drop"),
            edges.action.at[at].set(plan.edges.action, mode="drop"),
            edges.reward.at[at].set(plan.edges.reward, mode="drop"),
            edges.visits.at[at].set(plan.edges.visits, mode="drop"),
        )
        return eqx.tree_at(
            lambda m: (m.edges, m.edge_generation, m.in_degree, m.edge_count),
            memory,
            (
                new,
                memory.edge_generation.at[at].set(plan.generation, mode="drop"),
                in_degree.at[jnp.where(plan.added >= 0, plan.added, full)].add(1, mode="drop"),
                memory.edge_count + jnp.sum(plan.added >= 0) - jnp.sum(plan.dropped >= 0),
            ),
        )

    def learn(
        self,
        memory: GraphState,
        node: Handle,
        action: Int[Array, "row"],
        target: Float[Array, "row"],
        where: Bool[Array, "row"],
        first: Float[Array, "row"] | None = None,
    ) -> GraphState:
        """The graph with action values moved toward their targets; an unknown one starts at `first`, or its target."""
        full = self.capacity

        def look() -> tuple[Array, Array]:
            real = where & alive(memory, node)
            cell = jnp.where(real, node.node * memory.q.shape[1] + action, -1)
            opens = real & (memory.q_visits[node.node, action] == 0) & first_of(cell)
            given = target if first is None else jnp.where(opens, first, target)
            value = running(cell, opens, real, memory.q[node.node, action], given, self.value_rate)
            return jnp.where(real, node.node, full), value

        row, value = once(look, memory.merges)
        return eqx.tree_at(
            lambda m: (m.q, m.q_visits),
            memory,
            (
                memory.q.at[row, action].set(value, mode="drop"),
                memory.q_visits.at[row, action].add(1, mode="drop"),
            ),
        )

    def _priority(self, memory: GraphState, now: Int[Array, ""]) -> Float[Array, "node"] | Int[Array, "node"]:
        """What nodes are kept by: empty slots lowest, the terminal node out of reach."""
        if self.evict == "lru":
            kept = jnp.where(memory.filled, memory.last_use, -1)
            return jnp.where(memory.terminal, jnp.iinfo(jnp.int32).max, kept)
        idle = now - memory.last_use
        since = jnp.square(jnp.float32(1) * jnp.maximum(idle, 1))
        kept = memory.visits / since if self.evict == "visits" else memory.score
        # An environment stands on a node that was used now: without it, the edge to the new one would be lost.
        kept = jnp.where(idle > 0, kept, jnp.inf)
        kept = jnp.clip(kept, jnp.finfo(jnp.float32).min / 2, jnp.finfo(jnp.float32).max)
        return jnp.where(memory.terminal, jnp.inf, jnp.where(memory.filled, kept, jnp.finfo(jnp.float32).min))


def alive(memory: GraphState, handle: Handle) -> Bool[Array, "row"]:
    """Whether remembered nodes are still there."""
    inside = (handle.node >= 0) & (handle.node < memory.norms.shape[0])
    return inside & (memory.generation[handle.node] == handle.generation)


def live(memory: GraphState) -> Edges:
    """The edges, without those to evicted nodes: what the functions of `ops.graph` take."""
    edges = memory.edges
    next = _live(memory.generation, edges.next, memory.edge_generation)
    return Edges(next, edges.action, edges.reward, edges.visits)


def leaving(memory: GraphState, node: Int[Array, "row"]) -> tuple[Int[Array, "row slot"], Int[Array, "row slot"]]:
    """Where the edges of these nodes lead (-1: no edge), and by which actions."""
    next = _live(memory.generation, memory.edges.next[node], memory.edge_generation[node])
    return next, memory.edges.action[node]


def touch(memory: GraphState, index: Int[Array, "*b"], now: Int[Array, ""]) -> GraphState:
    """The graph with these nodes used at time `now`."""
    return eqx.tree_at(lambda m: m.last_use, memory, memory.last_use.at[index].set(now, mode="drop"))


def nowhere(rows: int) -> Handle:
    """Handles of no node: what a carry holds before an episode's first node."""
    return Handle(jnp.full(rows, -1, jnp.int32), jnp.zeros(rows, jnp.int32))


def _live(generation: Int[Array, "node"], next: Int[Array, "*e"], made_for: Int[Array, "*e"]) -> Int[Array, "*e"]:
    """Where edges lead; -1 for those whose node was evicted."""
    return jnp.where((next >= 0) & (generation[next] == made_for), next, -1)


def _plan_edges(memory: GraphState, node: Handle, moves: Moves, to: Handle) -> _EdgePlan:
    """The edges of the nodes that rows leave, after the rows, which are taken one after the other.

    Two environments may leave the same node: the first row of a node holds its edges while the batch is applied.
    """
    capacity, rows = memory.norms.shape[0], jnp.arange(moves.action.shape[0])
    target = jnp.where(moves.terminal, TERMINAL, to.node)
    real = alive(memory, node) & (moves.terminal | alive(memory, to)) & moves.where
    leaves = jnp.where(real, node.node, capacity)
    holder = jnp.argmax(leaves[:, None] == leaves[None, :], axis=1)
    own = jax.tree.map(lambda x: x[leaves], memory.edges)
    next = _live(memory.generation, own.next, memory.edge_generation[leaves])
    start = (Edges(next, own.action, own.reward, own.visits), memory.edge_generation[leaves])

    def add(carry: tuple[Edges, Array], row: tuple[Array, ...]) -> tuple[tuple[Edges, Array], tuple[Array, Array]]:
        (edges, generation), (at, real, to, made_for, action, reward) = carry, row
        equal = (edges.next[at] == to) & (edges.action[at] == action)
        known = jnp.any(equal)
        # The edge itself, or a free slot, or the least visited.
        slot = jnp.argmin(jnp.where(equal, -2, jnp.where(edges.next[at] < 0, -1, edges.visits[at])))
        visits = jnp.where(known, edges.visits[at, slot], 0) + 1
        mean = jnp.where(known, edges.reward[at, slot], 0.0)
        changes = real & ~known
        moved = (jnp.where(changes, edges.next[at, slot], -1), jnp.where(changes, to, -1))
        cell = (jnp.where(real, at, rows.shape[0]), slot)
        edges = Edges(
            edges.next.at[cell].set(to, mode="drop"),
            edges.action.at[cell].set(action, mode="drop"),
            edges.reward.at[cell].set(mean + (reward - mean) / visits, mode="drop"),
            edges.visits.at[cell].set(visits, mode="drop"),
        )
        return (edges, generation.at[cell].set(made_for, mode="drop")), moved

    each = (holder, real, target, memory.generation[target], moves.action, moves.reward)
    (edges, generation), (dropped, added) = jax.lax.scan(add, start, each)
    return _EdgePlan(jnp.where(holder == rows, leaves, capacity), edges, generation, dropped, added)


def _evict(memory: GraphState, plan: _Plan) -> GraphState:
    """The graph without the nodes whose slots are given to new ones, and without their edges."""
    capacity = memory.norms.shape[0]
    slot, new = plan.slots.slot, plan.slots.new
    gone = jnp.where(new, slot, capacity)
    into = memory.in_degree.at[jnp.where(plan.out >= 0, plan.out, capacity)].add(-1, mode="drop")
    return eqx.tree_at(
        lambda m: (
            *(m.visits, m.generation, m.score, m.q, m.q_visits, m.in_degree),
            *(m.edges.next, m.nodes, m.edge_count, m.evictions),
        ),
        memory,
        (
            memory.visits.at[gone].set(0, mode="drop"),
            memory.generation.at[jnp.where(plan.old, slot, capacity)].add(1, mode="drop"),
            memory.score.at[gone].set(jnp.inf, mode="drop"),
            memory.q.at[gone].set(0.0, mode="drop"),
            memory.q_visits.at[gone].set(0, mode="drop"),
            into.at[gone].set(0, mode="drop"),
            memory.edges.next.at[gone].set(-1, mode="drop"),
            memory.nodes - jnp.sum(plan.old),
            memory.edge_count - plan.removed,
            memory.evictions + jnp.sum(plan.old),
        ),
    )
