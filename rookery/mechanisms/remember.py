"""What a value network is told by a memory of what was: a second target for the states that it remembers.

best (EMDQN, Lin et al. 2018): a dictionary keeps the best return that followed each state and action. graph (ERLAM, Zhu
et al. 2020): a graph of states, along whose trajectories values are propagated from the end of an episode to its start,
so that episodes which share states share what they found. Both are written by the stream of transitions as it comes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, NonNegative
from rookery.core.types import Action, Clock, Collect, Mean, Metrics, Rollout, Spec, Step
from rookery.mechanisms.encode import Encoder, EncoderParams
from rookery.memory import dictionary as dictionaries
from rookery.memory import graph as graphs
from rookery.memory import pending
from rookery.memory.dictionary import Dictionary, DictionaryState, Rows
from rookery.memory.graph import Graph, GraphState, Handle, Moves, live
from rookery.memory.pending import Ring
from rookery.memory.slots import fingerprint
from rookery.memory.transition import Transition
from rookery.ops.graph import node_backup, state_value
from rookery.ops.loops import repeat

SAME = 1e-3
"""Distance up to which two keys are one state: rounding, and nothing more."""
DRAIN = 4
"""Returns of each environment that a step writes, at most; the rest follow in the next steps."""
EDGES = 8
"""Outgoing edges that a node of the graph keeps."""


class Trail(eqx.Module):
    """The newest transitions of the episodes under way, a ring for each environment."""

    node: Handle
    """[length, env]"""
    action: Int[Array, "length env"]
    count: Int[Array, "env"]
    """Transitions since the episode's start."""


class Remembered(eqx.Module):
    """The memory, and what waits to be written into it."""

    encoder: EncoderParams
    memory: DictionaryState | GraphState
    waiting: Ring | Trail


