"""The compiled functions of a run whose environments live outside XLA: act on one row, learn from one rollout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from rookery.core.config import with_values
from rookery.core.keys import stream
from rookery.core.types import (
    Action,
    ActionSpec,
    Algorithm,
    Arrays,
    Carry,
    Clock,
    Extra,
    Metrics,
    Packed,
    Rollout,
    Spec,
    Step,
)
from rookery.training.compiled.compiler import jit
from rookery.training.compiled.program import chunk_report, over_members, strong
from rookery.training.compiled.rollout import Tally, add_up, episode_metrics, filled_rows, within_bounds
from rookery.training.config import RunConfig
from rookery.training.host.packing import Packing
from rookery.training.host.records import Acting, Leaves, Parts, Progress, Shared, Tape, leaves_of
from rookery.training.host.worlds import HostWorlds, capacity, digest, fold
from rookery.training.state import (
    ChunkReport,
    Episodes,
    Member,
    Policies,
    RunState,
    confirmed,
    member_infos,
    score,
    swept_values,
)


@dataclass(frozen=True)
class HostProgram:
    """The pure functions of one run; everything in it is static."""

    config: RunConfig

    @cached_property
    def spec(self) -> Spec:
        return self.config.task.spec

    @cached_property
    def members(self) -> int:
        return len(member_infos(self.config))

    @property
    def halves(self) -> int:
        """Groups of environments that are stepped by turns: 2 if they overlap."""
        return 2 if self.config.workers.overlap else 1

    @property
    def envs(self) -> int:
        """Environments of each member."""
        return self.config.algo.collect.envs

    @property
    def together(self) -> int:
        """Environments of each member that are stepped together."""
        return self.envs // self.halves

    @cached_property
    def length(self) -> int:
        """Transitions of a rollout."""
        return self.config.algo.collect.transitions(self.spec)

    @cached_property
    def interval(self) -> int:
        """Rows from one kept carry to the next."""
        return self.config.algo.carry_interval(self.spec) or self.length

    @cached_property
    def packing(self) -> Packing:
        """Of one half."""
        return Packing(self.spec, self.members * self.together)

    @cached_property
    def shapes(self) -> RunState:
        """Of a state."""
        return jax.eval_shape(self.init)

    @cached_property
    def structure(self) -> Any:
        """How leaves make an algorithm's state."""
        return jax.tree.structure(self.shapes.members.algo)

    def algo(self, swept: dict[str, Array]) -> Algorithm[Any]:
        """The algorithm with a member's swept values in it (possibly traced)."""
        return with_values(self.config.algo, {path.removeprefix("algo."): x for path, x in swept.items()})

    # -- state --------------------------------------------------------------------------------------------------
    def init(self) -> RunState:
        """Fresh members, whose environments are not begun yet."""
        keys = jnp.stack([jax.random.PRNGKey(info.seed) for info in member_infos(self.config)])
        members = over_members(self._init_member, keys, swept_values(self.config))
        return RunState(strong(members), jnp.int32(0), jnp.float32(self.config.steps))

    def _init_member(self, key: Array, swept: dict[str, Array]) -> Member:
        algo, envs, action = self.algo(swept), self.envs, self.spec.action
        state = algo.init(self.spec, stream(key, "init"))
        room = capacity(self.spec, self.members * envs, restart=self.config.algo.collect.restart)
        worlds = HostWorlds(
            episode=jnp.zeros(envs, jnp.uint32),
            seed=jnp.zeros(envs, jnp.uint32),
            count=jnp.zeros(envs, jnp.int32),
            actions=jnp.zeros((envs, room, self.spec.n_agents, *action.shape), action.dtype),
            checksum=jnp.zeros((envs, 2), jnp.uint32),
            carry=algo.carry(self.spec, envs),
            tally=self._tally(),
        )
        return Member(key, swept, state, worlds, jnp.uint32(0), algo.snapshot(state), jnp.float32(-jnp.inf))

    def _tally(self) -> Tally:
        return Tally(jnp.zeros((self.envs, self.spec.n_agents)), jnp.zeros(self.envs, jnp.int32))

    def carries(self, swept: Any, keys: Array) -> Carry:
        """Carries of environments that all begin an episode."""
        return over_members(lambda swept, _: self.algo(swept).carry(self.spec, self.envs), swept, keys)

    def progress(self) -> Progress:
        """Scores and checksums before anything was seen."""
        empty = Progress(self._tally(), jnp.zeros((self.envs, 2), jnp.uint32))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.members, *x.shape)), empty)

    def arguments(self) -> Any:
        """Shapes of what `act` and `learn` are given: leaves, shared, acting, progress, and a row and all rows of
        each half."""
        state = self.shapes
        row = jax.ShapeDtypeStruct((self.packing.nbytes,), jnp.uint8)
        rows = jax.ShapeDtypeStruct((self.length + 1, self.packing.nbytes), jnp.uint8)
        shared, acting = jax.eval_shape(self.shared, state), jax.eval_shape(self.acting, state)
        leaves = leaves_of(state.members.algo)
        return leaves, shared, acting, jax.eval_shape(self.progress), ((row, rows),) * self.halves

    def shared(self, state: RunState) -> Shared:
        """What acting reads of a state."""
        m = state.members
        return Shared(m.key, m.swept, m.steps, state.iteration, state.budget)

    def acting(self, state: RunState) -> tuple[Acting, ...]:
        """What a rollout begins with, its tapes empty."""
        carries = self.split(state.members.worlds.carry)
        return tuple(Acting(jnp.int32(0), jnp.int32(i), carry, self.tape()) for i, carry in enumerate(carries))

    def split(self, tree: Any) -> tuple[Any, ...]:
        """Arrays [member, env, ...] -> those of each half."""
        if self.halves == 1:
            return (tree,)
        n = self.together
        return tuple(jax.tree.map(lambda x, at=at: x[:, at : at + n], tree) for at in range(0, self.envs, n))

    def join(self, halves: list[Any]) -> Any:
        """What `split` took apart."""
        return halves[0] if len(halves) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *halves)

    def tape(self) -> Tape:
        """A tape of zeros."""
        slots = self.length // self.interval + 1
        _, (carry, action, extra) = self._choosing

        def rows(count: int, shapes: Any) -> Any:
            return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), shapes)

        return Tape(rows(self.length, action), rows(self.length, extra), rows(slots, carry))

    # -- acting -------------------------------------------------------------------------------------------------
    @cached_property
    def _choosing(self) -> tuple[Any, Any]:
        """`_choose` as a jaxpr, and the shapes of what it returns."""
        state = self.shapes
        row = jax.ShapeDtypeStruct((self.packing.nbytes,), jnp.uint8)
        (half, *_) = jax.eval_shape(self.split, state.members.worlds.carry)
        acting = jax.eval_shape(
            lambda carry: Acting(jnp.int32(0), jnp.int32(0), carry, Tape(jnp.zeros(0), {}, ())), half
        )
        of_run = leaves_of(state.members.algo), jax.eval_shape(self.shared, state)
        return jax.make_jaxpr(self._choose, return_shape=True)(*of_run, acting, row)

    @cached_property
    def parts(self) -> tuple[Parts, Parts, Parts]:
        """What `lowered_act` is given of an algorithm's leaves (what acting reads), of `Shared` and of `Acting`."""
        leaves, shared, acting, *_ = self.arguments()
        read = tuple(i for i in _read(self._choosing[0].jaxpr) if i < len(leaves))
        return Parts(leaves, read), Parts.filled(shared), Parts.filled(acting[0])

    @cached_property
    def lowered_act(self) -> jax.stages.Lowered:
        """`act` of flat tuples: the `parts` of an algorithm's leaves, of `Shared`, and of `Acting`, which it returns
        too."""
        leaves, shared, acting, _, rows = self.arguments()
        of_state, of_shared, of_acting = self.parts

        def act(leaves: Leaves, shared: Leaves, acting: Leaves, row: Array) -> tuple[Leaves, Action]:
            after, action = self.act(of_state.put(leaves), of_shared.put(shared), of_acting.put(acting), row)
            return of_acting.take(after), action

        flat = of_state.take(leaves), of_shared.take(shared), of_acting.take(acting[0])
        return jit(act, donate_argnums=2).lower(*flat, rows[0][0])

    def act(self, leaves: Leaves, shared: Shared, acting: Acting, row: Array) -> tuple[Acting, Action]:
        """Exploring actions for one row of bytes: as the environments take them [member * env, agent, ...]."""
        t, tape, interval = acting.t, acting.tape, self.interval
        carry, action, extra = self._choose(leaves, shared, acting, row)
        slot = jnp.where(t % interval == 0, t // interval, self.length // interval)
        write = lambda kept, x, at: kept.at[at].set(x, mode="promise_in_bounds")  # noqa: E731
        tape = Tape(
            action=write(tape.action, action, t),
            extra=jax.tree.map(lambda kept, x: write(kept, x, t), tape.extra, extra),
            carry=jax.tree.map(lambda kept, x: write(kept, x, slot), tape.carry, acting.carry),
        )
        legal = self.packing.step(row, members=self.members).legal
        taken = playable(self.spec.action, action, legal).reshape(-1, *action.shape[2:])
        return replace(acting, t=t + 1, carry=carry, tape=tape), taken

    def _choose(self, leaves: Leaves, shared: Shared, acting: Acting, row: Array) -> tuple[Carry, Action, Extra]:
        step = self.packing.step(row, members=self.members)

        def one(state: Arrays, key: Array, swept: Any, steps: Array, carry: Carry, step: Step) -> Any:
            algo, key = self.algo(swept), stream(key, "collect", shared.iteration)
            clock = Clock(shared.iteration, steps, shared.budget)
            key = stream(key, "act", acting.t)
            key = stream(key, "half", acting.half) if self.halves > 1 else key
            return algo.act(self.spec, algo.policy(state), carry, step, clock, key, greedy=False)

        state = jax.tree.unflatten(self.structure, leaves)
        return over_members(one, state, shared.key, shared.swept, shared.steps, acting.carry, step)

    # -- learning -----------------------------------------------------------------------------------------------
    def learn(
        self,
        leaves: Leaves,
        shared: Shared,
        acting: tuple[Acting, ...],
        progress: Progress,
        rows: tuple[Array, ...],
    ) -> tuple[Leaves, Shared, tuple[Acting, ...], Progress, tuple[Packed, Array]]:
        """Learn from a rollout; returns what the next one needs, and each member's metrics and steps."""
        state = jax.tree.unflatten(self.structure, leaves)
        step, tape = self.seen(acting, rows)
        stored = bool(jax.tree.leaves(self.config.algo.stores(state)))

        def one(state: Arrays, key: Array, swept: Any, steps: Array, step: Step, tape: Tape, progress: Progress) -> Any:
            algo = self.algo(swept)
            rollout, progress, episodes = self.rollout(algo, step, tape, progress)
            steps = steps + jnp.sum(rollout.filled).astype(jnp.uint32)
            clock, key = Clock(shared.iteration, steps, shared.budget), stream(key, "update", shared.iteration)
            learned, metrics = algo.update(self.spec, state, rollout, clock, key)
            return strong(learned), steps, progress, Packed.of({**episodes, **metrics})

        of_members = (state, shared.key, shared.swept, shared.steps, step, tape, progress)
        # A store must not be copied, and it would be if it lost its member axis.
        state, steps, progress, metrics = over_members(one, *of_members, batch=stored)
        acting = self.next_rollout(acting, shared)
        shared = replace(shared, steps=steps, iteration=shared.iteration + 1)
        return leaves_of(state), shared, acting, progress, (metrics, steps)

    def seen(self, acting: tuple[Acting, ...], rows: tuple[Array, ...]) -> tuple[Step, Tape]:
        """What was seen and done in a rollout [member, row, env, ...]."""
        step = _members_first(_joined([self.packing.step(half, members=self.members) for half in rows]))
        return step, _members_first(_joined([half.tape for half in acting]))

    def rollout(
        self, algo: Algorithm[Any], step: Step, tape: Tape, progress: Progress
    ) -> tuple[Rollout, Progress, Metrics]:
        """A member's rollout, scores after it, and metrics of the episodes that ended in it."""
        filled = filled_rows(step.last, algo.collect.restart)
        progress, episodes = self._score(progress, step, filled)
        carries = jax.tree.map(lambda x: x[:-1], tape.carry)
        rollout = Rollout(step, tape.action, tape.extra, carries, filled)
        return rollout, progress, {f"train/{k}": v for k, v in episodes.items()}

    def next_rollout(self, acting: tuple[Acting, ...], shared: Shared) -> tuple[Acting, ...]:
        """What the next rollout begins with."""
        carries = [half.carry for half in acting]
        if self.config.algo.collect.restart:
            carries = self.split(self.carries(shared.swept, shared.key))
        return tuple(replace(half, t=jnp.int32(0), carry=carry) for half, carry in zip(acting, carries, strict=True))

    def _score(self, progress: Progress, step: Step, filled: Array) -> tuple[Progress, Any]:
        """Scores after the rollout, and those of the episodes that ended in it."""
        restart = self.config.algo.collect.restart
        begun = Progress(self._tally(), progress.checksum) if restart else progress
        after = jax.tree.map(lambda x: x[1:], step)

        def row(now: Progress, seen: tuple[Array, Array, Array]) -> tuple[Progress, Tally]:
            reward, first, digests = seen
            tally = add_up(now.tally, reward, first)
            # With restarts no episode goes on, so that none needs to be recognized.
            return Progress(tally, now.checksum if restart else fold(now.checksum, digests, first)), tally

        now, tallies = jax.lax.scan(row, begun, (after.reward, after.first, digest(after)))
        return now, episode_metrics(tallies, after, filled)

    def look(self, checksum: Array, row: Array) -> Array:
        """The checksums of one half [member, env, two] after one more row."""
        step = self.packing.step(row, members=self.members)
        return fold(checksum, digest(step), step.first)

    def report(self, of_iterations: tuple[Packed, Array]) -> ChunkReport:
        """Metrics and steps of each iteration [iteration, member, ...] -> what a chunk tells."""
        return over_members(chunk_report, *_members_first(of_iterations))

    # -- policies -----------------------------------------------------------------------------------------------
    def keep_best(self, members: Member, looks: tuple[Episodes, Episodes]) -> tuple[Arrays, Array]:
        """Each member's best policy and its score, after the episodes of an evaluation and of a second look."""

        def one(swept: Any, state: Arrays, best: Arrays, before: Array, first: Episodes, second: Episodes) -> Any:
            means = jnp.stack([jnp.mean(score(self.spec, look)) for look in (first, second)])
            better, mean = confirmed(means, before)
            taken = self.algo(swept).snapshot(state)
            kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), taken, best)
            return kept, jnp.where(better, mean, before)

        return over_members(one, members.swept, members.algo, members.best, members.best_score, *looks)

    def policies(self, state: RunState) -> Policies:
        """Everything that acting needs of a run."""
        m = state.members
        last = over_members(lambda swept, algo: self.algo(swept).snapshot(algo), m.swept, m.algo)
        return Policies(last, m.best, m.key, m.swept, m.steps, state.iteration, state.budget)


def playable(spec: ActionSpec, action: Action, legal: Bool[Array, "*b agent action"]) -> Action:
    """What environments take: within bounds, and the first legal action in place of an illegal one.

    Policies choose legal actions as long as they compute with numbers. One that diverged would end the whole run here.
    """
    if spec.kind != "discrete":
        return within_bounds(spec, action)
    allowed = jnp.take_along_axis(legal, action[..., None], axis=-1)[..., 0]
    return jnp.where(allowed, action, jnp.argmax(legal, axis=-1).astype(action.dtype))


def _read(jaxpr: Any) -> list[int]:
    """Which of its arguments a program reads."""
    needed = {id(x) for x in jaxpr.outvars}
    for step in reversed(jaxpr.eqns):
        if step.effects or any(id(x) in needed for x in step.outvars):
            needed.update(id(x) for x in step.invars)
    return [i for i, x in enumerate(jaxpr.invars) if id(x) in needed]


def _members_first(tree: Any) -> Any:
    """[row, member, ...] -> [member, row, ...]."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tree)


def _joined(halves: list[Any]) -> Any:
    """[row, member, env, ...] of each half -> of all environments."""
    return halves[0] if len(halves) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), *halves)
