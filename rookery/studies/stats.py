"""Statistics of a few runs (Agarwal et al. 2021). Scores come as strata: one array [run, ...] for each task.

Intervals are percentiles of the stratified bootstrap: runs are drawn again within each task. The draws are always the
same, so a report made twice is the same report.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Strata = Sequence[Float[np.ndarray, "run *rest"]]
_BLOCK = 4_000_000  # numbers that are resampled at a time: bounds memory whatever the number of runs


@dataclass(frozen=True)
class Estimate:
    """A statistic with its 95% interval; arrays where the statistic is one."""

    value: np.ndarray
    low: np.ndarray
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
    return ordered[..., cut : count - cut].mean(axis=-1)


def mean(scores: Float[np.ndarray, "*rest run"]) -> Float[np.ndarray, "*rest"]:
    """Mean along the last axis."""
    return scores.mean(axis=-1)


def optimality_gap(scores: Float[np.ndarray, "*rest run"]) -> Float[np.ndarray, "*rest"]:
    """How far normalised scores fall short of 1 on average; what exceeds 1 makes up for nothing."""
    return 1.0 - np.minimum(scores, 1.0).mean(axis=-1)


def aggregate(strata: Strata, statistic: Callable[[np.ndarray], np.ndarray], resamples: int = 2000) -> Estimate:
    """A statistic over all runs of all tasks, [run, *rest] -> [*rest], with its interval."""
    together = np.moveaxis(np.concatenate(list(strata)), 0, -1)
    # [..., draw, run] -> [..., draw]
    drawn = [statistic(together[..., picks]) for picks in _draws(strata, resamples, together.size)]
    low, high = np.quantile(np.concatenate(drawn, axis=-1), [0.025, 0.975], axis=-1)
    return Estimate(np.asarray(statistic(together)), low, high)


def performance_profile(strata: Strata, thresholds: Float[np.ndarray, "tau"], resamples: int = 2000) -> Estimate:
    """Share of runs with a score above each threshold."""
    rng, runs = np.random.default_rng(0), sum(map(len, strata))
    above = [(scores[:, None] > thresholds).astype(float) for scores in strata]
    # A mean needs only how often each run was drawn: one product instead of every draw of every threshold.
    draws = [len(a) / runs * (_shares(rng, len(a), resamples) @ a) for a in above]
    low, high = np.quantile(sum(draws), [0.025, 0.975], axis=0)
    return Estimate(np.concatenate(above).mean(axis=0), low, high)


def improvement(ours: Strata, theirs: Strata, resamples: int = 2000) -> Estimate:
    """Probability that a run of ours beats a run of theirs on the same task; ties count half (Mann-Whitney)."""
    rng = np.random.default_rng(0)
    values, draws = [], []
    for x, y in zip(ours, theirs, strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        shares = [_shares(rng, n, resamples) for n in wins.shape]
        values.append(wins.mean())
        draws.append(np.einsum("bi,ij,bj->b", shares[0], wins, shares[1], optimize=True))
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    return Estimate(np.asarray(np.mean(values)), low, high)


def steps_to(steps: Float[np.ndarray, "point"], scores: Float[np.ndarray, "point"], threshold: float) -> float:
    """Steps at which a curve first reaches a threshold, straight between evaluations; inf if it never does."""
    reached = np.flatnonzero(scores >= threshold)
    if not len(reached):
        return math.inf
    i = int(reached[0])
    if i == 0:
        return float(steps[0])
    share = (threshold - scores[i - 1]) / (scores[i] - scores[i - 1])
    return float(steps[i - 1] + share * (steps[i] - steps[i - 1]))


def normalise(scores: np.ndarray, random: float, reference: float) -> np.ndarray:
    """0 at the random score, 1 at the reference score."""
    return (scores - random) / (reference - random)


def _shares(rng: np.random.Generator, runs: int, resamples: int) -> Float[np.ndarray, "draw run"]:
    """How often each run is drawn, as a share."""
    picks = rng.integers(runs, size=(resamples, runs)) + runs * np.arange(resamples)[:, None]
    return np.bincount(picks.ravel(), minlength=resamples * runs).reshape(resamples, runs) / runs


def _draws(strata: Strata, resamples: int, size: int) -> Iterator[Int[np.ndarray, "draw run"]]:
    """Indices into the runs of all tasks together, drawn within each task, some draws at a time."""
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, *(len(scores) for scores in strata)])
    at_once = max(1, min(resamples, _BLOCK // max(size, 1)))
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        yield np.concatenate([rng.integers(a, b, size=(count, b - a)) for a, b in itertools.pairwise(offsets)], axis=1)
