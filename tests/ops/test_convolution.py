"""Convolutions with gradients of our own: JAX's values, in the one order of axes that XLA is fast at in loops."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from rookery.ops.convolution import convolve, same_padding


def by_jax(x: Array, weight: Array, stride: int, padding: str = "VALID") -> Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), padding, dimension_numbers=dims)


def drawn(height: int, width: int, size: int) -> tuple[Array, Array]:
    x, weight = jax.random.split(jax.random.PRNGKey(0))
    return jax.random.normal(x, (3, height, width, 2)), jax.random.normal(weight, (size, size, 2, 5))


@pytest.mark.parametrize("height, width, size, stride", [(8, 8, 3, 1), (9, 12, 4, 2), (11, 10, 4, 3), (5, 7, 5, 5)])
def test_values_and_gradients_are_those_of_jax(height: int, width: int, size: int, stride: int) -> None:
    """Also where the last window ends before the last row."""
    x, weight = drawn(height, width, size)
    ours, back = jax.vjp(lambda x, w: convolve(x, w, stride), x, weight)
    theirs, back_too = jax.vjp(lambda x, w: by_jax(x, w, stride), x, weight)
    np.testing.assert_array_equal(ours, theirs)
    dy = jax.random.normal(jax.random.PRNGKey(1), ours.shape)
    for mine, other in zip(back(dy), back_too(dy), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size, stride", [(3, 1), (4, 2), (5, 3)])
def test_padding_keeps_the_area(size: int, stride: int) -> None:
    x, weight = drawn(8, 11, size)
    found = convolve(same_padding(x, size, stride), weight, stride)
    np.testing.assert_allclose(found, by_jax(x, weight, stride, "SAME"), rtol=1e-5, atol=1e-5)


def test_members_have_gradients_of_their_own() -> None:
    x, weight = drawn(8, 8, 3)
    gradient = jax.grad(lambda w, x: jnp.sum(convolve(x, w, 2) ** 2))
    both = jax.vmap(gradient)(jnp.stack([weight, 2 * weight]), jnp.stack([x, x + 1]))
    alone = gradient(weight, x), gradient(2 * weight, x + 1)
    np.testing.assert_allclose(both, jnp.stack(alone), rtol=1e-4, atol=1e-3)


def test_a_loop_has_one_order_of_axes_only() -> None:
    """XLA's CPU backend reorders no convolution inside a loop; another order takes twenty times as long."""
    x, weight = drawn(8, 8, 3)

    def steps(convolution: object) -> str:
        def loss(w: Array) -> Array:
            y = convolution(x, w, 2)  # pyright: ignore[reportCallIssue]
            return jnp.sum(convolution(y, jnp.swapaxes(w, 2, 3)[:, :, :, :2], 1) ** 2)  # pyright: ignore

        train = jax.jit(lambda w: jax.lax.fori_loop(0, 3, lambda _, w: w - 0.1 * jax.grad(loss)(w), w))
        return train.lower(weight).compile().as_text()

    def orders(convolution: object) -> set[str]:
        return set(re.findall(r"dim_labels=([\w>-]+)", steps(convolution)))

    assert orders(convolve) == {"b01f_01io->b01f"}
    assert len(orders(by_jax)) > 1  # if XLA learns it, this module can go
