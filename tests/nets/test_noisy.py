"""Learned noise on dense layers, and the second stream beside the head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.nets import noisy
from rookery.nets.agent import Net

KEY = jax.random.PRNGKey(0)


@pytest.mark.parametrize("weights", ["shared", "per_agent"])
def test_noise_is_factorised_and_scaled_by_the_inputs(weights: str) -> None:
    net = Net("mlp", width=6, layers=1, layers_after=1, weights=weights)  # pyright: ignore[reportArgumentType]
    params = net.init(KEY, 2, 9, 3, 1.0, aside=1)
    noise = noisy.noisy(params, 0.5)
    # Nine inputs: 0.5 / 3; then layers of six.
    assert np.all(np.asarray(noise.spread[0].weight) == np.float32(0.5 / 3)) and len(noise.spread) == 5
    assert np.allclose(noise.spread[-1].bias, 0.5 / 6**0.5)
    one, two = (noisy.drawn(noise, jax.random.PRNGKey(k)) for k in (1, 2))
    for a, b, mean, spread in zip(*(noisy._dense(p) for p in (one, two, params)), noise.spread, strict=True):
        assert a.noise is not None and b.noise is not None
        assert np.array_equal(a.weight, mean.weight) and not np.allclose(a.noise.into, b.noise.into)
        # What it adds is what weights with noise on each of them would.
        product = spread.weight * a.noise.into[..., :, None] * a.noise.out[..., None, :]
        x = jax.random.normal(KEY, (*a.noise.into.shape[:-1], 4, a.noise.into.shape[-1]))
        expected = x @ (mean.weight + product) + (mean.bias + spread.bias * a.noise.out)[..., None, :]
        call = jax.vmap(lambda layer, x: layer(x)) if weights == "per_agent" else lambda layer, x: layer(x)
        np.testing.assert_allclose(call(a, x), expected, atol=1e-5)
    # All draws together: a factor has mean 0 and the variance E|x| = sqrt(2 / pi) of a normal x.
    draws = jax.vmap(lambda k: noisy.drawn(noise, k).head.noise.out)(jax.random.split(KEY, 4000))
    assert np.all(np.abs(np.mean(draws, axis=0)) < 0.06)
    np.testing.assert_allclose(np.var(draws, axis=0), (2 / np.pi) ** 0.5, rtol=0.15)


def test_a_second_stream_shares_what_stands_before_it() -> None:
    net = Net("mlp", width=5, layers=1, layers_after=1)
    params = net.init(KEY, 1, 4, 3, 1.0, aside=2)
    x, first = jax.random.normal(KEY, (2, 3, 1, 4)), jnp.zeros((2, 3), bool)
    _, y = net.unroll(params, net.carry(3, 1), x, first)
    h = jax.nn.relu(x @ params.before[0].weight + params.before[0].bias)
    head = jax.nn.relu(h @ params.after[0].weight) @ params.head.weight
    aside = jax.nn.relu(h @ params.aside[0].weight) @ params.aside[1].weight
    np.testing.assert_allclose(y, jnp.concatenate([head, aside], axis=-1), atol=1e-5)
    assert net.init(KEY, 1, 4, 3, 1.0).aside == ()
