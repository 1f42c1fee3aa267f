"""Two-dimensional convolutions whose gradients stay fast inside loops.

XLA's CPU backend computes a convolution fast if its axes are in one order: batch, height, width, channel, and for the
kernel height, width, input, output. It brings others into that order only outside of loops, and a training program is a
loop: there the gradients that JAX derives take twenty times as long. So the gradients are written here, with their
axes in that order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_ORDER = ("NHWC", "HWIO", "NHWC")


def convolve(
    x: Float[Array, "b h w n_in"], weight: Float[Array, "y x n_in n_out"], stride: int
) -> Float[Array, "b h2 w2 n_out"]:
    """The convolution of images without padding; rows and columns that no window reaches are ignored."""
    return _convolve(x, weight, stride)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(x: Array, weight: Array, stride: int) -> Any:
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), "VALID", dimension_numbers=_ORDER)


def same_padding(x: Float[Array, "b h w n"], size: int, stride: int) -> Float[Array, "b h2 w2 n"]:
    """Images with the zeros around them that keep their area, divided by the stride, in a convolution."""
    pads = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), "SAME")
    return jax.lax.pad(x, jnp.float32(0), [(0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)])


def _forward(x: Array, weight: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(x, weight, stride), (x, weight)


def _backward(stride: int, kept: tuple[Array, Array], dy: Float[Array, "b h2 w2 n_out"]) -> tuple[Array, Array]:
    x, weight = kept
    # From the first row (or column) of the first window to that of the last.
    spans = [(n - 1) * stride + 1 for n in dy.shape[1:3]]
    return _of_images(x, weight, dy, spans, stride), _of_kernel(x, weight, dy, spans, stride)


def _of_images(x: Array, weight: Array, dy: Array, spans: list[int], stride: int) -> Array:
    """Every pixel gathers from the windows that reached it: a convolution with the kernel turned around."""
    if weight.shape[0] == weight.shape[1] == stride:
        return _of_tiles(x, weight, dy)
    turned = jnp.swapaxes(weight[::-1, ::-1], 2, 3)
    pads = [(k - 1, n - span) for k, n, span in zip(weight.shape[:2], x.shape[1:3], spans, strict=True)]
    return jax.lax.conv_general_dilated(
        dy, turned, (1, 1), pads, lhs_dilation=(stride, stride), dimension_numbers=_ORDER
    )


def _of_tiles(x: Array, weight: Array, dy: Array) -> Array:
    """The same where windows do not overlap: each pixel is in one of them, so one product is all."""
    (batch, rows, columns, n_out), (size, _, n_in, _) = dy.shape, weight.shape
    tiles = (dy.reshape(-1, n_out) @ weight.reshape(-1, n_out).T).reshape(batch, rows, columns, size, size, n_in)
    found: Array = tiles.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * size, columns * size, n_in)
    missing = [(0, n - m, 0) for n, m in zip(x.shape, found.shape, strict=True)]
    return jax.lax.pad(found, jnp.float32(0), missing)


def _of_kernel(x: Array, weight: Array, dy: Array, spans: list[int], stride: int) -> Array:
    """Images are the channels of a convolution whose kernel is the gradient."""
    height, width = (span + k - 1 for span, k in zip(spans, weight.shape[:2], strict=True))
    images = jnp.transpose(x[:, :height, :width], (3, 1, 2, 0))
    kernel = jnp.transpose(dy, (1, 2, 0, 3))
    found = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "VALID", rhs_dilation=(stride, stride), dimension_numbers=_ORDER
    )
    return jnp.transpose(found, (1, 2, 0, 3))


_convolve.defvjp(_forward, _backward)  # pyright: ignore[reportUnknownMemberType]
