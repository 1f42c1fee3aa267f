"""Dense layers and their initial weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.nets.layers import Linear, Norm, elu, linear, orthogonal


@pytest.mark.parametrize(
    ("n_in", "n_out", "gain"), [(8, 8, 1.0), (24, 6, 2.0), (6, 24, 0.01), (1, 5, 1.0), (64, 64, 1.4)]
)
def test_orthogonal_weights_are_orthonormal_up_to_the_gain(n_in: int, n_out: int, gain: float) -> None:
    for seed in range(3):
        w = np.asarray(orthogonal(jax.random.PRNGKey(seed), n_in, n_out, gain), np.float64)
        assert w.shape == (n_in, n_out)
        gram = w.T @ w if n_in >= n_out else w @ w.T
        np.testing.assert_allclose(gram, gain**2 * np.eye(min(n_in, n_out)), atol=1e-5 * max(gain**2, 1e-4))


def test_orthogonal_weights_differ_between_keys_and_have_no_preferred_sign() -> None:
    drawn = np.stack([orthogonal(jax.random.PRNGKey(seed), 3, 3) for seed in range(60)])
    assert np.abs(drawn.mean(axis=0)).max() < 0.35
    # Both orientations of space occur.
    assert {-1, 1} == set(np.sign(np.linalg.det(drawn)).astype(int))


def test_linear_and_norm_by_hand() -> None:
    layer = Linear(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([10.0, 20.0]))
    np.testing.assert_allclose(layer(jnp.array([[1.0, -1.0]])), [[8.0, 18.0]])
    assert bool(jnp.all(linear(jax.random.PRNGKey(0), 3, 4).bias == 0))
    x = np.array([[1.0, 2.0, 6.0]])
    expected = (x - 3) / np.sqrt(14 / 3 + 1e-5) * [1, 2, 3] + [0.5, 0, 0]
    norm = Norm(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 0.0, 0.0]))
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-5)


@pytest.mark.parametrize("sizes", [(6, 3), (16, 3), (32, 1)])
@pytest.mark.parametrize("batch", [(), (7,), (4, 5, 3), (60, 5)])
def test_gradients_of_a_layer_are_those_jax_derives(batch: tuple[int, ...], sizes: tuple[int, int]) -> None:
    """Many rows of whole cache lines take another way than few, or odd ones."""
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    x, goal = jax.random.normal(keys[0], (*batch, sizes[0])), jax.random.normal(keys[1], (*batch, sizes[1]))
    weight, bias = jax.random.normal(keys[2], sizes), jax.random.normal(keys[3], sizes[1:])

    def ours(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return jnp.sum((Linear(weight, bias)(x) - goal) ** 2)

    def plain(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return jnp.sum((x @ weight + bias - goal) ** 2)

    found, expected = (jax.grad(f, argnums=(0, 1, 2))(x, weight, bias) for f in (ours, plain))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def test_elu_and_its_gradient_are_jaxs_own() -> None:
    x = jnp.array([-200.0, -3.0, -1e-3, 0.0, 1e-3, 4.0, 200.0])
    np.testing.assert_array_equal(elu(x), jax.nn.elu(x))
    ours, theirs = (jax.grad(lambda x, f=f: jnp.sum(f(x) * jnp.arange(7.0)))(x) for f in (elu, jax.nn.elu))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
