"""Metrics on their way out of loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.core.types import Mean, Metrics, Packed


def metrics_at(t: jax.Array) -> Metrics:
    x = t + jnp.arange(4.0)
    return {"small": Mean.of(x), "odd": Mean.of(x, x % 2 == 1), "none": Mean.of(x, x < 0)}


def test_packed_is_the_metrics_themselves() -> None:
    metrics = metrics_at(jnp.float32(3))
    back = Packed.of(metrics).metrics()
    assert set(back) == set(metrics)
    for name, mean in metrics.items():
        assert back[name].total == mean.total and back[name].weight == mean.weight, name


def test_packed_leaves_a_loop_as_rows() -> None:
    def step(carry: None, t: jax.Array) -> tuple[None, Packed]:
        return None, Packed.of(metrics_at(t))

    _, rows = jax.lax.scan(step, None, jnp.arange(5.0))
    each = [metrics_at(jnp.float32(t)) for t in range(5)]
    for name in each[0]:
        np.testing.assert_allclose(rows.at(3).metrics()[name].total, each[3][name].total)
        whole = rows.summed().metrics()[name]
        np.testing.assert_allclose(whole.total, sum(m[name].total for m in each))
        np.testing.assert_allclose(whole.weight, sum(m[name].weight for m in each))
    assert rows.summed().metrics()["none"].value == 0.0, "nothing measured"


def test_packed_keeps_leading_axes() -> None:
    """Members are an axis in front, as reports of a run have it."""
    packed = jax.vmap(lambda t: Packed.of(metrics_at(t)))(jnp.arange(3.0))
    np.testing.assert_allclose(packed.metrics()["small"].value, [1.5, 2.5, 3.5])
