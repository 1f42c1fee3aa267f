"""Noise on continuous actions: sizes, bounds, and the statistics of an Ornstein-Uhlenbeck process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.core.errors import ConfigError
from rookery.ops import noise
from rookery.ops.noise import Noise

LOW, HIGH = jnp.array([-1.0, 0.0, -4.0]), jnp.array([1.0, 0.5, 4.0])
KEY = jax.random.PRNGKey(0)


def walk(x: jax.Array, steps: int, **settings: float) -> np.ndarray:
    """[steps, *x] of a process that starts at x."""

    def one(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = noise.ornstein_uhlenbeck(key, x, **settings)
        return x, x

    return np.asarray(jax.lax.scan(one, x, jax.random.split(KEY, steps))[1])


def test_gaussian() -> None:
    wide = jnp.full(3, 100.0)
    action = jnp.broadcast_to(jnp.array([0.1, -0.2, 3.0]), (20_000, 3))
    noisy = np.asarray(noise.gaussian(KEY, action, jnp.array([0.1, 1.0, 2.0]), -wide, wide))
    for column, mean, std in zip(noisy.T, (0.1, -0.2, 3.0), (0.1, 1.0, 2.0), strict=True):
        assert stats.kstest(column, stats.norm(mean, std).cdf).pvalue > 1e-3
    assert np.all(np.abs(np.corrcoef(noisy.T) - np.eye(3)) < 0.05)


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_each_dimension_keeps_its_own_bounds(kind: str) -> None:
    """Bounds are reached, never crossed."""
    config = Noise(kind=kind, scale=3.0)  # pyright: ignore[reportArgumentType]  # a parameter of the test
    action = jnp.broadcast_to((LOW + HIGH) / 2, (500, 3))
    first = jnp.ones(500, bool)
    _, noisy = config.add(KEY, action, config.carry(500, dim=3), first, LOW, HIGH)
    np.testing.assert_array_equal(np.min(noisy, axis=0), LOW)
    np.testing.assert_array_equal(np.max(noisy, axis=0), HIGH)


def test_smoothing_is_limited() -> None:
    """Most of the noise is beyond the limit; the last dimension's action is at its upper bound."""
    action = jnp.broadcast_to(jnp.array([0.0, 0.25, 4.0]), (2_000, 3))
    moved = np.asarray(noise.smoothed(KEY, action, 1.0, 0.1, LOW, HIGH) - action)
    np.testing.assert_allclose(moved.min(axis=0), [-0.1] * 3, atol=1e-6)
    np.testing.assert_allclose(moved.max(axis=0), [0.1, 0.1, 0.0], atol=1e-6)
    assert np.mean(np.abs(moved[:, 0]) > 0.099) == pytest.approx(2 * stats.norm.sf(0.1), abs=0.05)


@pytest.mark.parametrize(("theta", "dt", "sigma"), [(0.15, 1.0, 0.2), (0.15, 0.5, 0.3), (1.2, 1.0, 1.0)])
def test_stationary_variance_and_autocorrelation_of_ou(theta: float, dt: float, sigma: float) -> None:
    """Of an autoregression x' = a x + s n: variance s^2 / (1 - a^2), autocorrelation a. 4,000 processes, 200 steps."""
    x = walk(jnp.zeros((4_000, 1)), 200, theta=theta, dt=dt, sigma=sigma)[..., 0]
    a, s = 1 - theta * dt, sigma * np.sqrt(dt)
    assert x[-1].var() == pytest.approx(s**2 / (1 - a**2), rel=5 * np.sqrt(2 / 4_000))
    assert x[-1].var() == pytest.approx(sigma**2 / (theta * (2 - theta * dt)), rel=5 * np.sqrt(2 / 4_000))
    assert np.corrcoef(x[-2], x[-1])[0, 1] == pytest.approx(a, abs=5 / np.sqrt(4_000))
    assert abs(x[-1].mean()) < 5 * x[-1].std() / np.sqrt(4_000)
    assert x[0].std() == pytest.approx(s, rel=0.06)


def test_fine_steps_approach_the_continuous_process() -> None:
    """Variance sigma^2 / (2 theta); after a time of 1 / theta a share of 1/e is left of where it began."""
    x = walk(jnp.full((4_000, 1), 5.0), 1_000, theta=1.0, dt=0.01, sigma=1.0)[..., 0]
    assert x[99].mean() == pytest.approx(5 / np.e, rel=0.02)
    assert x[-1].var() == pytest.approx(0.5, rel=0.12)


def test_ou_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """x = 2, theta 0.5, dt 0.25, sigma 0.4, n = 1: 2 - 0.25 + 0.4 * 0.5 = 1.95."""
    monkeypatch.setattr(jax.random, "normal", lambda key, shape: jnp.ones(shape))
    assert noise.ornstein_uhlenbeck(KEY, jnp.array([2.0]), 0.4, 0.5, 0.25)[0] == pytest.approx(1.95)


def test_a_process_starts_anew_with_each_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment 0 begins an episode, environment 1 goes on; two agents, noise in units of half the range."""
    monkeypatch.setattr(jax.random, "normal", lambda key, shape: jnp.ones(shape))
    config, carry = Noise("ou", scale=0.1, theta=0.5), jnp.full((2, 2, 3), 0.4)
    action, first = jnp.zeros((2, 2, 3)), jnp.array([True, False])[:, None]
    after, noisy = config.add(KEY, action, carry, first, LOW, HIGH)
    np.testing.assert_allclose(after[0], np.full((2, 3), 0.1), rtol=1e-6)
    np.testing.assert_allclose(after[1], np.full((2, 3), 0.3), rtol=1e-6)
    np.testing.assert_allclose(noisy[1], np.tile([0.3, 0.075, 1.2], (2, 1)), rtol=1e-6)


@pytest.mark.parametrize("kind", ["none", "gaussian"])
def test_without_a_process_nothing_is_carried(kind: str) -> None:
    config = Noise(kind=kind)  # pyright: ignore[reportArgumentType]  # a parameter of the test
    carry = config.carry(4, 2, dim=3)
    assert carry.shape == (4, 2, 0)
    action = jnp.zeros((4, 2, 3))
    after, noisy = config.add(KEY, action, carry, jnp.ones((4, 1), bool), LOW, HIGH)
    assert after.shape == (4, 2, 0) and bool(jnp.any(noisy != action)) == (kind == "gaussian")


@pytest.mark.parametrize(("config", "named"), [(Noise(dt=0), "dt"), (Noise(theta=3), "theta")])
def test_values_without_a_meaning_are_refused(config: Noise, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"algo\.noise\.{named}"):
        config.check()
    Noise().check()
