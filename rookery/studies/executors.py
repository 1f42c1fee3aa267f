"""Where the runs of a study are trained: in processes of this machine, on a Ray cluster, or by Slurm.

A run is always trained by a Python process of its own that is given the run's folder and the process it belongs to, and
all that is known of a run is read from its folder. An executor only says where that process is started. So all
machines must see the folder under one path (a shared file system) and have the same packages.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from rookery.core.errors import ConfigError, RunError
from rookery.training.provenance import usable_cores

BYTES_PER_RUN = 3 << 29
"""Memory set aside for a run: most need between half a GiB and two."""
LOG = "log.txt"
_NO_LIMIT = 60 * 24 * 7  # minutes, where Slurm is not told another limit


@dataclass(frozen=True)
class Ended:
    """How a run's process ended."""

    code: int
    """As of `subprocess`: negative for a signal."""
    cause: str = ""
    """What the executor knows of it; empty if the code and the run's log say all."""


class Job(Protocol):
    """A run that was handed over."""

    def poll(self) -> Ended | None:
        """How it ended; None while it has not."""
        ...

    def stop(self) -> None:
        """Ask it to stop."""
        ...

    def kill(self) -> None:
        """Make it stop."""
        ...


class Executor(Protocol):
    """A place where runs are trained."""

    @property
    def slots(self) -> int:
        """Runs side by side."""
        ...

    @property
    def threads(self) -> int:
        """Threads that each of them computes with."""
        ...

    def has_room(self) -> bool:
        """Whether one more run can be taken beside those under way."""
        ...

    def submit(self, folder: Path) -> Job:
        """Begin to train the run in a folder."""
        ...

    def close(self) -> None:
        """Nothing more will come, and no job is left."""
        ...


# --- processes


