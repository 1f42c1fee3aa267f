"""Worker processes that step environments. Nothing here spins: commands and answers are bytes in pipes."""

from __future__ import annotations

import mmap
import select
from itertools import pairwise
from typing import IO

import numpy as np

from rookery.core.host import HostTask
from rookery.training.config import Workers
from rookery.training.host.child import START, Child, ChildError, answers, memory_file
from rookery.training.host.packing import Packing
from rookery.training.host.worker import RESET, STEP, Job, Memory

WORKER = "rookery.training.host.worker"


class _Worker(Child):
    """The process of some of the environments."""

    def __init__(self, job: Job, memory: IO[bytes]) -> None:
        self.job = job
        name = f"the worker of environments {job.start} to {job.stop - 1} of {job.spec.name}"
        # It never computes with JAX, and must not claim a device.
        super().__init__(WORKER, job, memory, name, {"JAX_PLATFORMS": "cpu"})


class WorkerPool:
    """See `Stepper`: the environments are divided between processes, and all fields are in memory that they share."""

    def __init__(self, task: HostTask, packing: Packing, settings: Workers, count: int) -> None:
        self.restarts = 0
        self._settings, self._packing = settings, packing
        self._file = memory_file(Memory.nbytes(packing))
        self._memory = Memory.over(mmap.mmap(self._file.fileno(), Memory.nbytes(packing)), packing)
        self.block, self.rows = self._memory.block, self._memory.rows
        edges = np.linspace(0, packing.envs, min(count, packing.envs) + 1).astype(int).tolist()
        jobs = [Job(task, packing.spec, packing.envs, a, b) for a, b in pairwise(edges)]
        self._workers: list[_Worker] = []
        self._new: set[int] = set()  # restarted, and not stepped yet
        try:
            self._workers.extend(_Worker(job, self._file) for job in jobs)
            failed = self._answers(START)
            if failed:
                raise next(iter(failed.values()))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The workers' processes."""
        return [worker.pid for worker in self._workers]

    def reset(self, seeds: np.ndarray) -> None:
        """Begin an episode in every environment."""
        self._memory.seeds[:] = seeds
        self._tell(RESET)
        self._recover(self._answers(self._settings.timeout))

    def send(self, action: np.ndarray, seeds: np.ndarray) -> None:
        """Begin to move every environment by one row."""
        self._memory.action[:] = action
        self._memory.seeds[:] = seeds
        self._tell(STEP)

    def wait(self) -> np.ndarray | None:
        """Finish what `send` began; returns the environments whose worker was restarted."""
        failed = self._answers(self._settings.timeout)
        if not failed:
            self._new.clear()
            return None
        self._new &= failed.keys()
        self._recover(failed)
        lost = np.zeros(self._packing.envs, bool)
        for index in failed:
            lost[self._workers[index].job.start : self._workers[index].job.stop] = True
        return lost

    def close(self) -> None:
        """End all workers."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.leave()
        for worker in workers:
            worker.join()
        self._file.close()

    def _tell(self, command: bytes) -> None:
        for worker in self._workers:
            worker.tell(command)

    def _answers(self, seconds: float) -> dict[int, ChildError]:
        """Wait for an answer of every worker; returns what is wrong with those that failed."""
        return answers(self._workers, seconds)

    def _recover(self, failed: dict[int, ChildError]) -> None:
        """Restart failed workers with fresh episodes, or raise."""
        if not failed:
            return
        # One that fails at its first step again would fail forever.
        hopeless = failed if self._settings.on_failure == "stop" else self._new & failed.keys()
        for index in hopeless:
            raise failed[index]
        self._new |= failed.keys()
        for index in failed:
            old = self._workers[index]
            old.kill()
            self._workers[index] = _Worker(old.job, self._file)
            self.restarts += 1
            self._first(index, START, None)
            self._first(index, self._settings.timeout, RESET)

    def _first(self, index: int, seconds: float, command: bytes | None) -> None:
        """One answer of one new worker, which must be good."""
        worker = self._workers[index]
        if command:
            worker.tell(command)
        if not select.select([worker.replies], [], [], seconds)[0]:
            raise worker.hung(seconds)
        worker.answer()
