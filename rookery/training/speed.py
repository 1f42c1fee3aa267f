"""How fast a run would train here, found out by training it for a moment."""

from __future__ import annotations

import time
from contextlib import closing

import jax
import numpy as np

from rookery.training.compiled.compiler import use_compilation_cache
from rookery.training.config import RunConfig
from rookery.training.engine import open_engine


def steps_per_second(config: RunConfig, seconds: float) -> float:
    """Steps per second, all members together, over at least `seconds`; nothing is written.

    The program is the run's own, so the run will find it compiled.
    """
    use_compilation_cache()
    with closing(open_engine(config)) as engine:
        # The first chunk is not timed: a replay store may have to fill before the first gradient step.
        state, report = engine.chunk(engine.init())
        before, start = _steps(report.steps), time.perf_counter()
        while True:
            state, report = engine.chunk(state)
            taken, passed = _steps(report.steps) - before, time.perf_counter() - start
            if passed >= seconds:
                return taken / passed


def _steps(members: jax.Array | np.ndarray) -> int:
    return int(np.asarray(members, np.int64).sum())
