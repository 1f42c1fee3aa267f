"""Memory agents: tabular Q, MFEC and NEC on dictionaries; GQ, GCMR and GBMR on graphs.

Acting reads the memory. Learning is a stream: each transition enters a ring (`memory.pending`), and its n-step target
is written into the memory n transitions later, or at the episode's end. A graph also gets a node for every row and an
edge for every transition, and may reflect: choose key nodes and propagate values along paths (`mechanisms.reflect`).
Actions follow the values that are read, or come from an actor that reads them (`algorithms.memory_actor`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.algorithms.memory_actor import MemoryActor, as_seen, reading, seen
from rookery.algorithms.ppo import PPO, PPOState
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Fraction
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import Action, Carry, Clock, Collect, Extra, Mean, Metrics, Rollout, Spec, Step
from rookery.mechanisms import frontier as frontiers
from rookery.mechanisms.choose import Act
from rookery.mechanisms.encode import Encoder
from rookery.mechanisms.refine import Learn, Refiner
from rookery.mechanisms.reflect import Abstract, Reconstruct, Reflection
from rookery.mechanisms.writer import Stream, Table, Values, View, Write, Writer
from rookery.memory.dictionary import Dictionary
from rookery.memory.graph import Graph, GraphState
from rookery.memory.transition import Transition

__all__ = ["Act", "Episodic", "EpisodicState", "Learn", "Write"]


class EpisodicState(eqx.Module):
    view: View
    """Encoder and memory."""
    stream: Stream
    opt: Any
    """Of a trained encoder; None for others."""
    actor: PPOState | None
    """Of an actor that learns; None without one."""

    @property
    def reflection(self) -> Reflection | None:
        """Graphs only."""
        return self.stream.reflection


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
    actor: MemoryActor = field(default_factory=MemoryActor)
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
                "a memory is written by one stream of transitions; use --algo.collect.no-restart and "
                f"--algo.collect.shards 1 (got {self.collect.restart} and {self.collect.shards})."
            )
        self.encoder.check(spec)
        if self.actor.learns:
            self._learner.check(self._seen(spec))
        self.reconstruct.check(self.abstract.method)
        if self.memory == "graph":
            self.graph.check(self.collect.envs)
            self.abstract.check(self.graph.capacity, self.graph.evict)
        else:
            self.dictionary.check(self.collect.envs * self._writer.drain)
        if self.memory == "dictionary" and self.acting.explore == "frontier":
            raise ConfigError("algo.acting.explore frontier follows edges: set algo.memory graph, or explore unseen.")
        if self.memory == "dictionary" and self.reconstruct.method != "none":
            raise ConfigError(f"algo.reconstruct.method {self.reconstruct.method} needs edges: set algo.memory graph.")
        if self.memory == "graph" and self.encoder.trained and not (self.graph.merge and self.graph.key_rate):
            raise ConfigError(
                f"algo.encoder.kind {self.encoder.kind} changes while it is trained, so a graph's keys must follow it: "
                "set algo.graph.merge and algo.graph.key_rate above 0, or use identity or random."
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
            actor=self.actor.small(),
            learn=replace(self.learn, capacity=16, batch=4, start=1, every=1, steps=min(self.learn.steps, 2)),
            collect=replace(self.collect, envs=2, length=min(self.collect.length, 4)),
        )

    def carry_interval(self, spec: Spec) -> int:
        """Rows of one training sequence of the actor."""
        return self._learner.carry_interval(self._seen(spec)) if self.actor.learns else 0

    def carry(self, spec: Spec, envs: int) -> Carry:
        """What the actor carries; nodes live in the state."""
        return self._learner.carry(self._seen(spec), envs) if self.actor.learns else ()

    @property
    def _learner(self) -> PPO:
        return self.actor.learner(self.collect, self.gamma)

    def _seen(self, spec: Spec) -> Spec:
        return reading(spec, self.encoder.size(spec))

    @property
    def _writer(self) -> Writer:
        memory = self.graph if self.memory == "graph" else self.dictionary
        frontier = self.acting.explore == "frontier" and not self.actor.learns
        return Writer(memory, self.write, self.abstract, self.reconstruct, self.gamma, frontier)

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> EpisodicState:
        """An empty memory."""
        envs, encoder = self.collect.envs, self.encoder.init(spec, stream(key, "encoder"))
        opt = store = None
        if self.encoder.trained:
            store, opt = self.learn.store(spec, self.collect, self.write.n), self.learn.optimiser.init(encoder)
        sizes = (self.encoder.size(spec), spec.action.width, envs)
        memory, written = self._writer.init(*sizes, store, stream(key, "network"))
        actor = self._learner.init(self._seen(spec), stream(key, "actor")) if self.actor.learns else None
        return EpisodicState(View(encoder, memory), written, opt, actor)

    def policy(self, state: EpisodicState) -> View:
        """Encoder, memory and actor."""
        actor = None if state.actor is None else self._learner.policy(state.actor)
        return View(replace(state.view.encoder, vae=None), state.view.memory, actor, state.stream.frontier)

    def snapshot(self, state: EpisodicState) -> View:
        """All of the policy: as large as the memory is."""
        return self.policy(state)

    def stores(self, state: EpisodicState) -> Any:
        """The tables, and the examples."""
        return state.view.memory, () if state.stream.store is None else state.stream.store

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: View, carry: Carry, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Carry, Action, Extra]:
        """Actions by what is read, epsilon-greedy or the actor's, and the entries that were read."""
        query = self.encoder(spec, policy.encoder, step.obs)
        read = self._writer.read(policy.memory, query)
        # The env axis leads: a dictionary's index is [table, env, k].
        extra = {"read": jnp.moveaxis(self._writer.used(read), -2, 0)}
        if self.actor.learns:
            now = replace(step, obs=seen(query, read), state=jnp.zeros((*step.first.shape, 0)))
            about = (policy.actor, carry, now, clock, key)
            carry, action, more = self._learner.act(self._seen(spec), *about, greedy=greedy)
            return carry, action, {**extra, **more, "seen": now.obs}
        epsilon, steps = None if greedy else self.acting.epsilon.at(clock.steps, clock.budget), None
        if policy.frontier is not None and not greedy and isinstance(policy.memory, GraphState):
            steps = frontiers.steps_by_action(policy.memory, policy.frontier, read.index[:, 0])
        action = self.acting.choose(key, read.q, read.known, step.legal[:, 0], epsilon, steps)
        if self.acting.explore != "uniform":
            extra["untried"] = ~jnp.take_along_axis(read.known, action[:, None], axis=1)[:, 0]
        return carry, action[:, None], extra

    # -- learning -----------------------------------------------------------------------------------------------
    def update(
        self, spec: Spec, state: EpisodicState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[EpisodicState, Metrics]:
        """Write the transitions one after the other, reflect on the graph, train the encoder and the actor."""
        writer, memory, written = self._writer, state.view.memory, state.stream
        keys = self.encoder(spec, state.view.encoder, rollout.step.obs)
        memory, written = writer.see(memory, written, rollout.step, keys, clock)

        def row(now: tuple[Table, Stream], row: Transition) -> tuple[tuple[Table, Stream], tuple[Values, Metrics]]:
            memory, written, read, found = writer.row(*now, row)
            return (memory, written), (read, found)

        rows = writer.transitions(rollout, keys, clock)
        (memory, written), (read, found) = jax.lax.scan(row, (memory, written), rows)
        # What the actor would have seen at the end: the writer has read it, and another read would copy the memory.
        end = seen(keys[-1], jax.tree.map(lambda x: x[-1], read))
        actor, metrics = self._train_actor(spec, state.actor, rollout, end, clock, key)
        metrics |= {name: Mean(jnp.sum(x.total), jnp.sum(x.weight)) for name, x in found.items()}
        memory, written = writer.reflect(memory, written, clock.iteration, stream(key, "reflect"))
        encoder, opt = state.view.encoder, state.opt
        if written.store is not None:
            refiner = Refiner(self.encoder, writer.memory, self.learn)
            encoder, memory, opt, learned = refiner.step(spec, encoder, memory, opt, written.store, clock, key)
            metrics |= learned
        return EpisodicState(View(encoder, memory), written, opt, actor), metrics | writer.counts(memory, written)

    def _train_actor(
        self,
        spec: Spec,
        actor: PPOState | None,
        rollout: Rollout,
        end: Float[Array, "env agent n"],
        clock: Clock,
        key: Array,
    ) -> tuple[PPOState | None, Metrics]:
        """The actor after a rollout whose last row looks like `end`; without one, what is explored."""
        if actor is not None:
            return self._learner.update(self._seen(spec), actor, as_seen(rollout, end), clock, stream(key, "actor"))
        metrics = {"epsilon": Mean.of(self.acting.epsilon.at(clock.steps, clock.budget))}
        if self.acting.explore != "uniform":
            metrics["untried"] = Mean.of(rollout.extra["untried"], rollout.filled)
        return None, metrics
