"""The memory that asynchronous learners share: weights and statistics, counters, and a lock around a gradient step."""

from __future__ import annotations

import fcntl
import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from rookery.training.asynchronous.program import LearnerProgram

_ALIGN = 64


class SharedMemory:
    """Views of a mapped file. All of them may be read or written under `lock` only, except `beats`.

    The lock is around a whole gradient step. Without one, two learners that step at the same time would lose one of
    the steps entirely, not single numbers of it: a step is a pure function that returns new arrays. It is held for a
    small part of the time that a rollout and its gradient take. The kernel frees it when its holder dies.
    """

    def __init__(self, file: int, program: LearnerProgram, learners: int) -> None:
        members, envs = program.host.members, program.host.envs
        arrays = [
            ((3,), np.int64),
            ((members,), np.uint32),
            ((learners,), np.int64),
            ((learners, members, envs), np.uint32),
        ]
        kept = [*jax.tree.leaves(program.states), *jax.tree.leaves(program.commons)]
        views = _views(file, [*arrays, *((x.shape, x.dtype) for x in kept)])
        self._file = file
        self._counters, self.steps, self.beats, self.begun, *rest = views
        count = len(jax.tree.leaves(program.states))
        self.states, self.commons = rest[:count], rest[count:]
        """Leaves of the members' states when learning began, and of what learners share now."""

    @staticmethod
    def nbytes(program: LearnerProgram, learners: int) -> int:
        """Bytes of such a memory, at least."""
        kept = jax.tree.leaves((program.states, program.commons))
        members, envs = program.host.members, program.host.envs
        fixed = 8 * 3 + 4 * members + 8 * learners + 4 * learners * members * envs
        arrays = sum(math.prod(x.shape) * x.dtype.itemsize for x in kept)
        return fixed + arrays + _ALIGN * (len(kept) + 5)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """No other process reads or writes meanwhile."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        return int(self._counters[0])

    def open(self, updates: int, more: int) -> None:
        """Let learners take `more` steps after so many."""
        self._counters[:] = updates, updates, updates + more

    def take(self) -> int | None:
        """The number of the next gradient step, for whoever asks; None if all are taken."""
        _, taken, end = self._counters.tolist()
        if taken == end:
            return None
        self._counters[1] = taken + 1
        return taken

    def stepped(self, common: Sequence[Any], steps: np.ndarray) -> None:
        """Keep what is shared after one more gradient step, and the environment steps of all learners."""
        copy(common, self.commons)
        self.steps[:] = steps
        self._counters[0] += 1


def copy(source: Sequence[Any], target: Sequence[np.ndarray]) -> None:
    """Arrays into arrays."""
    for x, y in zip(source, target, strict=True):
        np.copyto(y, np.asarray(x))


def _views(file: int, arrays: Sequence[tuple[tuple[int, ...], Any]]) -> list[np.ndarray]:
    raw, at, found = np.frombuffer(mmap.mmap(file, 0), np.uint8), 0, []
    for shape, dtype in arrays:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        found.append(raw[at : at + size].view(dtype).reshape(shape))
        at += -(-size // _ALIGN) * _ALIGN
    return found
