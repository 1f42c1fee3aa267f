"""What a stream of transitions leaves in a memory: nodes and edges at once, action values when targets are complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.ranges import Count
from rookery.core.types import Clock, Mean, Metrics, Rollout, Step, where_env
from rookery.mechanisms import frontier as frontiers
from rookery.mechanisms.encode import EncoderParams
from rookery.mechanisms.frontier import Frontier
from rookery.mechanisms.reflect import Abstract, Reconstruct, Reflection, reflect
from rookery.memory import dictionary as dictionaries
from rookery.memory import examples, pending
from rookery.memory import graph as graphs
from rookery.memory.dictionary import Dictionary, DictionaryState, Read, Rows
from rookery.memory.examples import Examples
from rookery.memory.graph import Graph, GraphRead, GraphState, Handle, Moves, alive
from rookery.memory.pending import Due, Ring
from rookery.memory.slots import fingerprint
from rookery.memory.transition import Transition
from rookery.ops.graph import state_value
from rookery.ops.loops import once, repeat, widest

Table = DictionaryState | GraphState


class View(eqx.Module):
    """What acting reads."""

    encoder: EncoderParams
    memory: Table
    actor: Any = None
    """Weights of an actor over what is read; None where actions follow the values themselves."""
    frontier: Frontier | None = None
    """Distances to untried actions, if exploration is directed by them."""


class Values(eqx.Module):
    """Action values that were read, and which of them are known."""

    q: Float[Array, "*b action"]
    known: Bool[Array, "*b action"]


class After(eqx.Module):
    """What an action led to."""

    node: Handle
    reward: Float[Array, "*b"]
    discount: Float[Array, "*b"]
    """gamma, or 0 where it ended the return."""


class Kept(eqx.Module):
    """What waits with a transition for its target; None where the memory does not need it."""

    node: Handle | None
    """Graphs: the node of its state."""
    key: Float[Array, "*b dim"] | None
    """Dictionaries: the key of its state when it was visited."""
    hashed: Array | None
    """Dictionaries: the fingerprint of its observation."""
    row: Int[Array, "*b"] | None
    """Trained encoders: where its observation is among the examples."""
    after: After | None = None
    """Graphs with one-step targets: what a known value is bootstrapped from."""


class Stream(eqx.Module):
    """What transitions have left, besides the memory itself."""

    ring: Ring
    node: Handle | None
    """Graphs: the node of each environment's newest row."""
    reflection: Reflection | None
    """Graphs only."""
    store: Examples | None
    """Trained encoders only."""
    frontier: Frontier | None
    """Graphs whose exploration it directs only."""


@dataclass(frozen=True)
class Write:
    """What is written, and when."""

    n: Count = 1
    """Rewards in a target before it is bootstrapped."""
    drain: Count = 4
    """Rows of each environment that a step writes, at most; where an episode's end completes more targets, the rest
    follow in the next steps. n or more: all at once."""
    first: Literal["target", "reward", "zero"] = "target"
    """What an action value starts at: its first target, its first n rewards, or 0 (then it moves to its target)."""
    later: Literal["n_step", "one_step"] = "n_step"
    """What a known action value of a graph moves to. n_step: the n-step target, as at first. one_step: the reward and
    the value of the next node, where that is known."""
    bootstrap: bool = True
    """Bootstrap targets that end before the episode does; off: they are sums of n rewards (MFEC with a large n)."""


