"""The compiled loop: a chunk of iterations (collect, update) as one program for all members of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree, UInt

from rookery.core import parts
from rookery.core.config import with_values
from rookery.core.keys import stream
from rookery.core.types import Algorithm, Clock, Metrics, Packed, Task
from rookery.training.config import RunConfig
from rookery.training.rollout import Worlds, collect, open_worlds, play


class Member(eqx.Module):
    """Everything of one seed (at one value of each swept entry)."""

    key: UInt[Array, "2"]
    hyper: dict[str, Float[Array, ""]]
    algo: PyTree[Array]  # [part, ...] where there are several
    worlds: Worlds  # [part, ...] where there are several
    steps: UInt[Array, ""]
    best: PyTree[Array]
    """The policy with the best evaluation so far."""
    best_score: Float[Array, ""]


class RunState(eqx.Module):
    """The whole run: save it and you can go on bit for bit."""

    members: Member  # [member, ...]
    iteration: Int[Array, ""]
    budget: Float[Array, ""]
    """An array, so that runs of different budgets share one compiled program."""

    def clock(self, steps: Array, iteration: Array) -> Clock:
        """Where a member with so many steps is, at some iteration of this chunk."""
        return Clock(iteration, steps, self.budget)


class Policies(eqx.Module):
    """All that acting needs of a run."""

    last: PyTree[Array]  # [member, ...]
    best: PyTree[Array]  # [member, ...]
    hyper: dict[str, Float[Array, "member"]]
    steps: UInt[Array, "member"]
    iteration: Int[Array, ""]
    budget: Float[Array, ""]


class ChunkReport(eqx.Module):
    """What a chunk tells the host, of each member."""

    sums: Packed
    """Metrics, summed over the chunk."""
    broken_at: Int[Array, "*member metric"]
    """Steps at which each metric first stopped being finite; -1: nowhere."""
    steps: UInt[Array, "*member"]

    # On the host: taking arrays apart on a device would be a program and a transfer for each of them.
    @property
    def means(self) -> Metrics:
        """Means over the chunk, by name."""
        return Packed(np.asarray(self.sums.values), self.sums.names).metrics()

    @property
    def broken(self) -> dict[str, np.ndarray]:
        """`broken_at` by name."""
        at = np.asarray(self.broken_at)
        return {name: at[..., i] for i, name in enumerate(self.sums.names)}


@dataclass(frozen=True)
class MemberInfo:
    """Which seed and swept values a member has."""

    seed: int
    values: dict[str, float]


def member_infos(config: RunConfig) -> list[MemberInfo]:
    """Members in order: the product of swept values, times the seeds."""
    paths = [s.path for s in config.sweep]
    grid = itertools.product(*(s.values for s in config.sweep))
    return [MemberInfo(seed, dict(zip(paths, values, strict=True))) for values in grid for seed in config.seeds]


@dataclass(frozen=True)
class Program:
    """The pure functions of one run; everything in it is static."""

    config: RunConfig
    mesh: Mesh | None = None
    """Devices [member, part] that the run is spread over; None: all is computed where the state is."""

    @property
    def task(self) -> Task[Any]:
        return self.config.task

    @property
    def parts(self) -> int:
        return self.config.algo.collect.parts

    def algo(self, hyper: dict[str, Array]) -> Algorithm[Any]:
        """The algorithm of one part, with a member's swept values in it (possibly traced)."""
        algo = self.config.algo if self.parts == 1 else self.config.algo.part()
        return with_values(algo, {path.removeprefix("algo."): x for path, x in hyper.items()})

    def _playing(self, key: Array) -> Array:
        """The key of what a part collects: its own, or that of all where they collect alike."""
        return key if self.config.algo.collect.alike else parts.own(key)

    def init(self) -> RunState:
        """Fresh members."""
        infos = member_infos(self.config)
        keys = jnp.stack([jax.random.PRNGKey(info.seed) for info in infos])
        hyper = {s.path: jnp.asarray([i.values[s.path] for i in infos], jnp.float32) for s in self.config.sweep}
        members = over_members(self._init_member, keys, hyper)
        return RunState(_strong(members), jnp.int32(0), jnp.float32(self.config.steps))

    def _init_member(self, key: Array, hyper: dict[str, Array]) -> Member:
        algo = self.algo(hyper)
        state = algo.init(self.task.spec, stream(key, "init"))

        def part() -> tuple[Any, Worlds]:
            return state, open_worlds(algo, self.task, algo.collect.envs, self._playing(stream(key, "worlds")))

        every = part
        if self.parts > 1:
            every = jax.vmap(part, axis_name=parts.AXIS, axis_size=self.parts)
        return Member(key, hyper, *every(), jnp.uint32(0), algo.policy(state), jnp.float32(-jnp.inf))

    def specs(self, state: RunState) -> Any:
        """Over which axes of the mesh each array of such a state is spread."""
        member, whole = PartitionSpec("member"), PartitionSpec()
        divided = PartitionSpec("member", parts.AXIS) if self.parts > 1 else member
        marks = eqx.tree_at(lambda s: s.members, _each(whole, state), _each(member, state.members))
        return eqx.tree_at(_own, marks, _each(divided, _own(state)))

    def _over_parts(self, f: Callable[[RunState], tuple[RunState, Any]], state: RunState) -> tuple[RunState, Any]:
        """`f` of every part: at once on the devices of the mesh, or as a batch axis, or simply of the only one.

        What is not a part's own comes out alike of all, because it is a sum over them.
        """
        if self.mesh is not None:
            specs = self.specs(state)
            out = (specs, PartitionSpec("member"))
            f = f if self.parts == 1 else _of_a_part(f)
            return jax.shard_map(f, mesh=self.mesh, in_specs=(specs,), out_specs=out, check_vma=False)(state)
        if self.parts == 1:
            return f(state)

        def part(own: Any) -> tuple[Any, Any]:
            after, out = f(eqx.tree_at(_own, state, own))
            return _own(after), (after, out)

        own, same = jax.vmap(part, in_axes=1, out_axes=(1, 0), axis_name=parts.AXIS)(_own(state))
        after, out = jax.tree.map(lambda x: x[0], same)
        return eqx.tree_at(_own, after, own), out

    def chunk(self, state: RunState, iterations: int) -> tuple[RunState, ChunkReport]:
        """`iterations` iterations of every member."""
        return self._over_parts(partial(self._chunk, iterations=iterations), state)

    def keeps_axis(self, iterations: int) -> bool:
        """Whether an only member keeps its batch axis in so many iterations.

        XLA copies a donated array that changes its shape on the way if there is no loop in between (one iteration is
        none), or if it has another axis of length 1 to mistake for this one. A replay store is too large for that.
        """
        stored = hasattr(self.config.algo, "replay")
        return stored and (iterations == 1 or self.task.spec.n_agents == 1)

    def _chunk(self, state: RunState, iterations: int) -> tuple[RunState, ChunkReport]:
        def one_member(member: Member) -> tuple[Member, ChunkReport]:
            times = state.iteration + jnp.arange(iterations)
            member, (metrics, steps) = jax.lax.scan(lambda m, i: self._iterate(state, m, i), member, times)
            return member, _report(parts.total(metrics), steps)

        members, report = over_members(one_member, state.members, batch=self.keeps_axis(iterations))
        return RunState(members, state.iteration + iterations, state.budget), report

    def _iterate(self, run: RunState, member: Member, iteration: Array) -> tuple[Member, tuple[Packed, Array]]:
        """Collect one rollout and learn from it."""
        algo = self.algo(member.hyper)
        clock = run.clock(member.steps, iteration)
        policy = algo.policy(member.algo)
        key = self._playing(stream(member.key, "collect", iteration))
        worlds, rollout, episodes = collect(algo, self.task, policy, member.worlds, clock, key)
        played = jnp.sum(rollout.filled)
        if not self.config.algo.collect.alike:
            played = parts.total(played)
        steps = member.steps + played.astype(jnp.uint32)
        clock = run.clock(steps, iteration)
        key = parts.own(stream(member.key, "update", iteration))
        learned, metrics = algo.update(self.task.spec, member.algo, rollout, clock, key)
        metrics = {**{f"train/{k}": v for k, v in episodes.items()}, **metrics}
        after = Member(member.key, member.hyper, learned, worlds, steps, member.best, member.best_score)
        return _strong(after), (Packed.of(metrics), steps)

    def evaluate(self, state: RunState) -> tuple[RunState, dict[str, Array]]:
        """Greedy episodes of every member [member, episode, ...]; keeps the best policy of each."""
        return self._over_parts(self._evaluate, state)

    def _evaluate(self, state: RunState) -> tuple[RunState, dict[str, Array]]:
        def one(member: Member) -> tuple[Member, dict[str, Array]]:
            algo = self.algo(member.hyper)
            policy = algo.policy(member.algo)
            clock, key = state.clock(member.steps, state.iteration), stream(member.key, "evaluate", state.iteration)
            wanted = self.config.evaluation.episodes
            played = play(algo, self.task, policy, clock, parts.own(key), -(-wanted // self.parts))
            episodes = jax.tree.map(lambda x: x[:wanted], parts.joined(played))
            score = jnp.mean(self.score(episodes))
            better = score > member.best_score
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), policy, member.best)
            kept = (best, jnp.maximum(score, member.best_score))
            return eqx.tree_at(lambda m: (m.best, m.best_score), member, kept), episodes

        members, episodes = over_members(one, state.members)
        return RunState(members, state.iteration, state.budget), episodes

    def policies(self, state: RunState) -> Policies:
        """What acting needs of a run, and nothing else."""
        members = (state if self.parts == 1 else _with_own(state, lambda x: x[:, 0])).members
        last = over_members(lambda m: self.algo(m.hyper).policy(m.algo), members)
        return Policies(last, members.best, members.hyper, members.steps, state.iteration, state.budget)

    def play(self, policies: Policies, key: Array) -> dict[str, dict[str, Array]]:
        """Greedy episodes of every member's last and best policy, on the same environments."""

        def one(last: Any, best: Any, hyper: dict[str, Array], steps: Array) -> dict[str, dict[str, Array]]:
            algo, clock = self.algo(hyper), Clock(policies.iteration, steps, policies.budget)
            episodes = self.config.evaluation.episodes
            return {
                "last": play(algo, self.task, last, clock, key, episodes),
                "best": play(algo, self.task, best, clock, key, episodes),
            }

        return over_members(one, policies.last, policies.best, policies.hyper, policies.steps)

    def score(self, episodes: dict[str, Array]) -> Array:
        """The task's score of each episode."""
        if self.task.spec.score == "success":
            return episodes["success"]
        return jnp.mean(episodes["returns"], axis=-1)

    def iterations_per_chunk(self) -> int:
        """So many that `points` times `rows` chunks spend the budget, if no episode ends early."""
        spec, collect = self.task.spec, self.config.algo.collect
        length = collect.transitions(spec)
        real = length if collect.restart else length - length // (spec.limit + 1)
        nominal = max(1, collect.envs * real)
        chunks = self.config.evaluation.points * self.config.evaluation.rows
        return max(1, math.ceil(self.config.steps / chunks / nominal))


