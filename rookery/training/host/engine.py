"""Environments in numpy around a compiled policy and learner."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rookery.core.errors import RunError
from rookery.core.host import HostTask
from rookery.core.keys import stream
from rookery.core.types import Arrays, Packed
from rookery.training.compiled.compiler import Executable, jit
from rookery.training.config import RunConfig
from rookery.training.engine import LONGEST_LOOK, Layout, Timing
from rookery.training.host.collector import Collector
from rookery.training.host.evaluate import Player
from rookery.training.host.measure import Choice, choose
from rookery.training.host.packing import Packing
from rookery.training.host.profile import Watch, time_iterations
from rookery.training.host.program import HostProgram
from rookery.training.host.records import Acting, Progress, Shared, leaves_of
from rookery.training.host.steppers import InProcess, Stepper
from rookery.training.host.workers import WorkerPool
from rookery.training.state import (
    SECOND,
    ChunkReport,
    Episodes,
    Member,
    Policies,
    RunState,
    iterations_per_chunk,
    score,
)

_SECONDS = 1.0  # iterations are timed for so long
_LOOKS = 3  # times that an evaluation's episodes are played


class HostEngine:
    """See `Engine`. Environments are opened when they are first needed."""

    def __init__(self, config: RunConfig, begun: Layout | None = None) -> None:
        self.config = config
        self.layout = host_layout("host", begun)
        self.program = program = HostProgram(config)
        self.shapes: RunState = program.shapes
        self.notes: tuple[str, ...] = ()
        self.player = Player(program, self._open)
        self._tapes: tuple[Any, ...] = ()
        self._restarts = 0
        self._report = jit(program.report, once=True)
        self._keep_best = jit(program.keep_best, once=True)
        self._policies = jax.jit(program.policies)

    @cached_property
    def _act(self) -> Executable:
        return Executable(self.program.lowered_act)

    @cached_property
    def _learn(self) -> Executable:
        leaves, shared, acting, progress, rows = self.program.arguments()
        blocks = tuple(half for _, half in rows)
        learn = jit(self.program.learn, donate_argnums=(0, 1, 2, 3))
        return Executable(learn.lower(leaves, shared, acting, progress, blocks))

    def _open(self, packing: Packing, count: int | None = None) -> Stepper:
        """Environments in so many workers; as many as were chosen, if nothing is said."""
        task, count = cast(HostTask, self.config.task), self._choice.count if count is None else count
        return WorkerPool(task, packing, self.config.workers, count) if count else InProcess(task, packing)

    @cached_property
    def _choice(self) -> Choice:
        if self.config.workers.count >= 0:
            return Choice(self.config.workers.count, "as set")
        return choose(self.program, self._time_iterations)

    def _time_iterations(self, count: int) -> list[Timing]:
        """The pieces of an iteration with so many workers."""
        open_envs = partial(self._open, self.program.packing, count)
        return time_iterations(self.program, self._act, self._learn, open_envs, _SECONDS)

    @cached_property
    def _collector(self) -> Collector:
        return Collector(self.program, [self._open(self.program.packing) for _ in range(self.program.halves)])

    def prepare(self, *, fresh: bool, iterations: int = 0) -> None:
        """Compile, choose between this process and workers, and open the environments."""
        for executable in (self._act, self._learn, self.player.executable()):
            executable.wait()
        _ = self._collector
        choice = self._choice
        if self.config.workers.count < 0:
            where = f"{choice.count} workers" if choice.count else "the training process"
            self.notes = (f"Environments are stepped in {where} ({choice.reason}).",)

    def init(self) -> RunState:
        """A fresh state."""
        state = jit(self.program.init, once=True)()
        progress = self._collector.begin()
        return self._state(state, state.members.algo, *self._acting(state, state.members.worlds.carry), progress)

    def restore(self, state: RunState) -> RunState:
        """The state with environments that run: those of a saved one are rebuilt."""
        carry, progress = self._collector.attach(state.members)
        if self._collector.resumed.startswith("fresh"):
            self.notes += (f"Not resumed bit for bit: {self._collector.resumed}.",)
        return self._state(state, state.members.algo, *self._acting(state, carry), progress)

    def chunk(self, state: RunState, iterations: int = 0) -> tuple[RunState, ChunkReport]:
        """Iterations of every member; 0: as many as training takes at once."""
        carry, progress = self._collector.attach(state.members)
        shared, acting = self._acting(state, carry)
        leaves = leaves_of(state.members.algo)
        found = []
        for _ in range(iterations or iterations_per_chunk(self.config)):
            acting, rows = self._collector.collect(self._act, leaves, shared, acting)
            leaves, shared, acting, progress, report = self._learn(leaves, shared, acting, progress, rows)
            found.append(report)
        # On the host: a program that stacks many arrays would take long to compile.
        report = self._with_restarts(self._report(jax.tree.map(lambda *x: np.stack(x), *found)))
        return self._state(state, jax.tree.unflatten(self.program.structure, leaves), shared, acting, progress), report

    def _with_restarts(self, report: ChunkReport) -> ChunkReport:
        """The report with a metric for restarted workers, where they may be."""
        if self.config.workers.on_failure != "restart":
            return report
        total = self._collector.restarts + self.player.restarts  # those of the evaluation before this chunk, too
        new, self._restarts = total - self._restarts, total
        values = np.asarray(report.sums.values)
        counted = np.broadcast_to(np.asarray([[new], [1.0]], np.float32), (*values.shape[:-1], 1))
        sums = Packed(np.concatenate([values, counted], axis=-1), (*report.sums.names, "train/worker_restarts"))
        at = np.asarray(report.broken_at)
        return ChunkReport(
            sums, np.concatenate([at, np.full((*at.shape[:-1], 1), -1, at.dtype)], axis=-1), report.steps
        )

    def evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        """Episodes of every member; the state keeps each member's best policy."""
        m = state.members
        keys = jnp.stack([stream(key, "evaluate", state.iteration) for key in m.key])
        when = (state.iteration, m.steps, state.budget)
        episodes = second = self.player.play(m.algo, m.swept, keys, when, live=True)
        mean = np.asarray(score(self.program.spec, episodes)).mean(axis=1)
        plays = mean >= np.asarray(m.best_score)
        if plays.any():
            keys = jnp.stack([stream(key, SECOND) for key in keys])
            second = self.player.play(m.algo, m.swept, keys, when, live=True, plays=plays)
        best = self._keep_best(replace(m, worlds=()), (episodes, second))
        return eqx.tree_at(lambda s: (s.members.best, s.members.best_score), state, best), episodes

    def policies(self, state: RunState) -> Policies:
        """Everything that acting needs of the state."""
        return self._policies(replace(state, members=replace(state.members, worlds=())))

    def play(self, policies: Policies, keys: Array) -> dict[str, Episodes]:
        """Episodes of every member's last and best policy."""
        when = (policies.iteration, policies.steps, policies.budget)
        sources = {"last": policies.last, "best": policies.best}
        return {name: self.player.play(source, policies.swept, keys, when) for name, source in sources.items()}

    def profile(self) -> list[Timing]:
        """Seconds of the pieces of one iteration, and of an evaluation's episodes."""
        return [*self._time_iterations(self._choice.count), self._time_episodes()]

    def _time_episodes(self) -> Timing:
        """The best time of a fresh policy's episodes, cut short where they take long."""
        state = self.init()
        m, when = state.members, (state.iteration, state.members.steps, state.budget)
        play = partial(self.player.play, m.algo, m.swept, m.key, when, live=True)
        play(seconds=0.0)  # compiles, and opens the environments
        watch, walls, cpus = Watch(), [], []
        while not walls or (sum(walls) < LONGEST_LOOK and len(walls) < _LOOKS):
            watch.wall = watch.cpu = 0.0
            watch.call(partial(play, seconds=LONGEST_LOOK))
            walls.append(watch.wall)
            cpus.append(watch.cpu)
        return Timing("evaluation", min(walls), min(cpus))

    def record(self) -> dict[str, Any]:
        """The device, how environments are stepped, and how they were brought back."""
        device = jax.devices()[0]
        facts: dict[str, Any] = {"devices": [f"{device.platform}:{device.id} {device.device_kind}"]}
        if "_collector" in vars(self):
            facts["workers"] = self._choice.record()
            if self._collector.resumed:
                facts["environments_resumed"] = self._collector.resumed
        return facts

    def close(self) -> None:
        """Close all environments."""
        self.player.close()
        if "_collector" in vars(self):
            self._collector.close()

    def _acting(self, state: RunState, carry: Any) -> tuple[Shared, tuple[Acting, ...]]:
        """What a rollout begins with."""
        program = self.program
        # Donated to every call and handed back; made anew if a call failed.
        tapes, self._tapes = self._tapes or tuple(program.tape() for _ in range(program.halves)), ()
        halves = enumerate(zip(program.split(carry), tapes, strict=True))
        return program.shared(state), tuple(Acting(jnp.int32(0), jnp.int32(i), *half) for i, half in halves)

    def _state(
        self, before: RunState, algo: Arrays, shared: Shared, acting: tuple[Acting, ...], progress: Progress
    ) -> RunState:
        self._tapes = tuple(half.tape for half in acting)
        worlds, best = self._collector.worlds(acting, progress), before.members
        members = Member(shared.key, shared.swept, algo, worlds, shared.steps, best.best, best.best_score)
        return RunState(members, shared.iteration, shared.budget)


def host_layout(engine: str, begun: Layout | None) -> Layout:
    """The layout of a run outside XLA; raises `RunError` if it was begun on another."""
    here = Layout(engine, jax.default_backend(), 1, 1)
    if begun is not None and begun != here:
        raise RunError(
            f"this run was begun on {begun.engine} {begun.platform}, but this process computes on {here.platform}: its "
            "numbers would change. Resume it on a machine with such a device."
        )
    return here


def trace_host(config: RunConfig) -> None:
    """Trace everything that the run computes, abstractly."""
    program = HostProgram(config)
    leaves, shared, acting, progress, rows = program.arguments()
    jax.eval_shape(program.act, leaves, shared, acting[0], rows[0][0])
    jax.eval_shape(program.learn, leaves, shared, acting, progress, tuple(half for _, half in rows))
    Player(program, lambda packing: InProcess(cast(HostTask, config.task), packing)).trace()
