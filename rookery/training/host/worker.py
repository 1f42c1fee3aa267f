"""What a worker process does: step a range of environments whose rows, actions and seeds are in shared memory."""

from __future__ import annotations

import mmap
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from rookery.core.host import HostTask, Rows
from rookery.core.types import Spec
from rookery.training.host.child import DONE, LEAVE, guard, read_job
from rookery.training.host.packing import Packing

RESET, STEP = b"r", b"s"


@dataclass(frozen=True)
class Job:
    """What a worker is told at its start."""

    task: HostTask
    spec: Spec
    envs: int
    """Environments of all workers."""
    start: int
    stop: int
    """The range of them that is this worker's."""


@dataclass(frozen=True)
class Memory:
    """Views of the memory that a training process shares with its workers."""

    block: np.ndarray
    rows: Rows
    action: np.ndarray
    seeds: np.ndarray

    @staticmethod
    def nbytes(packing: Packing) -> int:
        """Bytes of such a memory."""
        return sum(_sizes(packing))

    @staticmethod
    def over(buffer: mmap.mmap, packing: Packing) -> Memory:
        """Views of a mapped file."""
        spec, (size, actions, _) = packing.spec, _sizes(packing)
        raw = np.frombuffer(buffer, np.uint8)
        block, after = raw[: packing.nbytes], raw[size : size + actions]
        shape = (packing.envs, spec.n_agents, *spec.action.shape)
        action = after[: int(np.prod(shape)) * spec.action.dtype.itemsize].view(spec.action.dtype).reshape(shape)
        seeds = raw[size + actions :][: 4 * packing.envs].view(np.uint32)
        return Memory(block, packing.rows(block), action, seeds)

    def at(self, job: Job) -> Memory:
        """The share of a worker."""
        own = slice(job.start, job.stop)
        return Memory(self.block, self.rows.at(own), self.action[own], self.seeds[own])


def _sizes(packing: Packing) -> tuple[int, int, int]:
    """Bytes of the rows, the actions and the seeds, each a multiple of 64."""
    spec = packing.spec
    action = packing.envs * spec.n_agents * int(np.prod(spec.action.shape)) * spec.action.dtype.itemsize
    return packing.nbytes, -(-action // 64) * 64, -(-4 * packing.envs // 64) * 64


def main(commands: int, replies: int, memory: int, faults: int) -> None:
    """Serve until the pipe of commands is closed."""
    guard(_serve, commands, replies, memory, faults)


def _serve(commands: int, replies: int, memory: int) -> None:
    job: Job = read_job(commands)
    packing = Packing(job.spec, job.envs)
    with mmap.mmap(memory, Memory.nbytes(packing)) as buffer:
        own = Memory.over(buffer, packing).at(job)
        envs = job.task.open(job.stop - job.start)
        os.write(replies, DONE)
        try:
            while command := os.read(commands, 1):
                if command == RESET:
                    envs.reset(own.seeds, own.rows)
                else:
                    envs.step(own.action, own.seeds, own.rows)
                os.write(replies, DONE)
        except BaseException:
            signal.alarm(LEAVE)  # ends the process if closing hangs
            with suppress(Exception):
                envs.close()
            raise
        envs.close()
        os._exit(0)  # views of the mapped memory are still there, so that it cannot be closed
