"""Random shifts against indices with a repeated border."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.ops.images import random_shifts, shift

IMAGE = np.arange(4 * 5 * 2, dtype=np.uint8).reshape(4, 5, 2)


def test_a_shift_repeats_the_border() -> None:
    np.testing.assert_array_equal(shift(jnp.asarray(IMAGE), jnp.array([2, 2]), 2), IMAGE)
    down = shift(jnp.asarray(IMAGE), jnp.array([3, 0]), 2)
    # One row further down, two columns further left.
    np.testing.assert_array_equal(down, IMAGE[[1, 2, 3, 3]][:, [0, 0, 0, 1, 2]])


def test_every_image_is_shifted_on_its_own_and_evenly() -> None:
    images = jnp.broadcast_to(IMAGE, (3000, *IMAGE.shape))
    moved, by = jax.jit(random_shifts, static_argnums=2)(jax.random.PRNGKey(0), images, 1)
    assert moved.dtype == jnp.uint8
    kinds, counts = np.unique(np.asarray(by), axis=0, return_counts=True)
    assert len(kinds) == 9 and kinds.min() == -1 and np.all(np.abs(counts / 3000 - 1 / 9) < 0.03)
    for i in range(20):
        rows, columns = (np.clip(np.arange(n) + by[i, axis], 0, n - 1) for axis, n in enumerate((4, 5)))
        np.testing.assert_array_equal(moved[i], IMAGE[rows][:, columns])
