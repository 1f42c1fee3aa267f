"""The one definition of a score and its interval: live output, `show`, `eval`, `compare` and reports all use it.

Intervals are percentiles of the stratified bootstrap (Agarwal et al. 2021): runs are drawn again within each task. The
draws are always the same, so the same scores always have the same interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

INTERVAL = "95% bootstrap interval of the IQM over seeds"
"""What brackets after a score mean, wherever they are printed."""
RESAMPLES = 2000
_BLOCK = 4_000_000  # numbers that are resampled at a time: bounds memory whatever the number of runs

Strata = Sequence[Float[np.ndarray, "run *rest"]]
"""Scores: one array [run, ...] for each task."""


@dataclass(frozen=True)
class Estimate:
    """A statistic with its 95% interval; arrays where the statistic is one."""

    value: np.ndarray
    low: np.ndarray
    """NaN where there is no interval: no task has two runs."""
    high: np.ndarray

    def floats(self) -> tuple[float, float, float]:
        """Value, low and high of a scalar statistic."""
        return float(self.value), float(self.low), float(self.high)


def iqm(scores: Float[np.ndarray, "*rest run"]) -> Float[np.ndarray, "*rest"]:
    """Mean of the middle half along the last axis."""
    count = scores.shape[-1]
    cut = count // 4
    # Sorting is vectorised; np.partition, which would do, takes several times as long on short rows.
    ordered = np.sort(scores, axis=-1) if cut else scores
    return np.asarray(ordered[..., cut : count - cut].mean(axis=-1))


def aggregate(strata: Strata, statistic: Callable[[np.ndarray], np.ndarray], resamples: int = RESAMPLES) -> Estimate:
    """A statistic over all runs of all tasks, [run, *rest] -> [*rest], with its interval."""
    together = np.moveaxis(np.concatenate(list(strata)), 0, -1)
    value = np.asarray(statistic(together))
    if max(map(len, strata)) < 2:  # drawing a single run again gives the same run: an interval of width 0 would lie
        return Estimate(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
    # [..., draw, run] -> [..., draw]
    drawn = [statistic(together[..., picks]) for picks in _draws(strata, resamples, together.size)]
    low, high = np.quantile(np.concatenate(drawn, axis=-1), [0.025, 0.975], axis=-1)
    return Estimate(value, np.asarray(low), np.asarray(high))


def over_seeds(scores: Sequence[float] | np.ndarray) -> Estimate:
    """The IQM of one score per seed, with its interval (`INTERVAL`)."""
    return aggregate([np.asarray(scores, float)], iqm)


def show(estimate: Estimate) -> str:
    """For example "2.5 [1.2, 3.7]", or "2.5 [-]" for a single seed."""
    value, low, high = estimate.floats()
    return f"{value:.4g} [-]" if np.isnan(low) else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _draws(strata: Strata, resamples: int, size: int) -> Iterator[Int[np.ndarray, "draw run"]]:
    """Indices into the runs of all tasks together, drawn within each task, some draws at a time."""
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, *(len(scores) for scores in strata)])
    at_once = max(1, min(resamples, _BLOCK // max(size, 1)))
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        yield np.concatenate([rng.integers(a, b, size=(count, b - a)) for a, b in itertools.pairwise(offsets)], axis=1)