def over_members(f: Callable[..., Any], *of_members: Any, batch: bool = False) -> Any:
    """`f` of every member, along the leading axis of all arrays.

    The only member of a run is taken by itself (unless `batch`): XLA copies whole rollouts to move an axis of length 1.
    """
    if batch or jax.tree.leaves(of_members)[0].shape[0] > 1:
        return jax.vmap(f)(*of_members)
    alone = f(*jax.tree.map(lambda x: x[0], of_members))
    return jax.tree.map(lambda x: x[None], alone)


def _own(state: RunState) -> tuple[Any, Worlds]:
    """What each part has for itself [member, part, ...], where there are several."""
    return state.members.algo, state.members.worlds


def _each(mark: Any, tree: Any) -> Any:
    """The tree with a mark for every leaf."""
    return jax.tree.map(lambda _: mark, tree)


def _of_a_part(f: Callable[[RunState], tuple[RunState, Any]]) -> Callable[[RunState], tuple[RunState, Any]]:
    """`f` on a device's share of the state, whose part axis has a length of 1."""

    def local(state: RunState) -> tuple[RunState, Any]:
        state, out = f(_with_own(state, lambda x: x[:, 0]))
        return _with_own(state, lambda x: x[:, None]), out

    return local


def _with_own(state: RunState, f: Callable[[Array], Array]) -> RunState:
    return eqx.tree_at(_own, state, jax.tree.map(f, _own(state)))


def _strong(tree: Any) -> Any:
    """Without weak types (a task may say jnp.full(2, 1.0)): a state must have the types it was compiled for."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), tree)


def _report(of_iterations: Packed, steps: Array) -> ChunkReport:
    """Metrics of each iteration -> their sums, and the steps at which one first stopped being finite."""
    bad = ~jnp.isfinite(of_iterations.values[:, 0])
    first = steps[jnp.argmax(bad, axis=0)].astype(jnp.int32)
    return ChunkReport(of_iterations.summed(), jnp.where(jnp.any(bad, axis=0), first, -1), steps[-1])
