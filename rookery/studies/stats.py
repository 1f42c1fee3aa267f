"""Statistics of a few runs (Agarwal et al. 2021), besides the ones that all of Rookery shares (`rookery.core.stats`).

Scores come as strata: one array [run, ...] for each task.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from rookery.core.stats import RESAMPLES, Estimate, Strata, aggregate, iqm

__all__ = [
    "Estimate",
    "aggregate",
    "improvement",
    "iqm",
    "mean",
    "normalise",
    "optimality_gap",
    "performance_profile",
    "steps_to",
]


def mean(scores: Float[np.ndarray, "*rest run"]) -> Float[np.ndarray, "*rest"]:
    """Mean along the last axis."""
    return scores.mean(axis=-1)


def optimality_gap(scores: Float[np.ndarray, "*rest run"]) -> Float[np.ndarray, "*rest"]:
    """How far normalised scores fall short of 1 on average; what exceeds 1 makes up for nothing."""
    return 1.0 - np.minimum(scores, 1.0).mean(axis=-1)


def performance_profile(strata: Strata, thresholds: Float[np.ndarray, "tau"], resamples: int = RESAMPLES) -> Estimate:
    """Share of runs with a score above each threshold."""
    rng, runs = np.random.default_rng(0), sum(map(len, strata))
    above = [(scores[:, None] > thresholds).astype(float) for scores in strata]
    # A mean needs only how often each run was drawn: one product instead of every draw of every threshold.
    draws = [len(a) / runs * (_shares(rng, len(a), resamples) @ a) for a in above]
    value = np.concatenate(above).mean(axis=0)
    low, high = np.quantile(sum(draws), [0.025, 0.975], axis=0)
    return Estimate(value, np.asarray(low), np.asarray(high)) if max(map(len, strata)) > 1 else _alone(value)


def improvement(ours: Strata, theirs: Strata, resamples: int = RESAMPLES) -> Estimate:
    """Probability that a run of ours beats a run of theirs on the same task; ties count half (Mann-Whitney)."""
    rng = np.random.default_rng(0)
    values, draws = [], []
    for x, y in zip(ours, theirs, strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        shares = [_shares(rng, n, resamples) for n in wins.shape]
        values.append(wins.mean())
        draws.append(np.einsum("bi,ij,bj->b", shares[0], wins, shares[1], optimize=True))
    value = np.asarray(np.mean(values))
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    return Estimate(value, np.asarray(low), np.asarray(high)) if max(map(len, [*ours, *theirs])) > 1 else _alone(value)


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


def _alone(value: np.ndarray) -> Estimate:
    """Of single runs: no interval."""
    return Estimate(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
