"""Networks that begin as torch's do, and normalization as the on-policy code base has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.core.errors import ConfigError
from rookery.nets import recurrent
from rookery.nets.agent import Net
from rookery.nets.layers import linear
from rookery.nets.mixers import Mixer, QmixParams

KEY = jax.random.PRNGKey(0)


def is_uniform(x: jax.Array, bound: float) -> bool:
    """Within the bounds, and with the mean and deviation of a uniform distribution."""
    y = np.asarray(x).ravel()
    close = abs(y.mean()) < 5 * bound / np.sqrt(3 * y.size) and abs(y.std() - bound / np.sqrt(3)) < 0.1 * bound
    return bool(np.abs(y).max() <= bound and close)


def test_dense_layers_begin_as_torchs() -> None:
    layer = linear(KEY, 100, 300, 7.0, "torch")
    assert is_uniform(layer.weight, 0.1) and is_uniform(layer.bias, 0.1)
    assert not np.allclose(layer.weight[0], layer.bias)


def test_a_gru_begins_as_torchs() -> None:
    p = recurrent.gru(KEY, 30, 100, "torch")
    assert is_uniform(p.w_in, 0.1) and is_uniform(p.w_hidden, 0.1), "in the width of the hidden state, both"
    assert is_uniform(p.bias[200:], 0.1) and is_uniform(p.bias_candidate, 0.1)
    gates = np.asarray(p.bias[:200])  # sums of two biases
    assert np.abs(gates).max() > 0.1 and gates.std() == pytest.approx(0.1 * np.sqrt(2 / 3), rel=0.1)


def test_settings_reach_every_layer() -> None:
    params = Net("gru", width=64, layers=1, layers_after=1, initializer="torch").init(KEY, 2, 25, 9, 0.01)
    assert is_uniform(params.before[0].weight, 0.2) and is_uniform(params.after[0].weight, 0.125)
    assert is_uniform(params.head.weight, 0.125), "torch knows no gain"
    mixer = Mixer("qmix", embed=32, hyper=64, initializer="torch").init(KEY, 3, 100)
    assert isinstance(mixer, QmixParams)
    assert is_uniform(mixer.w1[0].weight, 0.1) and is_uniform(mixer.w1[1].weight, 0.125)
    with pytest.raises(ConfigError, match="orthogonal"):
        Net("transformer", initializer="torch").check()


def test_layer_normalization_includes_the_output_of_a_gru_but_not_its_carry() -> None:
    net = Net("gru", width=8, layers=1, layer_norm=True)
    params = net.init(KEY, 2, 5, 3, 1.0)
    x, first = jax.random.normal(KEY, (4, 6, 2, 5)), jnp.zeros((4, 6), bool)
    carry, y = net.unroll(params, net.carry(6, 2), x, first)
    centred = np.asarray(carry - carry.mean(-1, keepdims=True))
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    assert not np.allclose(normal, carry, atol=0.1)
    np.testing.assert_allclose(y[-1], normal @ params.head.weight + params.head.bias, atol=1e-4)
