"""What a learner process does: collect with its copy of the weights, apply the gradient to the shared ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from rookery.core.host import HostTask
from rookery.core.types import Packed
from rookery.training.asynchronous.memory import SharedMemory
from rookery.training.asynchronous.program import LearnerProgram
from rookery.training.compiled.compiler import Executable, jit
from rookery.training.config import RunConfig
from rookery.training.host.child import DONE, guard, read_job, reply
from rookery.training.host.collector import Collector
from rookery.training.host.program import HostProgram
from rookery.training.host.records import Acting, Shared
from rookery.training.host.steppers import InProcess
from rookery.training.state import member_infos, swept_values

STALENESS = "async/staleness"
"""Gradient steps of other learners between the copy that a gradient was computed with and its own step."""


@dataclass(frozen=True)
class Job:
    """What a learner is told at its start."""

    config: RunConfig
    """Of its share."""
    index: int
    learners: int


@dataclass(frozen=True)
class Part:
    """What a learner tells of a chunk: of each of its gradient steps, metrics and the steps of all learners."""

    names: tuple[str, ...]
    values: np.ndarray  # [update, member, 2, metric]
    steps: np.ndarray  # [update, member]


class Learner:
    """One learner with its environments."""

    def __init__(self, job: Job, program: LearnerProgram, memory: SharedMemory) -> None:
        self._job, self._program, self._memory = job, program, memory
        host = program.host
        _, learning, stepping = program.arguments()
        self._act = Executable(host.lowered_act)
        self._gradient = Executable(jit(program.gradient, donate_argnums=(2, 3)).lower(*learning))
        self._apply = Executable(jit(program.apply).lower(*stepping))
        self._key = np.stack([np.asarray(jax.random.PRNGKey(info.seed)) for info in member_infos(job.config)])
        self._swept, self._budget = swept_values(job.config), jnp.float32(job.config.steps)
        stepper = InProcess(cast(HostTask, job.config.task), host.packing)
        self._collector = Collector(host, [stepper], first=job.index * host.envs)
        self._begun = False
        for executable in (self._act, self._gradient, self._apply):
            executable.wait()

    def _begin(self) -> None:
        """First episodes, or the next ones of a resumed run."""
        self._collector.journal.open_at(self._memory.begun[self._job.index].reshape(-1))
        self._progress = self._collector.begin()
        host = self._program.host
        carry = host.carries(self._swept, jnp.asarray(self._key))
        self._acting = (Acting(jnp.int32(0), jnp.int32(0), carry, host.tape()),)
        self._own = tuple(jnp.array(x) for x in self._memory.states)
        self._begun = True

    def chunk(self) -> Part | None:
        """Rollouts and gradient steps until no step is left; None if the others took all of them."""
        memory, index = self._memory, self._job.index
        with memory.lock():
            if not self._begun:
                self._begin()
            number, common = memory.take(), tuple(jnp.array(x) for x in memory.commons)
            copied, shared = memory.updates, self._shared(number or 0, memory.steps)
        names, values, steps = (), [], []
        while number is not None:
            leaves = self._program.copied(self._own, common)
            self._acting, rows = self._collector.collect(self._watched, leaves, shared, self._acting)
            out = self._gradient(leaves, shared, self._acting, self._progress, rows)
            self._own, gradient, played, self._acting, self._progress, metrics = jax.block_until_ready(out)
            with memory.lock():
                stale = memory.updates - copied
                total = memory.steps + np.asarray(played)
                newest = tuple(np.array(x) for x in memory.commons)  # XLA may read them where they are
                common = self._apply(newest, gradient, self._shared(number, total))
                memory.stepped(common, total)
                number, copied = memory.take(), memory.updates
            shared = self._shared(number or 0, total)
            names, found = _with_staleness(metrics, stale)
            values.append(found)
            steps.append(total)
        memory.begun[index] = (self._collector.journal.episode + 1).reshape(memory.begun[index].shape)
        return Part(names, np.stack(values), np.stack(steps)) if values else None

    def close(self) -> None:
        """Close the environments."""
        self._collector.close()

    def _watched(self, *args: Any) -> Any:
        self._memory.beats[self._job.index] += 1
        return self._act(*args)

    def _shared(self, iteration: int, steps: np.ndarray) -> Shared:
        return Shared(jnp.asarray(self._key), self._swept, jnp.array(steps), jnp.int32(iteration), self._budget)


def _with_staleness(metrics: Packed, stale: int) -> tuple[tuple[str, ...], np.ndarray]:
    values = np.asarray(metrics.values)
    more = np.broadcast_to(np.asarray([[stale], [1.0]], np.float32), (*values.shape[:-1], 1))
    return (*metrics.names, STALENESS), np.concatenate([values, more], axis=-1)


def main(commands: int, replies: int, memory: int, faults: int) -> None:
    """Learn until the pipe of commands is closed."""
    guard(_serve, commands, replies, memory, faults)


def _serve(commands: int, replies: int, memory: int) -> None:
    job: Job = read_job(commands)
    program = LearnerProgram(HostProgram(job.config))
    learner = Learner(job, program, SharedMemory(memory, program, job.learners))
    os.write(replies, DONE)
    while os.read(commands, 1):
        reply(replies, learner.chunk())
    learner.close()
    os._exit(0)  # views of the mapped memory are still there, so that it cannot be closed
