"""Random orders."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from rookery.ops.batches import shuffled


@pytest.mark.parametrize("count", [1, 2, 7, 1024, 4095, 4096, 5000])
def test_every_number_once(count: int) -> None:
    """Also where numbers have too many bits to be sorted together with random ones (from 4,096 on)."""
    orders = [np.asarray(shuffled(jax.random.PRNGKey(seed), count)) for seed in (0, 1)]
    for order in orders:
        assert order.dtype == np.int32
        np.testing.assert_array_equal(np.sort(order), np.arange(count))
    assert count < 10 or np.mean(orders[0] == orders[1]) < 0.01


def test_all_orders_are_equally_likely() -> None:
    draws = 24_000
    orders = jax.vmap(lambda key: shuffled(key, 4))(jax.random.split(jax.random.PRNGKey(0), draws))
    _, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    p = 1 / 24
    assert counts.shape == (24,)
    assert np.all(np.abs(counts / draws - p) <= 5 * np.sqrt(p * (1 - p) / draws))
