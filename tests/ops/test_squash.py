"""Squashed Gaussians against numpy's change of variables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from rookery.ops import squash

KEY = jax.random.PRNGKey(0)


def test_density_by_the_change_of_variables() -> None:
    mean, raw = jnp.array([0.3, -1.0]), jnp.array([0.1, -0.4])
    u, log_density = squash.sample(KEY, jnp.broadcast_to(mean, (500, 2)), jnp.broadcast_to(raw, (500, 2)))
    low, high = squash.LOG_STD_MIN, squash.LOG_STD_MAX
    std = np.exp(low + 0.5 * (high - low) * (np.tanh(np.asarray(raw, float)) + 1))
    x = np.arctanh(np.asarray(u, float).clip(-1 + 1e-7, 1 - 1e-7))
    expected = stats.norm.logpdf(x, mean, std) - np.log(1 - np.asarray(u, float) ** 2 + 1e-12)
    inside = np.abs(u) < 0.999
    np.testing.assert_allclose(np.asarray(log_density)[inside], expected[inside], atol=2e-2)
    assert inside.mean() > 0.5 and np.all(np.abs(u) <= 1)


def test_large_outputs_stay_finite() -> None:
    def total(mean: jax.Array, log_std: jax.Array) -> jax.Array:
        u, log_density = squash.sample(KEY, mean, log_std)
        return jnp.sum(u + log_density)

    for size in (-100.0, 100.0):
        value, slopes = jax.value_and_grad(total, argnums=(0, 1))(jnp.full(4, size), jnp.full(4, size))
        assert np.isfinite(value) and all(np.isfinite(s).all() for s in slopes)
