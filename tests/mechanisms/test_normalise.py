"""Running statistics against numpy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.mechanisms import normalise


def test_before_anything_was_seen_values_pass_through() -> None:
    x = jnp.array([3.0, -2.0])
    np.testing.assert_array_equal(normalise.normalise(normalise.fresh(), x), x)
    np.testing.assert_array_equal(normalise.denormalise(normalise.fresh(), x), x)


@pytest.mark.parametrize("memory", [0.5, 0.99, 0.99999])
def test_debiased_moments_equal_a_weighted_mean(memory: float) -> None:
    """Batch k of n counts (1 - m) m^(n - k), divided by the sum of all these weights."""
    rng = np.random.default_rng(0)
    batches = [rng.normal(5, 3, size=(4, 6)) for _ in range(5)]
    masks = [rng.random((4, 6)) < 0.6 for _ in range(5)]
    s = normalise.fresh()
    for x, where in zip(batches, masks, strict=True):
        hidden = np.where(where, x, np.inf)  # what is masked may be anything
        s = normalise.track(s, jnp.asarray(hidden, jnp.float32), jnp.asarray(where), memory)
    weights = np.array([memory ** (4 - k) for k in range(5)])
    weights /= weights.sum()
    mean = sum(w * x[m].mean() for w, x, m in zip(weights, batches, masks, strict=True))
    square = sum(w * (x[m] ** 2).mean() for w, x, m in zip(weights, batches, masks, strict=True))
    have = normalise.moments(s)
    # With memory near 1 both sums are small differences of float32: hence the tolerance.
    tolerance = 1e-4 if memory < 0.999 else 2e-2
    np.testing.assert_allclose(have, (mean, np.sqrt(square - mean**2)), rtol=tolerance)


def test_a_batch_without_entries_changes_nothing() -> None:
    s = normalise.track(normalise.fresh(), jnp.array([1.0, 5.0]), jnp.array([True, True]), 0.9)
    after = normalise.track(s, jnp.array([100.0, 200.0]), jnp.array([False, False]), 0.9)
    np.testing.assert_array_equal((s.mean, s.square, s.weight), (after.mean, after.square, after.weight))


def test_normalised_data_has_mean_0_and_deviation_1_and_comes_back() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(-40, 7, size=1000), jnp.float32)
    s = normalise.track(normalise.fresh(), x, jnp.ones(1000, bool), 0.99)
    y = normalise.normalise(s, x)
    assert abs(float(y.mean())) < 1e-3 and abs(float(y.std()) - 1) < 1e-3
    np.testing.assert_allclose(normalise.denormalise(s, y), x, rtol=1e-4)


def test_values_without_spread_do_not_explode() -> None:
    s = normalise.track(normalise.fresh(), jnp.full(10, 3.0), jnp.ones(10, bool), 0.99)
    assert float(jnp.abs(normalise.normalise(s, jnp.array([3.5]))[0])) <= 5.0 + 1e-3
