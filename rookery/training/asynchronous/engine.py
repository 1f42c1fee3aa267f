"""A3C (Mnih et al. 2016): learners in processes of their own, which do not wait for each other."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from rookery.core.types import Packed
from rookery.training.asynchronous.learner import Job, Part
from rookery.training.asynchronous.memory import SharedMemory, copy
from rookery.training.asynchronous.program import LearnerProgram, share
from rookery.training.compiled.compiler import cache_variables, jit
from rookery.training.config import RunConfig
from rookery.training.engine import Layout, Timing
from rookery.training.host.child import START, Child, answers, memory_file
from rookery.training.host.engine import HostEngine, host_layout
from rookery.training.host.evaluate import Player
from rookery.training.host.steppers import InProcess
from rookery.training.state import ChunkReport, Episodes, Policies, RunState, iterations_per_chunk

_LEARNER = "rookery.training.asynchronous.learner"
_GO = b"g"


class Begun(eqx.Module):
    """What a state holds of environments that belong to learners."""

    episodes: UInt32[Array | np.ndarray, "member learner env"]
    """Episodes that were begun in each; a resumed run begins the next ones."""


class AsyncEngine:
    """See `Engine`. An iteration is as many gradient steps as there are learners, whoever takes them. All of them are
    taken when a chunk is over, so that learners wait for each other there and only there.

    Not deterministic: which gradient is applied when depends on the machine.
    """

    def __init__(self, config: RunConfig, begun: Layout | None = None) -> None:
        self.config = config
        self.layout = host_layout("asynchronous", begun)
        self._host = HostEngine(share(config))  # evaluates, and keeps the best policy
        self._program = LearnerProgram(self._host.program)
        self._learners = config.algo.collect.learners
        self.shapes: RunState = jax.eval_shape(self._init)
        self._resumed = ""
        self.notes: tuple[str, ...] = (
            f"{self._learners} asynchronous learners: not deterministic, so another run of this config will differ.",
        )

    def _init(self) -> RunState:
        host = self._program.host
        begun = Begun(jnp.zeros((host.members, self._learners, host.envs), jnp.uint32))
        state = host.init()
        return replace(state, members=replace(state.members, worlds=begun))

    @cached_property
    def _pool(self) -> LearnerPool:
        return LearnerPool(self._program, self.config, self._learners)

    def prepare(self, *, fresh: bool, iterations: int = 0) -> None:
        """Start the learners and compile."""
        pool = self._pool
        self._host.player.executable().wait()
        pool.wait()

    def init(self) -> RunState:
        """A fresh state."""
        return jit(self._init, once=True)()

    def restore(self, state: RunState) -> RunState:
        """The state itself: learners begin new episodes."""
        self._resumed = "fresh episodes: asynchronous learners go on from the shared weights, statistics and steps"
        self.notes += (f"Not resumed bit for bit: {self._resumed}.",)
        return state

    def chunk(self, state: RunState, iterations: int = 0) -> tuple[RunState, ChunkReport]:
        """Iterations of every member; 0: as many as training takes at once."""
        count = (iterations or iterations_per_chunk(self.config)) * self._learners
        return self._pool.chunk(state, count)

    def evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        """Episodes of every member; the state keeps each member's best policy."""
        return self._host.evaluate(state)

    def policies(self, state: RunState) -> Policies:
        """Everything that acting needs of the state."""
        return self._host.policies(state)

    def play(self, policies: Policies, keys: Array) -> dict[str, Episodes]:
        """Episodes of every member's last and best policy."""
        return self._host.play(policies, keys)

    def profile(self) -> list[Timing]:
        """Seconds of the pieces of one learner's iteration, if it is alone."""
        return self._host.profile()

    def record(self) -> dict[str, Any]:
        """The device, the learners, and how their environments were brought back."""
        resumed = {"environments_resumed": self._resumed} if self._resumed else {}
        return {**self._host.record(), "learners": self._learners, "deterministic": False, **resumed}

    def close(self) -> None:
        """End all learners and close all environments."""
        if "_pool" in vars(self):
            self._pool.close()
        self._host.close()


