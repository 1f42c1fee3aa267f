"""The compiled loop: a chunk of iterations (collect, update) as one program for all members of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from rookery.core import shards
from rookery.core.config import with_values
from rookery.core.keys import stream
from rookery.core.types import Algorithm, Clock, Packed, Task
from rookery.training.compiled.rollout import Worlds, collect, open_worlds, play
from rookery.training.config import RunConfig
from rookery.training.state import (
    SECOND,
    ChunkReport,
    Episodes,
    Member,
    Policies,
    RunState,
    confirmed,
    iterations_per_chunk,
    member_infos,
    score,
    swept_values,
)


@dataclass(frozen=True)
class Program:
    """The pure functions of one run; everything in it is static."""

    config: RunConfig
    mesh: Mesh | None = None
    """Devices [member, shard] that the run is spread over; None: one device."""

    @property
    def task(self) -> Task[Any]:
        return cast(Task[Any], self.config.task)

    @property
    def shards(self) -> int:
        return self.config.algo.collect.shards

    def algo(self, swept: dict[str, Array]) -> Algorithm[Any]:
        """The algorithm of one shard, with a member's swept values in it (possibly traced)."""
        algo = self.config.algo if self.shards == 1 else self.config.algo.shard()
        return with_values(algo, {path.removeprefix("algo."): x for path, x in swept.items()})

    def _playing(self, key: Array) -> Array:
        """The key for collecting: each shard's own, or the same for all replicas."""
        return key if self.config.algo.collect.replicated else shards.own(key)

    def init(self) -> RunState:
        """Fresh members."""
        keys = jnp.stack([jax.random.PRNGKey(info.seed) for info in member_infos(self.config)])
        members = over_members(self._init_member, keys, swept_values(self.config))
        return RunState(strong(members), jnp.int32(0), jnp.float32(self.config.steps))

    def _init_member(self, key: Array, swept: dict[str, Array]) -> Member:
        algo = self.algo(swept)
        state = algo.init(self.task.spec, stream(key, "init"))

        def shard() -> tuple[Any, Worlds]:
            return state, open_worlds(algo, self.task, algo.collect.envs, self._playing(stream(key, "worlds")))

        every = shard
        if self.shards > 1:
            every = jax.vmap(shard, axis_name=shards.AXIS, axis_size=self.shards)
        return Member(key, swept, *every(), jnp.uint32(0), algo.snapshot(state), jnp.float32(-jnp.inf))

    def specs(self, state: RunState) -> Any:
        """The mesh axes that each array of such a state is sharded over."""
        member, whole = PartitionSpec("member"), PartitionSpec()
        divided = PartitionSpec("member", shards.AXIS) if self.shards > 1 else member
        marks = eqx.tree_at(lambda s: s.members, _each(whole, state), _each(member, state.members))
        return eqx.tree_at(_own, marks, _each(divided, _own(state)))

    def _over_shards(self, f: Callable[[RunState], tuple[RunState, Any]], state: RunState) -> tuple[RunState, Any]:
        """`f` of every shard: on the devices of the mesh, or as a batch axis, or directly if there is only one.

        All other outputs are equal on every shard, because they are sums over shards.
        """
        if self.mesh is not None:
            specs = self.specs(state)
            out = (specs, PartitionSpec("member"))
            f = f if self.shards == 1 else _of_a_shard(f)
            return jax.shard_map(f, mesh=self.mesh, in_specs=(specs,), out_specs=out, check_vma=False)(state)
        if self.shards == 1:
            return f(state)

        def shard(own: Any) -> tuple[Any, Any]:
            after, out = f(eqx.tree_at(_own, state, own))
            return _own(after), (after, out)

        own, same = jax.vmap(shard, in_axes=1, out_axes=(1, 0), axis_name=shards.AXIS)(_own(state))
        after, out = jax.tree.map(lambda x: x[0], same)
        return eqx.tree_at(_own, after, own), out

    def chunk(self, state: RunState, iterations: int) -> tuple[RunState, ChunkReport]:
        """`iterations` iterations of every member."""
        return self._over_shards(partial(self._chunk, iterations=iterations), state)

    def keeps_axis(self, state: RunState, iterations: int) -> bool:
        """Whether a single-member run keeps its member axis in a chunk of so many iterations.

        XLA copies a donated array that changes its shape if there is no loop in between (one iteration is none), or if
        another axis of length 1 can be mistaken for this one. A replay store is too large to copy.
        """
        stored = bool(jax.tree.leaves(self.config.algo.stores(state.members.algo)))
        return stored and (iterations == 1 or self.task.spec.n_agents == 1)

    def _chunk(self, state: RunState, iterations: int) -> tuple[RunState, ChunkReport]:
        def one_member(member: Member) -> tuple[Member, ChunkReport]:
            times = state.iteration + jnp.arange(iterations)
            member, (metrics, steps) = jax.lax.scan(lambda m, i: self._iterate(state, m, i), member, times)
            return member, chunk_report(shards.total(metrics), steps)

        members, report = over_members(one_member, state.members, batch=self.keeps_axis(state, iterations))
        return RunState(members, state.iteration + iterations, state.budget), report

    def _iterate(self, run: RunState, member: Member, iteration: Array) -> tuple[Member, tuple[Packed, Array]]:
        """Collect one rollout and learn from it."""
        algo = self.algo(member.swept)
        clock = run.clock(member.steps, iteration)
        policy = algo.policy(member.algo)
        key = self._playing(stream(member.key, "collect", iteration))
        worlds, rollout, episodes = collect(algo, self.task, policy, member.worlds, clock, key)
        played = jnp.sum(rollout.filled)
        if not self.config.algo.collect.replicated:
            played = shards.total(played)
        steps = member.steps + played.astype(jnp.uint32)
        clock = run.clock(steps, iteration)
        key = shards.own(stream(member.key, "update", iteration))
        learned, metrics = algo.update(self.task.spec, member.algo, rollout, clock, key)
        metrics = {**{f"train/{k}": v for k, v in episodes.items()}, **metrics}
        after = Member(member.key, member.swept, learned, worlds, steps, member.best, member.best_score)
        return strong(after), (Packed.of(metrics), steps)

    def evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        """Episodes of every member [member, episode, ...]; keeps the best policy of each."""
        return self._over_shards(self._evaluate, state)

    def _evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        def one(member: Member) -> tuple[Member, Episodes]:
            algo = self.algo(member.swept)
            policy, taken = algo.policy(member.algo), algo.snapshot(member.algo)
            clock, key = state.clock(member.steps, state.iteration), stream(member.key, "evaluate", state.iteration)
            wanted = self.config.evaluation.episodes

            def look(plays: Array, key: Array) -> tuple[Array, Episodes]:
                count = -(-wanted // self.shards)
                played = self._play(algo, policy, clock, shards.own(key), count, plays)
                episodes = jax.tree.map(lambda x: x[:wanted], shards.joined(played))
                return jnp.mean(score(self.task.spec, episodes)) >= member.best_score, episodes

            # A loop, so that episodes are compiled once.
            _, looks = jax.lax.scan(look, jnp.array(True), jnp.stack([key, stream(key, SECOND)]))
            better, mean = confirmed(jnp.mean(score(self.task.spec, looks), axis=1), member.best_score)
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), taken, member.best)
            kept = (best, jnp.where(better, mean, member.best_score))
            episodes = jax.tree.map(lambda x: x[0], looks)
            return eqx.tree_at(lambda m: (m.best, m.best_score), member, kept), episodes

        members, episodes = over_members(one, state.members)
        return RunState(members, state.iteration, state.budget), episodes

    def _play(
        self, algo: Algorithm[Any], policy: Any, clock: Clock, key: Array, episodes: int, wanted: Array | bool = True
    ) -> Episodes:
        greedy = not self.config.evaluation.sampled
        return play(algo, self.task, policy, clock, key, episodes, greedy=greedy, wanted=wanted)

    def policies(self, state: RunState) -> Policies:
        """Everything that acting needs of a run."""
        m = (state if self.shards == 1 else _with_own(state, lambda x: x[:, 0])).members
        last = over_members(lambda m: self.algo(m.swept).snapshot(m.algo), m)
        return Policies(last, m.best, m.key, m.swept, m.steps, state.iteration, state.budget)

    def play(self, policies: Policies, keys: Array) -> dict[str, Episodes]:
        """Episodes of every member's last and best policy, on start states drawn from the member's key."""

        def one(last: Any, best: Any, swept: dict[str, Array], steps: Array, key: Array) -> dict[str, Episodes]:
            algo, clock = self.algo(swept), Clock(policies.iteration, steps, policies.budget)
            episodes = self.config.evaluation.episodes
            return {
                "last": self._play(algo, last, clock, key, episodes),
                "best": self._play(algo, best, clock, key, episodes),
            }

        return over_members(one, policies.last, policies.best, policies.swept, policies.steps, keys)


