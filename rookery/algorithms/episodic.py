"""Memory agents: tabular Q, MFEC and NEC on dictionaries; GQ, GCMR and GBMR on graphs.

Acting reads the memory. Learning is a stream: each transition enters a ring (`memory.pending`), and its n-step target
is written into the memory n transitions later, or at the episode's end. A graph also gets a node for every row and an
edge for every transition, and may reflect: choose key nodes and propagate values along paths (`mechanisms.reflect`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, Fraction, NonNegative
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import Action, Carry, Clock, Collect, Extra, Mean, Metrics, Rollout, Spec, Step, where_env
from rookery.mechanisms import frontier as frontiers
from rookery.mechanisms.encode import Encoder, EncoderParams
from rookery.mechanisms.frontier import Frontier
from rookery.mechanisms.reflect import Abstract, Reconstruct, Reflection, reflect
from rookery.memory import dictionary as dictionaries
from rookery.memory import examples, pending
from rookery.memory import graph as graphs
from rookery.memory.dictionary import Dictionary, DictionaryState, Entries, Rows
from rookery.memory.examples import Examples
from rookery.memory.graph import Graph, GraphState, Handle, Moves
from rookery.memory.pending import Due, Ring
from rookery.memory.slots import fingerprint
from rookery.nets.optimiser import Optimiser, Schedule, norm
from rookery.ops.explore import weighted
from rookery.ops.graph import state_value
from rookery.ops.loops import once, repeat
from rookery.ops.td import only_legal


class View(eqx.Module):
    """What acting reads."""

    encoder: EncoderParams
    memory: DictionaryState | GraphState
    frontier: Frontier | None = None
    """Distances to untried actions, if exploration is directed by them."""


class Kept(eqx.Module):
    """What waits with a transition for its target; None where the memory does not need it."""

    node: Handle | None
    """Graphs: the node of its state."""
    key: Float[Array, "*b dim"] | None
    """Dictionaries: the key of its state when it was visited."""
    hashed: Array | None
    """Dictionaries: the fingerprint of its observation."""
    obs: Array | None
    """Trained encoders: its observation."""


class Learner(eqx.Module):
    """What trains an encoder."""

    opt: Any
    store: Examples


class EpisodicState(eqx.Module):
    view: View
    ring: Ring
    node: Handle | None
    """Graphs: the node of each environment's newest row."""
    reflection: Reflection | None
    """Graphs only."""
    learner: Learner | None
    """Trained encoders only."""


class Transition(eqx.Module):
    """One row of a rollout, and the row that it led to. Leading axes are free."""

    key_tm1: Float[Array, "*b dim"]
    obs_tm1: Array
    legal_tm1: Bool[Array, "*b action"] | None
    """With a frontier only."""
    read: Int[Array, "..."]
    action: Int[Array, "*b"]
    key: Float[Array, "*b dim"]
    step: Step
    filled: Bool[Array, "*b"]
    now: Int[Array, "..."]

    @property
    def reward(self) -> Float[Array, "*b"]:
        return self.step.reward[..., 0]

    @property
    def terminal(self) -> Bool[Array, "*b"]:
        """The action ended the episode for good."""
        return self.step.discount[..., 0] == 0.0


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
    bootstrap: bool = True
    """Bootstrap targets that end before the episode does; off: they are sums of n rewards (MFEC with a large n)."""


@dataclass(frozen=True)
class Act:
    """How actions are chosen."""

    epsilon: Schedule = field(default_factory=lambda: Schedule(0.03, 0.03))
    """Probability of an exploring action while collecting."""
    explore: Literal["uniform", "unseen", "frontier"] = "uniform"
    """Exploring actions: any legal one, or those without a value here first (the best one where all have a value).
    unseen also prefers them among equally good actions; frontier then prefers actions that lead toward the nearest node
    of the graph with an untried action. An action without a value counts as 0."""

    def choose(
        self,
        key: Array,
        q: Float[Array, "env action"],
        known: Bool[Array, "env action"],
        legal: Bool[Array, "env action"],
        epsilon: Float[Array, ""] | None,
        steps: Int[Array, "env action"] | None = None,
    ) -> Int[Array, "env"]:
        """Actions; ties are broken at random. Without epsilon: the best ones. `steps` lead to what is untried."""
        q = only_legal(jnp.where(known, q, 0.0), legal)
        best = legal & (q == jnp.max(q, axis=-1, keepdims=True))
        if epsilon is None:
            return weighted(stream(key, "best"), best.astype(jnp.float32))
        other = legal
        if self.explore != "uniform":
            far = jnp.where(best, jnp.where(known, 1 if steps is None else steps, 0), frontiers.FAR)
            best = best & (far == jnp.min(far, axis=-1, keepdims=True))
            other = _prefer(legal & ~known, best)
        explores = jax.random.uniform(stream(key, "whether"), best.shape[:1]) < epsilon
        options = jnp.where(explores[:, None], other, best)
        return weighted(stream(key, "which"), options.astype(jnp.float32))


