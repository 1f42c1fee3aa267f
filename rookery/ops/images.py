"""Augmentation of images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def shift(image: Array, by: Int[Array, "two"], most: int) -> Array:
    """The image [height, width, channel], `by` rows and columns (0 to 2 * `most`) of an edge that is `most` wide cut.

    The border is repeated outwards, so `by` = `most` leaves the image as it is (DrQ, Kostrikov et al. 2021).
    """
    padded = jnp.pad(image, ((most, most), (most, most), (0, 0)), mode="edge")
    return jax.lax.dynamic_slice(padded, (by[0], by[1], 0), image.shape)


def random_shifts(key: Array, images: Array, most: int) -> tuple[Array, Int[Array, "n two"]]:
    """Each of `images` [n, height, width, channel] shifted on its own, and by how much."""
    by = jax.random.randint(key, (images.shape[0], 2), 0, 2 * most + 1)
    return jax.vmap(shift, in_axes=(0, 0, None))(images, by, most), by - most
