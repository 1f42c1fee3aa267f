"""KL of a Gaussian against its closed form and against draws; values of any size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.ops.latent import kl_to_normal, sample, symlog


def test_kl_by_hand() -> None:
    assert float(kl_to_normal(jnp.zeros(3), jnp.zeros(3))) == 0.0
    # Mean 2, variance 1: 2^2 / 2. Mean 0, variance e: (e - 1 - 1) / 2.
    np.testing.assert_allclose(kl_to_normal(jnp.array([2.0, 0.0]), jnp.array([0.0, 1.0])), 2.0 + (np.e - 2.0) / 2.0)


def test_kl_is_the_mean_log_ratio_of_draws() -> None:
    mean, log_var = jnp.array([0.5, -1.0]), jnp.array([-0.7, 0.4])
    x = sample(jax.random.PRNGKey(0), jnp.tile(mean, (40_000, 1)), jnp.tile(log_var, (40_000, 1)))
    log_ratio = -0.5 * (log_var + jnp.square(x - mean) / jnp.exp(log_var)) + 0.5 * jnp.square(x)
    np.testing.assert_allclose(jnp.mean(jnp.sum(log_ratio, axis=1)), kl_to_normal(mean, log_var), atol=0.02)


def test_symlog_keeps_signs_and_order() -> None:
    x = jnp.array([-200.0, -1.0, 0.0, 1.0, 200.0])
    np.testing.assert_allclose(symlog(x), [-np.log(201), -np.log(2), 0.0, np.log(2), np.log(201)], rtol=1e-6)