def trace_program(config: RunConfig) -> None:
    """Trace everything that the run computes, abstractly."""
    program = Program(config)
    state = jax.eval_shape(program.init)
    jax.eval_shape(partial(program.chunk, iterations=iterations_per_chunk(config)), state)
    jax.eval_shape(program.evaluate, state)


def over_members(f: Callable[..., Any], *of_members: Any, batch: bool = False) -> Any:
    """`f` of every member, along the leading axis of all arrays.

    A single-member run drops the axis (unless `batch`): XLA copies whole rollouts to move an axis of length 1.
    """
    if batch or jax.tree.leaves(of_members)[0].shape[0] > 1:
        return jax.vmap(f)(*of_members)
    alone = f(*jax.tree.map(lambda x: x[0], of_members))
    return jax.tree.map(lambda x: x[None], alone)


def _own(state: RunState) -> tuple[Any, Worlds]:
    """The arrays that each shard has of its own [member, shard, ...], where there are several."""
    return state.members.algo, state.members.worlds


def _each(mark: Any, tree: Any) -> Any:
    """The tree with a mark for every leaf."""
    return jax.tree.map(lambda _: mark, tree)


def _of_a_shard(f: Callable[[RunState], tuple[RunState, Any]]) -> Callable[[RunState], tuple[RunState, Any]]:
    """`f` on a device's share of the state, whose shard axis has a length of 1."""

    def local(state: RunState) -> tuple[RunState, Any]:
        state, out = f(_with_own(state, lambda x: x[:, 0]))
        return _with_own(state, lambda x: x[:, None]), out

    return local


def _with_own(state: RunState, f: Callable[[Array], Array]) -> RunState:
    return eqx.tree_at(_own, state, jax.tree.map(f, _own(state)))


def strong(tree: Any) -> Any:
    """Without weak types (a task may say jnp.full(2, 1.0)): a state must have the types it was compiled for."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), tree)


def chunk_report(of_iterations: Packed, steps: Array) -> ChunkReport:
    """Metrics of each iteration -> their sums, and the steps at which one first stopped being finite."""
    bad = ~jnp.isfinite(of_iterations.values[:, 0])
    first = steps[jnp.argmax(bad, axis=0)].astype(jnp.int32)
    return ChunkReport(of_iterations.summed(), jnp.where(jnp.any(bad, axis=0), first, -1), steps[-1])
