"""Worker processes that step environments. Nothing here spins: commands and answers are bytes in pipes."""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from typing import IO, Any

import numpy as np

from rookery.core.errors import TrainingError
from rookery.core.host import HostTask
from rookery.training.config import Workers
from rookery.training.host.packing import Packing
from rookery.training.host.worker import BOOTSTRAP, DONE, FAILED, REFUSED, RESET, STEP, Job, Memory

_START = 300.0  # seconds that a worker may take to import its task and open its environments
_LEAVE = 2.0  # seconds that it may take to close them


class WorkerError(TrainingError):
    """A worker that raised, died or hung."""


class _Worker:
    """One process and its pipes."""

    def __init__(self, job: Job, memory: IO[bytes]) -> None:
        self.job = job
        told, self._commands = os.pipe()
        self.replies, answers = os.pipe()
        self._faults = _nameless()
        fds = (told, answers, memory.fileno(), self._faults.fileno())
        code = BOOTSTRAP.format(parent=os.getpid(), path=sys.path, fds=fds)
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # it never computes with JAX, and must not claim a device
        self._process = subprocess.Popen([sys.executable, "-c", code], pass_fds=fds, env=environment)
        os.close(told)
        os.close(answers)
        data = pickle.dumps(job)
        with suppress(BrokenPipeError):  # found when the answer is read
            os.write(self._commands, len(data).to_bytes(8, "little") + data)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: bytes) -> None:
        """Send a command; if the worker is gone, the end of its answers says so."""
        with suppress(BrokenPipeError):
            os.write(self._commands, command)

    def answer(self) -> None:
        """Take the answer that is there; raises `WorkerError` if it is not a good one."""
        said = os.read(self.replies, 1)
        if said == DONE:
            return
        text = said[1:]
        while part := os.read(self.replies, 65536):
            text += part
        if said == REFUSED:
            raise TrainingError(text.decode(errors="replace"))
        raise WorkerError(f"{self._name} {'raised:' if said == FAILED else self._ending()}\n{text.decode()}".strip())

    def hung(self, seconds: float) -> WorkerError:
        """What to say of a worker that did not answer."""
        return WorkerError(
            f"{self._name} did not answer for {seconds:g} seconds. If its environments may take that long, raise "
            "--workers.timeout."
        )

    @property
    def _name(self) -> str:
        job = self.job
        return f"the worker of environments {job.start} to {job.stop - 1} of {job.spec.name} (process {self.pid})"

    def _ending(self) -> str:
        """How the process ended, with the Python stack at a crash if there is one."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_LEAVE)
        code = self._process.returncode
        self._faults.seek(0)
        stack = self._faults.read().decode(errors="replace")
        how = "closed its pipe" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return f"{how}:\n{stack}" if stack else f"{how}."

    def leave(self) -> None:
        """Tell the process to end."""
        os.close(self._commands)

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()
        self.leave()
        self.join()

    def join(self) -> None:
        """Wait until the process has ended, but not for long."""
        try:
            self._process.wait(timeout=_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self.replies)
        self._faults.close()


class WorkerPool:
    """See `Stepper`: the environments are divided between processes, and all fields are in memory that they share."""

    def __init__(self, task: HostTask, packing: Packing, settings: Workers, count: int) -> None:
        self.restarts = 0
        self._settings, self._packing = settings, packing
        self._file = _memory_file(Memory.nbytes(packing))
        self._memory = Memory.over(mmap.mmap(self._file.fileno(), Memory.nbytes(packing)), packing)
        self.block, self.rows = self._memory.block, self._memory.rows
        edges = np.linspace(0, packing.envs, min(count, packing.envs) + 1).astype(int).tolist()
        jobs = [Job(task, packing.spec, packing.envs, a, b) for a, b in pairwise(edges)]
        self._workers: list[_Worker] = []
        self._new: set[int] = set()  # restarted, and not stepped yet
        try:
            self._workers.extend(_Worker(job, self._file) for job in jobs)
            failed = self._answers(_START)
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

    def _answers(self, seconds: float) -> dict[int, WorkerError]:
        """Wait for an answer of every worker; returns what is wrong with those that failed."""
        failed: dict[int, WorkerError] = {}
        waiting = {worker.replies: index for index, worker in enumerate(self._workers)}
        deadline = time.monotonic() + seconds
        poll = select.poll()
        for pipe in waiting:
            poll.register(pipe, select.POLLIN)
        while waiting:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                return failed | {index: self._workers[index].hung(seconds) for index in waiting.values()}
            for pipe, _ in ready:
                poll.unregister(pipe)
                index = waiting.pop(pipe)
                try:
                    self._workers[index].answer()
                except WorkerError as error:
                    failed[index] = error
        return failed

    def _recover(self, failed: dict[int, WorkerError]) -> None:
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
            self._first(index, _START, None)
            self._first(index, self._settings.timeout, RESET)

    def _first(self, index: int, seconds: float, command: bytes | None) -> None:
        """One answer of one new worker, which must be good."""
        worker = self._workers[index]
        if command:
            worker.tell(command)
        if not select.select([worker.replies], [], [], seconds)[0]:
            raise worker.hung(seconds)
        worker.answer()


def _memory_file(size: int) -> Any:
    """A file without a name, in memory where the system can do that: nothing is left behind, whatever happens."""
    in_memory = sys.platform == "linux"
    file: Any = os.fdopen(os.memfd_create("rookery"), "r+b", buffering=0) if in_memory else _nameless()
    file.truncate(size)
    return file


def _nameless() -> Any:
    return tempfile.TemporaryFile()
