"""Where the time of one iteration goes: its pieces, timed while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.training.compiled.compiler import jit
from rookery.training.engine import Timing
from rookery.training.host.collector import Act, Collector
from rookery.training.host.program import HostProgram
from rookery.training.host.records import leaves_of
from rookery.training.host.steppers import Stepper

_LEAST = 3  # iterations after the one that compiles
_PIECES = ("environment", "policy", "update")


class Watch:
    """Adds up the seconds of calls."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def call(self, f: Callable[..., Any], *args: Any) -> Any:
        """What the function returns, timed until it is there."""
        wall, cpu = time.perf_counter(), time.process_time()
        found = jax.block_until_ready(f(*args))
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        return found


class _Timed:
    """A stepper under a watch."""

    def __init__(self, stepper: Stepper, watch: Watch) -> None:
        self.block, self.rows, self.restarts = stepper.block, stepper.rows, 0
        self._stepper, self._watch, self.close = stepper, watch, stepper.close

    def reset(self, seeds: np.ndarray) -> None:
        self._watch.call(self._stepper.reset, seeds)

    def send(self, action: np.ndarray, seeds: np.ndarray) -> None:
        self._watch.call(self._stepper.send, action, seeds)

    def wait(self) -> np.ndarray | None:
        return self._watch.call(self._stepper.wait)


def time_iterations(
    program: HostProgram, act: Act, learn: Callable[..., Any], open_envs: Callable[[], Stepper], seconds: float
) -> list[Timing]:
    """Best times of iterations of a run that is thrown away: the whole, then environment, policy and update.

    Seconds of CPU are those of this process.
    """
    watches = {name: Watch() for name in _PIECES}
    collector = Collector(program, [_Timed(open_envs(), watches["environment"]) for _ in range(program.halves)])
    try:
        state = jit(program.init, once=True)()
        # A Q learner waits until its store is full enough; what is measured is the time after that.
        state = replace(state, iteration=jnp.int32(program.config.algo.warmup()))
        leaves = leaves_of(state.members.algo)
        now = leaves, program.shared(state), program.acting(state), collector.begin()
        del state, leaves

        def timed_act(*args: Any) -> Any:
            return watches["policy"].call(act, *args)

        def iterate() -> None:
            nonlocal now
            leaves, shared, acting, progress = now
            acting, rows = collector.collect(timed_act, leaves, shared, acting)
            *rest, _ = watches["update"].call(learn, leaves, shared, acting, progress, rows)
            now = (*rest,)

        return _best(iterate, watches, seconds)
    finally:
        collector.close()


def _best(iterate: Callable[[], None], watches: dict[str, Watch], seconds: float) -> list[Timing]:
    """The best time of each piece, over iterations for so many seconds."""
    found: dict[str, list[tuple[float, float]]] = {"whole": [], **{name: [] for name in watches}}
    end = float("inf")
    while len(found["whole"]) <= _LEAST or time.perf_counter() < end:
        for watch in watches.values():
            watch.wall = watch.cpu = 0.0
        whole = Watch()
        whole.call(iterate)
        for name, watch in {"whole": whole, **watches}.items():
            found[name].append((watch.wall, watch.cpu))
        end = min(end, time.perf_counter() + seconds)
    return [Timing(name, *map(min, zip(*times[1:], strict=True))) for name, times in found.items()]