def _prefer(a: Bool[Array, "env action"], b: Bool[Array, "env action"]) -> Bool[Array, "env action"]:
    """`a` where it has any action, else `b`."""
    return jnp.where(jnp.any(a, axis=-1, keepdims=True), a, b)


@dataclass(frozen=True)
class Learn:
    """Gradient steps of a trained encoder, and of the entries that it reads."""

    optimiser: Optimiser = field(default_factory=lambda: Optimiser("rmsprop", lr=1e-4))
    capacity: Count = 100_000
    """Examples (observation, action, target) kept."""
    batch: Count = 32
    """Examples of a gradient step."""
    start: Count = 1000
    """Examples before the first gradient step."""
    every: Count = 1
    """Iterations between two gradient steps."""
    key_rate: NonNegative = 1e-4
    """Step size of the keys that were read."""
    value_rate: NonNegative = 0.1
    """Step size of the values that were read."""


@family(ALGORITHMS)
@dataclass(frozen=True)
class Episodic:
    """Action values in a memory that acting reads and every transition writes."""

    family: Literal["episodic"] = "episodic"
    memory: Literal["dictionary", "graph"] = "dictionary"
    """dictionary: keys and values. graph: also edges between states, which reconstruction uses."""
    dictionary: Dictionary = field(default_factory=Dictionary)
    graph: Graph = field(default_factory=Graph)
    encoder: Encoder = field(default_factory=Encoder)
    write: Write = field(default_factory=Write)
    acting: Act = field(default_factory=Act)
    abstract: Abstract = field(default_factory=Abstract)
    reconstruct: Reconstruct = field(default_factory=Reconstruct)
    learn: Learn = field(default_factory=Learn)
    collect: Collect = field(default_factory=lambda: Collect(envs=1, length=1))
    gamma: Fraction = 0.99
    """Discount."""

    # -- what it needs ------------------------------------------------------------------------------------------
    def check(self, spec: Spec) -> None:
        """Refuse what this family cannot train."""
        if spec.n_agents != 1 or spec.action.kind != "discrete":
            raise ConfigError(
                f"memory agents are single agents with discrete actions; {spec.name} has {spec.n_agents} agents and "
                f"{spec.action.kind} actions. Try iql or mappo."
            )
        if self.collect.restart or self.collect.shards > 1:
            raise ConfigError(
                "a memory is written by one stream of transitions; use --algo.collect.restart False and "
                f"--algo.collect.shards 1 (got {self.collect.restart} and {self.collect.shards})."
            )
        self.encoder.check(spec)
        self.reconstruct.check(self.abstract.method)
        if self.memory == "graph":
            self.graph.check(self.collect.envs)
            self.abstract.check(self.graph.capacity)
        else:
            self.dictionary.check(self.collect.envs * self._drain)
        if self.memory == "dictionary" and self.acting.explore == "frontier":
            raise ConfigError("algo.acting.explore frontier follows edges: set algo.memory graph, or explore unseen.")
        if self.memory == "dictionary" and self.reconstruct.method != "none":
            raise ConfigError(f"algo.reconstruct.method {self.reconstruct.method} needs edges: set algo.memory graph.")
        if self.memory == "graph" and self.encoder.trained:
            raise ConfigError(
                f"a graph's keys do not follow a trained encoder; got algo.encoder.kind {self.encoder.kind}. Use "
                "identity or random, or algo.memory dictionary."
            )

    def shard(self) -> Episodic:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard())

    def warmup(self) -> int:
        """Iterations until gradient steps are taken; tables learn at once."""
        rows = self.collect.envs * max(self.collect.length, 1)
        return -(-(self.learn.start + self.write.n) // rows) if self.encoder.trained else 0

    def small(self) -> Episodic:
        """The same algorithm with little of everything."""
        return replace(
            self,
            dictionary=replace(self.dictionary, capacity=32, neighbors=min(self.dictionary.neighbors, 4)),
            graph=replace(self.graph, capacity=16, neighbors=min(self.graph.neighbors, 4), edges_per_node=4),
            encoder=self.encoder.small(),
            write=replace(self.write, n=min(self.write.n, 3), drain=2),
            abstract=replace(self.abstract, nodes=3, trajectories=2, length=4),
            reconstruct=replace(self.reconstruct, every=1, paths=2, length=4, backups=4),
            learn=replace(self.learn, capacity=16, batch=4, start=1, every=1),
            collect=replace(self.collect, envs=2, length=min(self.collect.length, 4)),
        )

    def carry_interval(self, spec: Spec) -> int:
        """Carries are empty."""
        return 0

    def carry(self, spec: Spec, envs: int) -> Carry:
        """Acting remembers nothing between rows: nodes live in the state."""
        return ()

    @property
    def _drain(self) -> int:
        return min(self.write.drain, self.write.n)

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> EpisodicState:
        """An empty memory."""
        envs, dim, actions = self.collect.envs, self.encoder.size(spec), spec.action.width
        encoder = self.encoder.init(spec, stream(key, "encoder"))
        obs = jax.ShapeDtypeStruct((spec.n_agents, *spec.obs_shape), jnp.dtype(spec.obs_dtype))
        seen = jnp.zeros((envs, *obs.shape), obs.dtype) if self.encoder.trained else None
        learner = None
        if self.encoder.trained:
            learner = Learner(self.learn.optimiser.init(encoder), examples.empty(obs, self.learn.capacity))
        if self.memory == "graph":
            kept, node = Kept(graphs.nowhere(envs), None, None, seen), graphs.nowhere(envs)
            trajectories, priority = self.abstract.empty(envs), self.reconstruct.priorities(self.graph.capacity)
            reflection = Reflection(graphs.nowhere(envs), trajectories, priority, jnp.int32(0))
            frontier = frontiers.unexplored(self.graph.capacity) if self.acting.explore == "frontier" else None
            view = View(encoder, self.graph.empty(dim, actions), frontier)
        else:
            kept, node = Kept(None, jnp.zeros((envs, dim)), jnp.zeros((envs, 2), jnp.uint32), seen), None
            reflection, view = None, View(encoder, self.dictionary.empty(dim, actions))
        return EpisodicState(view, pending.empty(kept, self.write.n, envs), node, reflection, learner)

    def policy(self, state: EpisodicState) -> View:
        """Encoder and memory."""
        return state.view

    def snapshot(self, state: EpisodicState) -> View:
        """Encoder and memory: as large as the memory is."""
        return state.view

    def stores(self, state: EpisodicState) -> Any:
        """The tables."""
        return state.view.memory, () if state.learner is None else state.learner.store

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: View, carry: Carry, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Carry, Action, Extra]:
        """Epsilon-greedy (or greedy) actions by what is read, and the entries that were read."""
        query = self.encoder(spec, policy.encoder, step.obs)
        read = self._read(policy.memory, query)
        epsilon = None if greedy else self.acting.epsilon.at(clock.steps, clock.budget)
        steps = None
        if policy.frontier is not None and not greedy:
            steps = frontiers.steps_by_action(_graph(policy.memory), policy.frontier, read.index[:, 0])
        action = self.acting.choose(key, read.q, read.known, step.legal[:, 0], epsilon, steps)
        # The env axis leads: a dictionary's index is [table, env, k].
        extra = {"read": jnp.moveaxis(read.index, -2, 0)}
        if self.acting.explore != "uniform":
            extra["untried"] = ~jnp.take_along_axis(read.known, action[:, None], axis=1)[:, 0]
        return carry, action[:, None], extra

    def _read(self, memory: DictionaryState | GraphState, query: Float[Array, "env dim"]) -> Any:
        if isinstance(memory, GraphState):
            return self.graph.read(memory, query)
        return self.dictionary.read(memory, query)

    # -- learning -----------------------------------------------------------------------------------------------
    def update(
        self, spec: Spec, state: EpisodicState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[EpisodicState, Metrics]:
        """Write the transitions one after the other, then reflect (graphs) or train the encoder (dictionaries)."""
        keys = self.encoder(spec, state.view.encoder, rollout.step.obs)
        time = rollout.filled.shape[0]
        rows = Transition(
            key_tm1=keys[:-1],
            obs_tm1=rollout.step.obs[:-1],
            legal_tm1=None if state.view.frontier is None else rollout.step.legal[:-1, :, 0],
            read=rollout.extra["read"],
            action=rollout.action[..., 0],
            key=keys[1:],
            step=jax.tree.map(lambda x: x[1:], rollout.step),
            filled=rollout.filled,
            now=clock.iteration * time + jnp.arange(time),
        )
        if self.memory == "graph":
            state = self._open(state, keys[0], clock)
        state, found = jax.lax.scan(self._row, state, rows)
        metrics = {name: Mean(jnp.sum(x.total), jnp.sum(x.weight)) for name, x in found.items()}
        if self.acting.explore != "uniform":
            metrics["untried"] = Mean.of(rollout.extra["untried"], rollout.filled)
        if state.reflection is not None:
            graph, kept = _graph(state.view.memory), state.reflection
            memory, reflection = reflect(
                self.abstract, self.reconstruct, graph, kept, self.gamma, clock.iteration, stream(key, "reflect")
            )
            state = replace(state, view=replace(state.view, memory=memory), reflection=reflection)
        if state.learner is not None:
            state, learned = self._gradient_step(spec, state, state.learner, clock, key)
            metrics |= learned
        return state, metrics | self._counts(state, clock)

    def _counts(self, state: EpisodicState, clock: Clock) -> Metrics:
        """The memory's size, and what was spent on it so far."""
        memory = state.view.memory
        counts = {
            "nodes": memory.nodes if isinstance(memory, GraphState) else jnp.sum(memory.count),
            "edges": memory.edge_count if isinstance(memory, GraphState) else jnp.int32(0),
            "merges": memory.merges,
            "evictions": memory.evictions,
            "reconstruction_updates": jnp.int32(0) if state.reflection is None else state.reflection.updates,
        }
        epsilon = self.acting.epsilon.at(clock.steps, clock.budget)
        return {**Mean.of_each(counts), "epsilon": Mean.of(epsilon)}

    def _open(self, state: EpisodicState, key: Float[Array, "env dim"], clock: Clock) -> EpisodicState:
        """The run's first rows become nodes; every other row does when a transition leads to it."""
        memory, reflection = _graph(state.view.memory), state.reflection
        assert reflection is not None and state.node is not None, "made by `init`"

        def insert(_: Array, now: tuple[GraphState, Handle]) -> tuple[GraphState, Handle]:
            return self.graph.insert(now[0], key, jnp.int32(0), jnp.ones(key.shape[0], bool))

        # A loop of no or one round: a branch would copy the graph.
        opens = clock.iteration == 0
        memory, node = repeat(jnp.where(opens, 1, 0), insert, (memory, state.node))
        start = where_env(jnp.broadcast_to(opens, key.shape[:1]), node, reflection.start)
        view, reflection = replace(state.view, memory=memory), replace(reflection, start=start)
        return replace(state, view=view, node=node, reflection=reflection)

    def _row(self, state: EpisodicState, row: Transition) -> tuple[EpisodicState, Metrics]:
        """The state after one transition of every environment."""
        state, due = (self._graph_row if self.memory == "graph" else self._dictionary_row)(state, row)
        if state.learner is not None:
            store = examples.add(state.learner.store, due.kept.obs, due.action, due.target, due.where)
            state = replace(state, learner=replace(state.learner, store=store))
        return state, {"writes": Mean.of(jnp.sum(due.where)), "target": Mean.of(due.target, due.where)}

    def _due(self, ring: Ring, row: Transition, kept: Kept, read: Any) -> tuple[Ring, Due]:
        """The ring after a transition, and the rows whose targets are written now."""
        legal = row.step.legal[:, 0]
        # Where every value starts at 0, the unknown ones are 0.
        value = state_value(read.q, legal if self.write.first == "zero" else legal & read.known, row.terminal)
        if not self.write.bootstrap:
            value = jnp.zeros_like(value)
        discount = jnp.where(row.terminal, 0.0, self.gamma)
        transition = pending.Row(kept, row.action, row.reward, discount, value, row.step.last, row.filled)
        return pending.step(ring, transition, row.now, self._drain)

    def _first(self, due: Due, rate: float) -> Float[Array, "row"] | None:
        """What action values without any start at; None: at their targets."""
        return {"target": None, "reward": due.rewards, "zero": rate * due.target}[self.write.first]

    def _graph_row(self, state: EpisodicState, row: Transition) -> tuple[EpisodicState, Due]:
        memory, reflection, node_tm1 = _graph(state.view.memory), state.reflection, state.node
        assert reflection is not None and node_tm1 is not None, "made by `init`"
        memory = graphs.touch(memory, row.read, row.now)
        memory, node = self.graph.insert(memory, row.key, row.now, ~row.terminal)
        moves = Moves(row.action, row.reward, row.terminal, row.filled)
        memory = self.graph.connect(memory, node_tm1, moves, node)
        read = self.graph.read(memory, row.key)
        ring, due = self._due(state.ring, row, Kept(node_tm1, None, None, None), read)
        at = due.kept.node
        before = once(lambda: _value_of(memory, at), memory.merges)
        if reflection.priority is not None:
            # A write that does not depend on what was read before it makes XLA copy the table.
            due = replace(due, target=jnp.where(jnp.isnan(before), jnp.nan, due.target))
        first = self._first(due, self.graph.value_rate)
        memory = self.graph.learn(memory, at, due.action, due.target, due.where, first)
        change = jnp.where(due.where, jnp.abs(_value_of(memory, at) - before), 0.0)
        priority = self.reconstruct.notice(reflection.priority, memory, at, change, self.gamma)
        opens, closes = row.step.first, row.step.last & row.filled
        trajectories = self.abstract.follow(reflection.trajectories, node, row.reward, opens, closes)
        start = where_env(opens, node, reflection.start)
        reflection = Reflection(start, trajectories, priority, reflection.updates)
        frontier = state.view.frontier
        if frontier is not None:
            assert row.legal_tm1 is not None, "made by `update`"
            frontier = frontiers.leave(memory, frontier, node_tm1, row.legal_tm1, node)
        view = replace(state.view, memory=memory, frontier=frontier)
        return EpisodicState(view, ring, node, reflection, state.learner), due

    def _dictionary_row(self, state: EpisodicState, row: Transition) -> tuple[EpisodicState, Due]:
        memory = dictionaries.touch(_dictionary(state.view.memory), jnp.moveaxis(row.read, 0, -2), row.now)
        read = self.dictionary.read(memory, row.key)
        kept = Kept(None, row.key_tm1, fingerprint(row.obs_tm1), row.obs_tm1 if self.encoder.trained else None)
        ring, due = self._due(state.ring, row, kept, read)
        first = self._first(due, self.dictionary.rate)
        rows = Rows(due.kept.key, due.action, due.target, due.where, due.kept.hashed, first)
        memory, _ = self.dictionary.write(memory, rows, row.now)
        return EpisodicState(replace(state.view, memory=memory), ring, None, None, state.learner), due

    def _gradient_step(
        self, spec: Spec, state: EpisodicState, learner: Learner, clock: Clock, key: Array
    ) -> tuple[EpisodicState, Metrics]:
        """One gradient step of the encoder, and of the keys and values that it read, in every so many iterations."""
        ready = learner.store.count >= self.learn.start
        batch = examples.draw(learner.store, self.learn.batch, stream(key, "examples"))

        def learn(_: Array, now: tuple[View, Any, Mean, Mean]) -> tuple[View, Any, Mean, Mean]:
            (view, opt), (obs, action, target) = now[:2], batch
            memory = _dictionary(view.memory)
            read = self.dictionary.read(memory, self.encoder(spec, view.encoder, obs))
            index, present = read.index, self.dictionary.present(read.distance)
            entries = dictionaries.gather(memory, index)

            def loss(encoder: EncoderParams, key: Array, value: Array) -> Array:
                query = self.encoder(spec, encoder, obs)
                q, _ = self.dictionary.blend(query, Entries(key, value, entries.known), present)
                error = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0] - target
                return jnp.where(ready, jnp.mean(error**2), 0.0)

            squared, (d, d_key, d_value) = jax.value_and_grad(loss, (0, 1, 2))(view.encoder, entries.key, entries.value)
            encoder, opt = self.learn.optimiser.step(view.encoder, d, opt, clock.progress)
            moved = dictionaries.shift(memory, index, -self.learn.key_rate * d_key, -self.learn.value_rate * d_value)
            taken = jnp.float32(ready)
            return View(encoder, moved), opt, Mean(squared * taken, taken), Mean(norm(d) * taken, taken)

        none = Mean(jnp.float32(0), jnp.float32(0))
        # A loop of no or one round: a branch would copy the tables.
        times = jnp.where(clock.iteration % self.learn.every == 0, 1, 0)
        view, opt, squared, size = repeat(times, learn, (state.view, learner.opt, none, none))
        state = replace(state, view=view, learner=Learner(opt, learner.store))
        return state, {"loss": squared, "grad_norm": size}


def _graph(memory: DictionaryState | GraphState) -> GraphState:
    assert isinstance(memory, GraphState), "made by `init`"
    return memory


def _dictionary(memory: DictionaryState | GraphState) -> DictionaryState:
    assert isinstance(memory, DictionaryState), "made by `init`"
    return memory


def _value_of(memory: GraphState, at: Handle) -> Float[Array, "row"]:
    """The best known action value of nodes."""
    return state_value(memory.q[at.node], memory.q_visits[at.node] > 0, jnp.bool_(False))