def spawn(program: Sequence[str], folder: Path, threads: int) -> subprocess.Popen[bytes]:
    """The process that trains a run: Python with the arguments `program`, then the folder and our process id."""
    environment = {"NPROC": str(threads), **os.environ}  # XLA's thread pools are of this size
    with (folder / LOG).open("ab") as log:
        # A session of its own: Ctrl-C reaches this process alone, which then stops the others in order.
        return subprocess.Popen(
            [sys.executable, *program, str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def ask(process: subprocess.Popen[bytes]) -> None:
    """Ask a run to stop. Not by SIGINT, which is ignored below shells and clusters that ignore it."""
    with suppress(ProcessLookupError):
        process.terminate()


@dataclass
class _ProcessJob:
    process: subprocess.Popen[bytes]

    def poll(self) -> Ended | None:
        code = self.process.poll()
        return None if code is None else Ended(code)

    def stop(self) -> None:
        ask(self.process)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Processes:
    """Processes of this machine."""

    program: Sequence[str]
    slots: int
    threads: int

    def has_room(self) -> bool:
        """Whether a run's share of memory is free."""
        return free_memory() >= BYTES_PER_RUN

    def submit(self, folder: Path) -> Job:
        """Begin to train the run in a folder."""
        return _ProcessJob(spawn(self.program, folder, self.threads))

    def close(self) -> None:
        """Nothing is kept open."""


def processes(program: Sequence[str], jobs: int, threads: int, pending: int) -> Processes:
    """As many side by side as asked for, or one for each core as far as memory allows."""
    cores = usable_cores()
    room = max(1, free_memory() // BYTES_PER_RUN)
    slots = max(1, min(jobs or min(cores // max(threads, 1), room), pending))
    return Processes(program, slots, threads or max(1, cores // slots))


def free_memory() -> int:
    """Bytes that new processes can have: of the machine, or of the container if that is less."""
    known = [_machine_memory(), _container_memory()]
    return min((amount for amount in known if amount is not None), default=1 << 62)


def _machine_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib: Mapping[str, str] = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(kib["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in kib else None


def _container_memory() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        most, used = (folder / name for name in ("memory.max", "memory.current"))
        return max(0, int(most.read_text()) - int(used.read_text()))
    except (OSError, ValueError):
        return None  # no such limit


# --- clusters


@dataclass(frozen=True)
class Work:
    """What a cluster is given to do: train one run in a process, and tell how it ended."""

    program: tuple[str, ...]
    folder: Path
    threads: int

    def __call__(self) -> Ended:
        """Called on some machine of the cluster."""
        if not self.folder.is_dir():
            where = f"{self.folder} does not exist on {socket.gethostname()}"
            return Ended(1, f"{where}. Give an --out on a file system that all machines share.")
        process = spawn(self.program, self.folder, self.threads)
        try:
            return Ended(_wait(process))
        finally:
            # Only a cancelled job gets here before its process has ended.
            _end(process)

    def checkpoint(self) -> Any:
        """What Slurm queues again when the job reaches its time limit or makes room for another."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def perform(work: Work) -> Ended:
    """The function that Ray calls."""
    return work()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to stop, and wait until it has saved its chunk, which may take long; a second signal ends it."""
    ask(process)
    try:
        _wait(process)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The code of a process, waited for in short turns: Ray's interrupt of a job does not end a system call."""
    while process.poll() is None:
        time.sleep(0.1)
    return process.returncode


@dataclass
class _RayJob:
    ray: Any
    task: Any

    def poll(self) -> Ended | None:
        ready, _ = self.ray.wait([self.task], timeout=0)
        if not ready:
            return None
        try:
            return self.ray.get(self.task)
        except self.ray.exceptions.RayError as error:
            return Ended(1, f"Ray lost the run: {_first_line(error)}")

    def stop(self) -> None:
        self.ray.cancel(self.task)

    def kill(self) -> None:
        self.ray.cancel(self.task, force=True)


def _join(ray: Any, address: str, tries: int = 2) -> None:
    """Enter a cluster, or begin one. On a busy machine that can take longer than the half minute Ray allows itself."""
    where = f"no Ray cluster at {address}" if address else "Ray did not start"
    advice = "Begin one with `ray start --head`, then try again."
    try:
        _knock(address)
    except (OSError, ValueError) as error:
        raise RunError(f"{where}: {_first_line(error)}. {advice}") from error
    for left in reversed(range(tries)):
        try:
            ray.init(address=address or None, log_to_driver=False, logging_level="warning")
            return
        except Exception as error:  # Ray raises bare ones here
            ray.shutdown()
            if not left:
                raise RunError(f"{where}: {_first_line(error)} {advice}") from error


def _knock(address: str, seconds: float = 5.0) -> None:
    """See whether anything listens at host:port; Ray itself goes on trying for minutes."""
    if address in ("", "auto", "local"):
        return
    parts = urlsplit(address if "//" in address else f"//{address}")
    if not parts.hostname or not parts.port:
        raise ValueError("an address is HOST:PORT")
    socket.create_connection((parts.hostname, parts.port), seconds).close()


class Ray:
    """A Ray cluster: the one at `address`, the one that runs on this machine, or a new one that ends with the study."""

    def __init__(self, program: Sequence[str], jobs: int, threads: int, pending: int, address: str = "") -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray = _needed("ray", "ray")
        _join(self._ray, address)
        self._program = tuple(program)
        self.threads = threads or 1
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self.slots = max(1, min(jobs or cores // self.threads, pending))
        # A run that died with its machine is the study's business: it is listed, and can be tried again.
        self._train = self._ray.remote(num_cpus=self.threads, max_retries=0)(perform)

    def has_room(self) -> bool:
        """Ray itself keeps account of what its machines bear."""
        return True

    def submit(self, folder: Path) -> Job:
        """Begin to train the run in a folder."""
        return _RayJob(self._ray, self._train.remote(Work(self._program, folder.resolve(), self.threads)))

    def close(self) -> None:
        """Leave the cluster; one that was begun here ends."""
        self._ray.shutdown()


@dataclass
class _SubmititJob:
    job: Any
    stopped: bool = False

    def poll(self) -> Ended | None:
        if not self.job.done():
            return None
        if self.stopped:
            return Ended(-signal.SIGINT)  # submitit would wait long for a result that does not come
        if self.job.exception() is None:
            return self.job.result()
        return Ended(1, f"the job did not finish ({self.job.state}); what it said is in {self.job.paths.folder}")

    def stop(self) -> None:
        self.stopped = True
        self.job.cancel(check=False)

    def kill(self) -> None:
        self.stop()


class Slurm:
    """Slurm, through submitit; its files are in OUT/.slurm.

    `options` are its parameters, and `cluster`: "local" starts the same jobs on this machine.
    """

    def __init__(
        self,
        program: Sequence[str],
        jobs: int,
        threads: int,
        pending: int,
        out: Path,
        options: Mapping[str, Any],
    ) -> None:
        submitit = _needed("submitit", "slurm")
        self._program = tuple(program)
        self.threads = threads or 1
        self.slots = max(1, min(jobs or pending, pending))
        try:
            given = {"cluster": "slurm", "name": "rookery", "timeout_min": _NO_LIMIT, "cpus_per_task": self.threads}
            given |= options
            folder = out.resolve() / ".slurm" / "%j"
            self._executor = submitit.AutoExecutor(folder=folder, cluster=given.pop("cluster"))
            self._executor.update_parameters(**given)
        except (RuntimeError, NameError, AssertionError, ValueError) as error:
            raise ConfigError(f"--executor slurm: {error}") from error

    def has_room(self) -> bool:
        """What waits, waits in Slurm's queue."""
        return True

    def submit(self, folder: Path) -> Job:
        """Begin to train the run in a folder."""
        return _SubmititJob(self._executor.submit(Work(self._program, folder.resolve(), self.threads)))

    def close(self) -> None:
        """Nothing is kept open."""


def _needed(module: str, extra: str) -> Any:
    """An optional package, or an error that says how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"--executor {extra} needs an extra: pip install 'rookery[{extra}]'.") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