class LearnerPool:
    """The learners' processes, and the memory that they share."""

    def __init__(self, program: LearnerProgram, config: RunConfig, learners: int) -> None:
        self._program, self._config, self._waited = program, config, False
        self._file = memory_file(SharedMemory.nbytes(program, learners))
        self.memory = SharedMemory(self._file.fileno(), program, learners)
        self._beats = np.zeros(learners, np.int64)
        # One thread each: with pools of their own for all cores, learners would take them from each other.
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
        environment = {"JAX_PLATFORMS": "cpu", "NPROC": "1", "XLA_FLAGS": flags, **cache_variables()}
        own, name = program.host.config, program.host.spec.name
        self._children: list[Child] = []
        try:
            for i in range(learners):
                job = Job(own, i, learners)
                self._children.append(Child(_LEARNER, job, self._file, f"learner {i} of {name}", environment))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The learners' processes."""
        return [child.pid for child in self._children]

    def wait(self) -> None:
        """Return when all learners are ready."""
        if not self._waited:
            self._answers(START)
            self._waited = True

    def chunk(self, state: RunState, updates: int) -> tuple[RunState, ChunkReport]:
        """So many gradient steps."""
        self.wait()
        memory, algo = self.memory, self._program.algo
        with memory.lock():
            copy(jax.tree.leaves(state.members.algo), memory.states)
            copy(jax.tree.leaves(algo.common(state.members.algo)), memory.commons)
            memory.steps[:] = np.asarray(state.members.steps)
            memory.begun[:] = np.moveaxis(np.asarray(state.members.worlds.episodes), 0, 1)
            memory.open(int(state.iteration), updates)
        for child in self._children:
            child.tell(_GO)
        self._answers(self._config.workers.timeout)
        parts: list[Part | None] = [child.receive() for child in self._children]
        with memory.lock():
            leaves = self._program.copied(jax.tree.leaves(state.members.algo), [jnp.array(x) for x in memory.commons])
            begun = Begun(jnp.array(np.moveaxis(memory.begun, 0, 1)))
            steps, iteration = jnp.array(memory.steps), jnp.int32(memory.updates)
        learned = jax.tree.unflatten(self._program.host.structure, leaves)
        members = replace(state.members, algo=learned, worlds=begun, steps=steps)
        return RunState(members, iteration, state.budget), _report([part for part in parts if part is not None])

    def _answers(self, seconds: float) -> None:
        """Wait for all learners; raises the error of one that failed."""

        def moved(index: int) -> bool:
            before, self._beats[index] = self._beats[index], self.memory.beats[index]
            return bool(self._beats[index] != before)

        # The others would go on for the whole chunk.
        for error in answers(self._children, seconds, moved, all_of_them=False).values():
            raise error

    def close(self) -> None:
        """End all learners."""
        children, self._children = self._children, []
        for child in children:
            child.kill()  # a rollout may take long, and there is nothing to save
        self._file.close()


def _report(parts: list[Part]) -> ChunkReport:
    """The report of a chunk, with the iterations of all learners in the order of their steps."""
    values, steps = (np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "steps"))
    order = np.argsort(steps.max(axis=1), kind="stable")
    values, steps = np.moveaxis(values[order], 1, 0), np.moveaxis(steps[order], 1, 0)  # members first
    bad = ~np.isfinite(values[:, :, 0])
    first = np.take_along_axis(np.broadcast_to(steps[..., None], bad.shape), bad.argmax(axis=1)[:, None], axis=1)[:, 0]
    broken = np.where(bad.any(axis=1), first.astype(np.int64), -1).astype(np.int32)
    return ChunkReport(Packed(values.sum(axis=1), parts[0].names), broken, steps.max(axis=1))


def trace_async(config: RunConfig) -> None:
    """Trace everything that the run computes, abstractly."""
    host = HostEngine(share(config))
    program = LearnerProgram(host.program)
    acting, learning, stepping = program.arguments()
    jax.eval_shape(program.host.act, *acting)
    jax.eval_shape(program.gradient, *learning)
    jax.eval_shape(program.apply, *stepping)
    task: Any = config.task
    Player(program.host, lambda packing: InProcess(task, packing)).trace()
