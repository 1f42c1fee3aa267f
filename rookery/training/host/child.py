"""Processes of a run at the other end of two pipes. They die with their parent, and their death is found at once.

A command is one byte from a pipe. It is answered by one byte, or by `FAILED` and a traceback. A closed pipe ends the
process. Waiting never spins.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from rookery.core.errors import RookeryError, TrainingError

LOOK = signal.SIGUSR1  # answered by the Python stacks of all threads, also while C code runs
DONE, FAILED, REFUSED = b"d", b"f", b"c"
START = 300.0  # seconds that a process may take to import its task and open its environments
LEAVE = 2  # seconds that it may take to close them

# Runs before anything is imported, so that a process never outlives a parent that dies early.
_BOOTSTRAP = """
import os, sys, ctypes
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != {parent}:
    os._exit(1)
sys.path[:] = {path!r}
from {module} import main
main(*{fds!r})
"""


class ChildError(TrainingError):
    """A process that raised, died or hung."""


class Child:
    """One process and its pipes. Its module has a `main(commands, replies, memory, faults)` of file descriptors."""

    def __init__(self, module: str, job: Any, memory: IO[bytes], name: str, environment: Mapping[str, str]) -> None:
        told, self._commands = os.pipe()
        self.replies, answers = os.pipe()
        self._faults = nameless()
        fds = (told, answers, memory.fileno(), self._faults.fileno())
        code = _BOOTSTRAP.format(parent=os.getpid(), path=sys.path, module=module, fds=fds)
        variables = {**os.environ, **environment}
        self._process = subprocess.Popen([sys.executable, "-c", code], pass_fds=fds, env=variables, process_group=0)
        os.close(told)
        os.close(answers)
        self._name = f"{name} (process {self.pid})"
        data = pickle.dumps(job)
        with suppress(BrokenPipeError):  # found when the answer is read
            os.write(self._commands, len(data).to_bytes(8, "little") + data)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: bytes) -> None:
        """Send a command; if the process is gone, the end of its answers says so."""
        with suppress(BrokenPipeError):
            os.write(self._commands, command)

    def answer(self) -> None:
        """Take the answer that is there; raises `ChildError` if it is not a good one."""
        said = os.read(self.replies, 1)
        if said == DONE:
            return
        text = said[1:]
        while part := os.read(self.replies, 65536):
            text += part
        if said == REFUSED:
            raise TrainingError(text.decode(errors="replace"))
        raise ChildError(f"{self._name} {'raised:' if said == FAILED else self._ending()}\n{text.decode()}".strip())

    def receive(self) -> Any:
        """The object that follows an answer."""
        return pickle.loads(read(self.replies, int.from_bytes(read(self.replies, 8), "little")))

    def hung(self, seconds: float) -> ChildError:
        """What to say of a process that did not answer."""
        stack = self._look()
        return ChildError(
            f"{self._name} did not answer for {seconds:g} seconds. If its environments may take that long, raise "
            "--workers.timeout." + (f" It is here:\n{stack}" if stack else "")
        )

    def _look(self) -> str:
        """Where the process is now, if it says so soon."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, LOOK)
        before, now = "", ""
        for _ in range(20):
            before, now = now, self._stack()
            if now and now == before:  # it has been written to its end
                break
            time.sleep(0.05)
        return now

    def _stack(self) -> str:
        """What the process has written of its Python stack. Its file's position, where it writes, is not moved."""
        return os.pread(self._faults.fileno(), 1 << 20, 0).decode(errors="replace").strip()

    def _ending(self) -> str:
        """How the process ended, with the Python stack at a crash if there is one."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=LEAVE)
        code = self._process.returncode
        stack = self._stack()
        how = "closed its pipe" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return f"{how}:\n{stack}" if stack else f"{how}."

    def leave(self) -> None:
        """Tell the process to end."""
        os.close(self._commands)

    def kill(self) -> None:
        """End the process now, with all that it started."""
        self._end()
        self.leave()
        self.join()

    def join(self) -> None:
        """Wait until the process has ended, but not for long."""
        try:
            self._process.wait(timeout=LEAVE)
        except subprocess.TimeoutExpired:
            self._end()
            self._process.wait()
        os.close(self.replies)
        self._faults.close()

    def _end(self) -> None:
        """Kill the process's group: environments may have started servers of games."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def answers(
    children: Sequence[Child],
    seconds: float,
    moved: Callable[[int], bool] = lambda _: False,
    *,
    all_of_them: bool = True,
) -> dict[int, ChildError]:
    """Wait for an answer of every child (or until one has failed); returns what is wrong with those that failed.

    One that neither answers for so many seconds nor has `moved` since it was last asked hangs.
    """
    failed: dict[int, ChildError] = {}
    waiting = {child.replies: index for index, child in enumerate(children)}
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for pipe in waiting:
        poll.register(pipe, select.POLLIN)
    while waiting and (all_of_them or not failed):
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            still = [index for index in waiting.values() if not moved(index)]
            if still:
                return failed | {index: children[index].hung(seconds) for index in still}
            deadline = time.monotonic() + seconds
        for pipe, _ in ready:
            poll.unregister(pipe)
            index = waiting.pop(pipe)
            try:
                children[index].answer()
            except ChildError as error:
                failed[index] = error
    return failed


def memory_file(size: int) -> Any:
    """A file without a name, in memory where the system can do that: nothing is left behind, whatever happens."""
    in_memory = sys.platform == "linux"
    file: Any = os.fdopen(os.memfd_create("rookery"), "r+b", buffering=0) if in_memory else nameless()
    file.truncate(size)
    return file


def nameless() -> Any:
    """A temporary file that no folder lists."""
    return tempfile.TemporaryFile()


# --- in the process


def guard(serve: Callable[[int, int, int], None], commands: int, replies: int, memory: int, faults: int) -> None:
    """Serve commands; whatever is raised is answered, and ends the process."""
    # The training process decides what a signal to all of its group means: it finishes a chunk first. SIG_IGN would be
    # inherited by the programs that environments start, which are ended by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    faulthandler.enable(file=faults)
    faulthandler.register(LOOK, file=faults)
    try:
        with os.fdopen(commands, "rb", buffering=0) as told:
            serve(told.fileno(), replies, memory)
    except RookeryError as error:
        write(replies, REFUSED + str(error).encode())
        os._exit(1)
    except BaseException:
        write(replies, FAILED + traceback.format_exc().encode())
        os._exit(1)


def read_job(commands: int) -> Any:
    """What the process was told at its start."""
    return pickle.loads(read(commands, int.from_bytes(read(commands, 8), "little")))


def reply(replies: int, thing: Any) -> None:
    """Answer a command with an object."""
    data = pickle.dumps(thing)
    write(replies, DONE + len(data).to_bytes(8, "little") + data)


def read(pipe: int, size: int) -> bytes:
    """So many bytes; without a writer at the other end, the process ends."""
    parts = []
    while size:
        part = os.read(pipe, size)
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write(pipe: int, data: bytes) -> None:
    """All of the bytes."""
    while data:
        data = data[os.write(pipe, data) :]