@dataclass(frozen=True)
class Remember:
    """A second target, weight * (Q - remembered value)^2, for states that a memory knows."""

    kind: Literal["none", "best", "graph"] = "none"
    """best: the best return so far of each state and action (EMDQN). graph: values propagated backward over a graph of
    states at the end of each episode (ERLAM)."""
    weight: NonNegative = 0.1
    """Of the second target's squared error, beside that of the TD error."""
    capacity: Count = 8192
    """States that are remembered; the least recently used is forgotten."""
    dim: Count = 16
    """Length of a state's key, a random projection of the observation."""
    length: Count = 128
    """best: rewards of a return; a longer one ends with the best that is remembered of the state it reached. graph: the
    newest transitions of an episode, along which values are propagated."""

    def check(self, spec: Spec, collect: Collect, *, alone: bool) -> None:
        """Refuse what a memory of one agent's stream cannot do; `alone`: no mixer, credit, sharing or atoms."""
        if self.kind == "none":
            return
        if spec.n_agents != 1 or not alone:
            raise ConfigError(
                f"algo.remember.kind {self.kind} is for one agent without mixer, credit, share and atoms; "
                f"{spec.name} has {spec.n_agents} agents. Use --algo.remember.kind none, or a task for one agent."
            )
        if collect.restart or collect.shards > 1:
            raise ConfigError(
                f"algo.remember.kind {self.kind} is written by one stream of transitions; use "
                f"--algo.collect.no-restart and --algo.collect.shards 1 (got {collect.restart} and {collect.shards})."
            )
        if self.kind == "best":
            self._dictionary.check(collect.envs * DRAIN)
        else:
            self._graph.check(collect.envs)

    def small(self) -> Remember:
        """The same memory with little of everything."""
        return self if self.kind == "none" else replace(self, capacity=32, dim=4, length=4)

    @property
    def _encoder(self) -> Encoder:
        return Encoder("random", dim=self.dim)

    @property
    def _dictionary(self) -> Dictionary:
        return Dictionary(self.capacity, "shared", neighbors=1, update="max", reach=SAME)

    @property
    def _graph(self) -> Graph:
        return Graph(self.capacity, EDGES, neighbors=1, merge=SAME, reach=SAME, value_rate=1.0)

    def init(self, spec: Spec, envs: int, key: Array) -> Remembered | None:
        """An empty memory; None where nothing is remembered."""
        if self.kind == "none":
            return None
        encoder = self._encoder.init(spec, key)
        if self.kind == "best":
            kept = (jnp.zeros((envs, self.dim)), jnp.zeros((envs, 2), jnp.uint32))
            memory = self._dictionary.empty(self.dim, spec.action.width)
            return Remembered(encoder, memory, pending.empty(kept, self.length, envs))
        slots = (self.length, envs)
        node = Handle(jnp.full(slots, -1, jnp.int32), jnp.zeros(slots, jnp.int32))
        trail = Trail(node, jnp.zeros(slots, jnp.int32), jnp.zeros(envs, jnp.int32))
        return Remembered(encoder, self._graph.empty(self.dim, spec.action.width), trail)

    def write(
        self, spec: Spec, kept: Remembered | None, rollout: Rollout, gamma: float, clock: Clock
    ) -> tuple[Remembered | None, Metrics]:
        """The memory after the transitions of a rollout, one after the other."""
        if kept is None:
            return None, {}
        keys = self._encoder(spec, kept.encoder, rollout.step.obs)
        rows = Transition.of(rollout, keys, clock, hashed=jax.vmap(fingerprint)(rollout.step.obs[:-1]))
        memory, waiting = kept.memory, kept.waiting
        if isinstance(memory, GraphState):
            assert isinstance(waiting, Trail), "made by `init`"
            # An episode that begins where none had ended (a run was resumed with fresh ones) has a trail of its own.
            waiting = replace(waiting, count=jnp.where(rollout.step.first[0], 0, waiting.count))
            # Every other row becomes a node when a transition leads to it.
            there = ~rollout.step.last[0] | (rollout.step.discount[0, :, 0] > 0.0)
            memory, node = self._graph.insert(memory, keys[0], rows.now[0], there)
            (memory, waiting, _), _ = jax.lax.scan(partial(self._graph_row, gamma), (memory, waiting, node), rows)
            entries = memory.nodes
        else:
            assert isinstance(waiting, Ring), "made by `init`"
            waiting = pending.forget(waiting, rollout.step.first[0])
            (memory, waiting), _ = jax.lax.scan(partial(self._best_row, gamma), (memory, waiting), rows)
            entries = memory.count[0]
        found = {"remember/entries": entries, "remember/evictions": memory.evictions}
        return Remembered(kept.encoder, memory, waiting), Mean.of_each(found)

    def _best_row(
        self, gamma: float, kept: tuple[DictionaryState, Ring], row: Transition
    ) -> tuple[tuple[DictionaryState, Ring], None]:
        (memory, ring), table = kept, self._dictionary
        read = table.read(memory, row.key)
        memory = dictionaries.touch(memory, table.used(read), row.now)
        value = state_value(read.q, read.known & row.step.legal[:, 0], row.terminal)
        discount = jnp.where(row.terminal, 0.0, gamma)
        about = (row.key_tm1, row.extra["hashed"])
        waits = pending.Row(about, row.action, row.reward, discount, value, row.step.last, row.filled)
        ring, due = pending.step(ring, waits, row.now, min(DRAIN, self.length))
        key, hashed = due.kept
        return (table.write(memory, Rows(key, due.action, due.target, due.where, hashed), row.now)[0], ring), None

    def _graph_row(
        self, gamma: float, kept: tuple[GraphState, Trail, Handle], row: Transition
    ) -> tuple[tuple[GraphState, Trail, Handle], None]:
        (memory, trail, node_tm1), table = kept, self._graph
        # A lost life ends a return, not the game: its row is a state like any other.
        memory, node = table.insert(memory, row.key, row.now, ~(row.terminal & row.step.last))
        memory = table.connect(memory, node_tm1, Moves(row.action, row.reward, row.terminal, row.filled), node)
        known = (memory.q_visits[node.node] > 0) & row.step.legal[:, 0]
        target = row.reward + gamma * state_value(memory.q[node.node], known, row.terminal)
        memory = table.learn(memory, node_tm1, row.action, target, row.filled)
        trail, ends = _follow(trail, node_tm1, row), row.step.last & row.filled
        memory = _propagate(memory, trail, ends, gamma)
        trail = replace(trail, count=jnp.where(row.step.last, 0, trail.count))
        return (memory, trail, node), None

    def penalty(
        self, spec: Spec, kept: Remembered | None, step: Step, action: Action, q: Float[Array, "time b 1"], valid: Array
    ) -> tuple[Float[Array, "time b 1"], Metrics]:
        """weight * (Q - remembered value)^2 of each action taken, 0 for what is not remembered, and how much is."""
        assert kept is not None, "made by `init`"
        keys = self._encoder(spec, kept.encoder, step.obs[:-1]).reshape(-1, self.dim)
        if isinstance(kept.memory, GraphState):
            read = self._graph.read(kept.memory, keys)
        else:
            read = self._dictionary.read(kept.memory, keys)
        at = action.reshape(-1, 1)
        value, known = (jnp.take_along_axis(x, at, axis=1).reshape(q.shape) for x in (read.q, read.known))
        known = known & valid
        squares = jnp.where(known, self.weight * jnp.square(q - value), 0.0)
        about = {
            "remember/known": Mean.of(known, valid),
            "remember/target": Mean.of(value, known),
            "remember/loss": Mean.of(jax.lax.stop_gradient(squares), valid),
        }
        return squares, about


def _follow(trail: Trail, node: Handle, row: Transition) -> Trail:
    """The trail with one more transition of every environment."""
    length, envs = trail.action.shape
    at = (jnp.where(row.filled, trail.count % length, length), np.arange(envs))
    put = lambda x, new: x.at[at].set(new, mode="drop")  # noqa: E731
    return Trail(jax.tree.map(put, trail.node, node), put(trail.action, row.action), trail.count + row.filled)


def _propagate(memory: GraphState, trail: Trail, ends: Bool[Array, "env"], gamma: float) -> GraphState:
    """The graph after backups along the trails of the episodes that end, from their ends to their starts."""
    length, envs = trail.action.shape
    back = jnp.where(ends, jnp.minimum(trail.count, length), 0)

    def all_trails(_: Array, q: Array) -> Array:
        edges = live(memory)

        def one(i: Array, q: Array) -> Array:
            at = ((trail.count - 1 - i) % length, np.arange(envs))
            node, action = jax.tree.map(lambda x: x[at], trail.node), trail.action[at]
            backup = lambda n: node_backup(q, memory.known, memory.terminal, edges, n, gamma)  # noqa: E731
            target, has = (x[np.arange(envs), action] for x in jax.vmap(backup)(node.node))
            real = (i < back) & graphs.alive(memory, node) & has
            return q.at[jnp.where(real, node.node, q.shape[0]), action].set(target, mode="drop")

        return repeat(jnp.max(back), one, q)

    # A loop of no or one round: a branch would copy the values.
    return eqx.tree_at(lambda m: m.q, memory, repeat(jnp.where(jnp.any(ends), 1, 0), all_trails, memory.q))