@dataclass(frozen=True)
class Writer:
    """A memory, and how transitions enter it."""

    memory: Dictionary | Graph
    write: Write
    abstract: Abstract
    reconstruct: Reconstruct
    gamma: float
    frontier: bool = False
    """Keep track of how far untried actions are."""

    @property
    def drain(self) -> int:
        """Rows of each environment that are written at a time, at most."""
        return min(self.write.drain, self.write.n)

    def init(self, dim: int, actions: int, envs: int, store: Examples | None, key: Array) -> tuple[Table, Stream]:
        """An empty memory, and a stream that has not begun."""
        row = None if store is None else jnp.zeros(envs, jnp.int32)
        memory = self.memory.empty(dim, actions)
        if isinstance(self.memory, Graph):
            node = graphs.nowhere(envs)
            after = After(node, jnp.zeros(envs), jnp.zeros(envs)) if self.write.later == "one_step" else None
            kept = Kept(node, None, None, row, after)
            trajectories, priority = self.abstract.empty(envs), self.reconstruct.priorities(self.memory.capacity)
            network = self.abstract.network(dim + 1, key)
            reflection = Reflection(graphs.nowhere(envs), trajectories, priority, jnp.int32(0), network)
        else:
            kept, node = Kept(None, jnp.zeros((envs, dim)), jnp.zeros((envs, 2), jnp.uint32), row), None
            reflection = None
        frontier = frontiers.unexplored(self.memory.capacity) if self.frontier else None
        return memory, Stream(pending.empty(kept, self.write.n, envs), node, reflection, store, frontier)

    def read(self, memory: Table, query: Float[Array, "query dim"]) -> Read | GraphRead:
        """The action values of the nearest entries."""
        config: Any = self.memory  # the table is of its kind
        return config.read(memory, query)

    def used(self, read: Read | GraphRead) -> Array:
        """The entries of a read that count as used, for `row`."""
        config: Any = self.memory  # the table is of its kind
        return config.used(read)

    def see(
        self, memory: Table, stream: Stream, step: Step, key: Float[Array, "row env dim"], clock: Clock
    ) -> tuple[Table, Stream]:
        """What the rows of a rollout leave before its transitions are written: frames, and nodes of episodes that
        begin where none had ended, which are the run's first ones, and those after a resume that could not go on."""
        # Where the row was seen before, all rows of the episode before it are complete.
        stream = replace(stream, ring=pending.forget(stream.ring, step.first[0]))
        now = clock.iteration * (key.shape[0] - 1)
        if stream.store is not None:
            stream = replace(stream, store=examples.see(stream.store, step.obs, step.first, now))
        if isinstance(memory, GraphState):
            return self._open(memory, stream, key[0], step.first[0], now)
        return memory, stream

    def _open(
        self,
        memory: GraphState,
        stream: Stream,
        key: Float[Array, "env dim"],
        first: Bool[Array, "env"],
        now: Int[Array, ""],
    ) -> tuple[GraphState, Stream]:
        """First rows that no transition has led to become nodes; every other row does when one leads to it."""
        config, reflection, node = self.memory, stream.reflection, stream.node
        assert isinstance(config, Graph) and reflection is not None and node is not None, "made by `init`"
        start = reflection.start
        seen = (node.node == start.node) & (node.generation == start.generation)
        opens = first & (~seen | (now == 0))

        def insert(_: Array, state: tuple[GraphState, Handle]) -> tuple[GraphState, Handle]:
            memory, new = config.insert(state[0], key, now, opens)
            return memory, where_env(opens, new, state[1])

        # A loop of no or one round: a branch would copy the graph. Members insert together, or none does.
        rounds = widest(jnp.any(opens).astype(jnp.int32))
        memory, node = repeat(rounds, insert, (memory, node))
        trajectories = self.abstract.begin(reflection.trajectories, node, opens)
        reflection = replace(reflection, start=where_env(opens, node, start), trajectories=trajectories)
        return memory, replace(stream, node=node, reflection=reflection)

    def transitions(self, rollout: Rollout, keys: Float[Array, "row env dim"], clock: Clock) -> Transition:
        """What `row` takes one after the other: the transitions of a rollout whose rows have these keys."""
        obs, legal = rollout.step.obs[:-1], rollout.step.legal[:-1, :, 0]
        return Transition.of(rollout, keys, clock, obs=obs, legal=legal, read=rollout.extra["read"])

    def row(self, memory: Table, stream: Stream, row: Transition) -> tuple[Table, Stream, Values, Metrics]:
        """The memory after one transition of every environment, and what was read of the row that it led to."""
        step = self._graph_row if isinstance(memory, GraphState) else self._dictionary_row
        memory, stream, due, read = step(memory, stream, row)
        store = stream.store
        if store is not None:
            store = examples.complete(store, due.kept.row, due.action, due.target, due.where)
        metrics = {"writes": Mean.of(jnp.sum(due.where)), "target": Mean.of(due.target, due.where)}
        return memory, replace(stream, store=store), Values(read.q, read.known), metrics

    def _due(self, stream: Stream, row: Transition, kept: Kept, read: Read | GraphRead) -> tuple[Ring, Due]:
        """The ring after a transition, and the rows whose targets are written now."""
        if stream.store is not None:
            kept = replace(kept, row=jnp.broadcast_to(row.now, row.action.shape))
        legal = row.step.legal[:, 0]
        # Where every value starts at 0, the unknown ones are 0.
        value = state_value(read.q, legal if self.write.first == "zero" else legal & read.known, row.terminal)
        if not self.write.bootstrap:
            value = jnp.zeros_like(value)
        discount = jnp.where(row.terminal, 0.0, self.gamma)
        transition = pending.Row(kept, row.action, row.reward, discount, value, row.step.last, row.filled)
        return pending.step(stream.ring, transition, row.now, self.drain)

    def _first(self, due: Due, rate: float) -> Float[Array, "row"] | None:
        """What action values without any start at; None: at their targets."""
        return {"target": None, "reward": due.rewards, "zero": rate * due.target}[self.write.first]

    def _graph_row(self, memory: Table, stream: Stream, row: Transition) -> tuple[Table, Stream, Due, GraphRead]:
        config, reflection, node_tm1 = self.memory, stream.reflection, stream.node
        assert isinstance(config, Graph) and isinstance(memory, GraphState), "made by `init`"
        assert reflection is not None and node_tm1 is not None, "made by `init`"
        memory = graphs.touch(memory, row.extra["read"], row.now)
        # A lost life ends a return, not the game: its row is a state like any other.
        memory, node = config.insert(memory, row.key, row.now, ~(row.terminal & row.step.last))
        moves = Moves(row.action, row.reward, row.terminal, row.filled)
        memory = config.connect(memory, node_tm1, moves, node)
        read = config.read(memory, row.key)
        after = None
        if self.write.later == "one_step":
            after = After(node, row.reward, jnp.where(row.terminal, 0.0, self.gamma))
        ring, due = self._due(stream, row, Kept(node_tm1, None, None, None, after), read)
        at = due.kept.node
        before = once(lambda graph=memory: _value_of(graph, at), memory.merges)
        if reflection.priority is not None:
            # A write that does not depend on what was read before it makes XLA copy the table.
            due = replace(due, target=jnp.where(jnp.isnan(before), jnp.nan, due.target))
        first = self._first(due, config.value_rate)
        target = due.target
        if after is not None:
            target = once(lambda graph=memory, due=due: _later(graph, due), memory.merges)
        memory = config.learn(memory, at, due.action, target, due.where, first)
        change = jnp.where(due.where, jnp.abs(_value_of(memory, at) - before), 0.0)
        priority = self.reconstruct.notice(reflection.priority, memory, at, change, self.gamma)
        opens, closes = row.step.first, row.step.last & row.filled
        trajectories = self.abstract.follow(reflection.trajectories, node, row.reward, opens, closes)
        start = where_env(opens, node, reflection.start)
        reflection = replace(reflection, start=start, trajectories=trajectories, priority=priority)
        frontier = stream.frontier
        if frontier is not None:
            frontier = frontiers.leave(memory, frontier, node_tm1, row.extra["legal"], node)
        return memory, Stream(ring, node, reflection, stream.store, frontier), due, read

    def _dictionary_row(self, memory: Table, stream: Stream, row: Transition) -> tuple[Table, Stream, Due, Read]:
        config = self.memory
        assert isinstance(config, Dictionary) and isinstance(memory, DictionaryState), "made by `init`"
        memory = dictionaries.touch(memory, jnp.moveaxis(row.extra["read"], 0, -2), row.now)
        read = config.read(memory, row.key)
        ring, due = self._due(stream, row, Kept(None, row.key_tm1, fingerprint(row.extra["obs"]), None), read)
        first = self._first(due, config.rate)
        rows = Rows(due.kept.key, due.action, due.target, due.where, due.kept.hashed, first)
        memory, _ = config.write(memory, rows, row.now)
        return memory, replace(stream, ring=ring), due, read

    def reflect(self, memory: Table, stream: Stream, iteration: Int[Array, ""], key: Array) -> tuple[Table, Stream]:
        """Graphs: the memory after a call of reconstruction, in every so many iterations."""
        if stream.reflection is None or not isinstance(memory, GraphState):
            return memory, stream
        plan = (self.abstract, self.reconstruct)
        scored = isinstance(self.memory, Graph) and self.memory.evict == "score"
        memory, reflection = reflect(*plan, memory, stream.reflection, self.gamma, iteration, key, scored=scored)
        return memory, replace(stream, reflection=reflection)

    def counts(self, memory: Table, stream: Stream) -> Metrics:
        """The memory's size, and what was spent on it so far."""
        graph = isinstance(memory, GraphState)
        counts = {
            "nodes": memory.nodes if graph else jnp.sum(memory.count),
            "edges": memory.edge_count if graph else jnp.int32(0),
            "merges": memory.merges,
            "evictions": memory.evictions,
            "reconstruction_updates": jnp.int32(0) if stream.reflection is None else stream.reflection.updates,
        }
        if stream.reflection is not None and stream.reflection.gnn is not None:
            counts["gnn_loss"] = stream.reflection.gnn.loss
        return Mean.of_each(counts)


def _later(memory: GraphState, due: Due) -> Float[Array, "row"]:
    """Targets that are one-step where the action value is known, and what it leads to as well."""
    after, visits = due.kept.after, memory.q_visits
    ends, to = after.discount == 0.0, after.node.node
    leads = ends | (alive(memory, after.node) & jnp.any(visits[to] > 0, axis=-1))
    value = jnp.where(ends, 0.0, after.discount * state_value(memory.q[to], visits[to] > 0, ends))
    return jnp.where((visits[due.kept.node.node, due.action] > 0) & leads, after.reward + value, due.target)


def _value_of(memory: GraphState, at: Handle) -> Float[Array, "row"]:
    """The best known action value of nodes."""
    return state_value(memory.q[at.node], memory.q_visits[at.node] > 0, jnp.bool_(False))
