"""Encoders of images: sizes, what they leave alone, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.core.errors import ConfigError
from rookery.nets.agent import Net
from rookery.nets.encoder import Conv, Encoder

KEY = jax.random.PRNGKey(0)


def test_a_convolution_is_what_it_is_by_hand() -> None:
    weight, x = jax.random.normal(KEY, (2, 2, 1, 1)), jnp.arange(9.0).reshape(1, 3, 3, 1)
    y = Conv(weight, jnp.ones(1))(x, 1)
    by_hand = [
        [np.sum(np.asarray(x)[0, i : i + 2, j : j + 2] * np.asarray(weight)[..., 0]) + 1 for j in (0, 1)]
        for i in (0, 1)
    ]
    np.testing.assert_allclose(np.asarray(y)[0, :, :, 0], by_hand, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "flat"),
    [
        ("nature", (84, 84, 4), 7 * 7 * 64),
        ("data_efficient", (84, 84, 4), 3 * 3 * 64),
        ("small", (10, 10, 4), 8 * 8 * 16),
    ],
)
def test_sizes_are_the_published_ones(kind: str, shape: tuple[int, ...], flat: int) -> None:
    params = jax.eval_shape(lambda k: Encoder(kind, width=16).init(k, shape), KEY)  # pyright: ignore[reportArgumentType]
    assert params is not None and params.out.weight.shape == (flat, 16)


def test_what_is_not_the_image_is_handed_on_as_it_is() -> None:
    encoder = Encoder("impala", width=8)
    params = encoder.init(KEY, (6, 6, 2))
    assert params is not None
    x = jax.random.normal(KEY, (3, 5, 72 + 4))
    y = encoder(params, x)
    assert y.shape == (3, 5, 12)
    np.testing.assert_array_equal(y[..., 8:], x[..., 72:])
    assert not np.allclose(y[0, 0, :8], y[0, 1, :8])


def test_a_network_learns_through_its_encoder() -> None:
    net = Net(encoder=Encoder("small", width=8), width=8)
    params = net.init(KEY, 1, 75 + 2, 3, 1.0, image=(5, 5, 3))
    x, first = jax.random.normal(KEY, (2, 4, 1, 77)), jnp.zeros((2, 4), bool)
    grads = jax.grad(lambda p: jnp.sum(net.unroll(p, net.carry(4, 1), x, first)[1] ** 2))(params)
    assert grads.encoder is not None and float(jnp.abs(grads.encoder.convs[0].weight).max()) > 0


@pytest.mark.parametrize(
    ("kind", "shape", "told"), [("nature", (17,), "reads images"), ("nature", (20, 20, 1), "larger images")]
)
def test_what_it_cannot_read_is_refused(kind: str, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Encoder(kind).init(KEY, shape)  # pyright: ignore[reportArgumentType]
