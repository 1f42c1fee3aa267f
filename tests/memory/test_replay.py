"""The ring: where items go, what is drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.memory import replay

N, CAPACITY = 2, 6


def item(i: int) -> dict[str, jax.Array]:
    """Group `i`: N items, each with its own number."""
    number = jnp.arange(N) + N * i
    return {"x": number.astype(jnp.float32)[:, None] * jnp.ones(3), "frame": number.astype(jnp.uint8)}


def store(groups: int) -> dict[str, jax.Array]:
    s = replay.empty(jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], item(0))), CAPACITY)
    for i in range(groups):
        s = replay.add(s, item(i), replay.slot(jnp.int32(i), N, CAPACITY))
    return s


def test_an_empty_store_keeps_dtypes() -> None:
    s = store(0)
    assert s["x"].shape == (6, 3) and s["frame"].dtype == jnp.uint8


def test_groups_fill_the_ring_in_order_and_overwrite_the_oldest() -> None:
    np.testing.assert_array_equal(store(2)["frame"], [0, 1, 2, 3, 0, 0])
    np.testing.assert_array_equal(store(3)["frame"], [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(store(4)["frame"], [6, 7, 2, 3, 4, 5])
    np.testing.assert_array_equal(store(8)["frame"], [12, 13, 14, 15, 10, 11])
    np.testing.assert_array_equal(store(8)["x"][:, 1], [12, 13, 14, 15, 10, 11])


def test_filled() -> None:
    assert [int(replay.filled(jnp.int32(i), N, CAPACITY)) for i in range(5)] == [2, 4, 6, 6, 6]


def test_samples_are_whole_items_uniform_over_what_is_stored() -> None:
    s, stored = store(2), replay.filled(jnp.int32(1), N, CAPACITY)
    drawn = replay.sample(s, jax.random.PRNGKey(0), 20_000, stored)
    np.testing.assert_array_equal(drawn["x"][:, 0], drawn["frame"])
    frequency = np.bincount(np.asarray(drawn["frame"]), minlength=4) / 20_000
    assert len(frequency) == 4 and np.all(np.abs(frequency - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 20_000))
    full = replay.sample(store(4), jax.random.PRNGKey(0), 2_000, replay.filled(jnp.int32(3), N, CAPACITY))
    assert set(np.asarray(full["frame"]).tolist()) == {2, 3, 4, 5, 6, 7}
