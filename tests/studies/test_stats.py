"""Statistics: against rliable on the same data, and by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rliable import library, metrics

from rookery.core import stats as core_stats
from rookery.studies import stats

RNG = np.random.default_rng(7)
SCORES = RNG.normal(0.6, 0.4, size=(10, 4))  # [run, task], as rliable has it
OTHERS = RNG.normal(0.4, 0.5, size=(8, 4))
REPS = 4000


def strata(scores: np.ndarray) -> list[np.ndarray]:
    return list(scores.T)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (stats.iqm, metrics.aggregate_iqm),
        (stats.mean, metrics.aggregate_mean),
        (stats.optimality_gap, metrics.aggregate_optimality_gap),
    ],
)
def test_aggregates_agree_with_rliable(ours: Any, theirs: Any) -> None:
    estimate = stats.aggregate(strata(SCORES), ours, REPS)
    points, intervals = library.get_interval_estimates(
        {"a": SCORES}, lambda scores: np.array([theirs(scores)]), reps=REPS
    )
    assert float(estimate.value) == pytest.approx(points["a"][0], abs=1e-12)
    # Both draw at random: the ends agree to a few per cent of the interval's width.
    width = float(estimate.high - estimate.low)
    assert [estimate.low, estimate.high] == pytest.approx(intervals["a"][:, 0], abs=0.08 * width)


@pytest.mark.parametrize("runs", [3, 4, 5, 7, 8, 10])
def test_iqm_agrees_with_rliable_for_any_number_of_runs(runs: int) -> None:
    scores = np.random.default_rng(runs).normal(size=(runs, 3))
    assert stats.aggregate(strata(scores), stats.iqm, 10).value == pytest.approx(metrics.aggregate_iqm(scores))


def test_improvement_agrees_with_rliable() -> None:
    ours, theirs = np.round(SCORES, 1), np.round(OTHERS, 1)  # with ties
    estimate = stats.improvement(strata(ours), strata(theirs), REPS)
    points, intervals = library.get_interval_estimates(
        {"a": (ours, theirs)}, metrics.probability_of_improvement, reps=500
    )
    assert float(estimate.value) == pytest.approx(float(np.squeeze(points["a"])), abs=1e-12)
    width = float(estimate.high - estimate.low)
    assert [estimate.low, estimate.high] == pytest.approx(np.ravel(intervals["a"]), abs=0.12 * width)


def test_profile_agrees_with_rliable() -> None:
    thresholds = np.linspace(-0.5, 1.5, 21)
    estimate = stats.performance_profile(strata(SCORES), thresholds, REPS)
    points, intervals = library.create_performance_profile({"a": SCORES}, thresholds, reps=2000)
    np.testing.assert_allclose(estimate.value, points["a"], atol=1e-12)
    np.testing.assert_allclose([estimate.low, estimate.high], intervals["a"], atol=0.051)  # two runs of 40


def test_curves_are_aggregated_point_by_point() -> None:
    curves = RNG.normal(size=(6, 11))
    estimate = stats.aggregate([curves], stats.iqm, 50)
    expected = [stats.aggregate([curves[:, i]], stats.iqm, 50) for i in range(11)]
    np.testing.assert_allclose(estimate.value, [e.value for e in expected])
    np.testing.assert_allclose(estimate.low, [e.low for e in expected])


def test_draws_stay_within_their_task() -> None:
    estimate = stats.aggregate([np.zeros(5), np.ones(5)], stats.mean, 200)
    assert estimate.floats() == (0.5, 0.5, 0.5)


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stats.aggregate([SCORES[:, 0]], stats.iqm, 300).floats()
    monkeypatch.setattr(core_stats, "_BLOCK", 100)
    assert stats.aggregate([SCORES[:, 0]], stats.iqm, 300).floats() == whole


def test_steps_to_by_hand() -> None:
    steps, scores = np.array([0.0, 100.0, 200.0]), np.array([0.0, 0.4, 0.8])
    assert stats.steps_to(steps, scores, 0.6) == pytest.approx(150)
    assert stats.steps_to(steps, scores, 0.0) == 0
    assert stats.steps_to(steps, scores, 0.9) == math.inf


def test_normalise() -> None:
    np.testing.assert_allclose(stats.normalise(np.array([-10.0, 0.0, 10.0]), -10, 10), [0, 0.5, 1])
