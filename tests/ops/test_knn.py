"""Nearest neighbors against brute force: small tables and large ones, ties, empty slots, near duplicates."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.ops import knn


def brute(keys: np.ndarray, filled: np.ndarray, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and squared distances of the k nearest filled rows, ties to the lower index."""
    distance = ((keys[None].astype(np.float64) - query[:, None]) ** 2).sum(-1)
    distance[:, ~filled] = np.inf
    index = np.argsort(distance, axis=1, kind="stable")[:, :k]
    return index, np.take_along_axis(distance, index, 1)


def table(n: int, dim: int, seed: int, *, whole: bool = False) -> np.ndarray:
    """Random keys; whole numbers (exact in float32, with many ties) if asked."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-2, 3, (n, dim)) if whole else rng.normal(size=(n, dim))).astype(np.float32)


norms = jax.jit(knn.squared_norms)


@partial(jax.jit, static_argnums=(3, 4))
def search(keys: Any, filled: Any, query: Any, k: int, method: knn.Method = "blocks") -> knn.Near:
    return knn.nearest(keys, knn.squared_norms(keys, filled), query, k, method)


# 8 divides 4096, 4 divides 4100, nothing divides 4099: three block sizes, the last without blocks.
@pytest.mark.parametrize("n", [7, 4096, 4099, 4100])
@pytest.mark.parametrize("whole", [True, False])
def test_it_finds_what_brute_force_finds(n: int, whole: bool) -> None:
    keys, query, filled = table(n, 3, 0, whole=whole), table(5, 3, 1, whole=whole), np.arange(n) % 3 > 0
    near = search(keys, filled, query, 4)
    index, distance = brute(keys, filled, query, 4)
    np.testing.assert_array_equal(near.index, index)
    np.testing.assert_allclose(near.distance, distance, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.02, 0.5, 1.0]))
def test_ties_go_to_the_lower_index(seed: int, share: float) -> None:
    """One dimension and five different keys: hundreds of ties, across blocks and blocks of blocks."""
    keys, query = table(2048, 1, seed, whole=True), table(3, 1, seed + 1, whole=True)
    filled = np.random.default_rng(seed).random(2048) < share
    near = search(keys, filled, query, 9)
    index, distance = brute(keys, filled, query, 9)
    np.testing.assert_array_equal(near.index, index)
    np.testing.assert_array_equal(near.distance, distance)


def test_slices_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,008 keys in slices of 1,024: four whole ones, and one that overlaps the last of them."""
    keys, query, filled = table(5008, 8, 2), table(6, 8, 3), np.arange(5008) % 7 > 0
    whole = search(keys, filled, query, 10)
    monkeypatch.setattr(knn, "SLICE", 1024)
    sliced = jax.jit(lambda *x: knn.nearest(*x, 10))(keys, norms(keys, filled), query)
    np.testing.assert_array_equal(sliced.index, whole.index)
    np.testing.assert_array_equal(sliced.index, brute(keys, filled, query, 10)[0])


@pytest.mark.parametrize("entries", [0, 1, 1024, 1025, 5008])
def test_slices_end_at_the_last_entry(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Tables that are filled from their first slot on, each to another one, over members that differ too."""
    monkeypatch.setattr(knn, "SLICE", 1024)
    keys = np.stack([[table(5008, 4, 2 * m + t) for t in range(2)] for m in range(2)])
    filled = np.arange(5008) < np.array([[entries, 40], [3000, entries]])[:, :, None]
    query, own = jnp.asarray(table(6, 4, 9)), jnp.array([0, 1, 1, 0, 0, 1])
    cached = norms(keys, filled)
    each = jax.jit(jax.vmap(lambda k, n: knn.nearest_in_each(k, n, query, 5)))(keys, cached)
    mine = jax.jit(jax.vmap(lambda k, n: knn.nearest_in_own(k, n, query, own, 5)))(keys, cached)
    for m, t in np.ndindex(2, 2):
        index, distance = brute(keys[m, t], filled[m, t], np.asarray(query), 5)
        found = np.isfinite(distance)
        np.testing.assert_allclose(each.distance[m, t], distance, rtol=1e-5)
        np.testing.assert_array_equal(np.asarray(each.index[m, t])[found], index[found])
        np.testing.assert_array_equal(mine.distance[m][own == t], np.asarray(each.distance[m, t])[own == t])
        np.testing.assert_array_equal(mine.index[m][own == t], np.asarray(each.index[m, t])[own == t])


def test_slices_after_the_last_entry_are_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN there would reach every minimum of its block."""
    monkeypatch.setattr(knn, "SLICE", 1024)
    keys, query = table(5008, 4, 0), table(3, 4, 1)
    keys[1024:] = np.nan
    near = jax.jit(lambda *x: knn.nearest(*x, 5))(keys, norms(keys, np.arange(5008) < 1000), query)
    np.testing.assert_array_equal(near.index, brute(keys[:1000], np.ones(1000, bool), query, 5)[0])


def test_small_distances_far_from_the_origin_are_exact() -> None:
    """|a|^2 - 2ab + |b|^2 would round a squared distance of 1e-4 at norm 1e4 to a multiple of 8."""
    keys = table(4096, 8, 4) + np.float32(1000)
    query = keys[100:103] + np.float32(2**-7)
    near = search(keys, np.ones(4096, bool), query, 1)
    np.testing.assert_array_equal(near.index[:, 0], [100, 101, 102])
    np.testing.assert_allclose(near.distance[:, 0], 8 * 2.0**-14, rtol=1e-6)


def test_a_table_with_fewer_than_k_entries_has_infinite_distances_and_no_weight() -> None:
    near = search(table(64, 2, 5), np.arange(64) < 2, table(1, 2, 6), 4)
    assert set(np.asarray(near.index[0, :2]).tolist()) == {0, 1}
    np.testing.assert_array_equal(np.isinf(near.distance[0]), [False, False, True, True])
    np.testing.assert_array_equal(knn.kernel(near.distance, 1e-3)[0, 2:], [0, 0])


@pytest.mark.parametrize("method", ["top_k", "approx"])
def test_the_other_methods(method: knn.Method) -> None:
    keys, query, filled = table(4096, 16, 7), table(4, 16, 8), np.arange(4096) % 2 > 0
    found, index = search(keys, filled, query, 20, method).index, brute(keys, filled, query, 20)[0]
    recall = np.mean(
        [len(set(a) & set(b)) / 20 for a, b in zip(np.asarray(found).tolist(), index.tolist(), strict=True)]
    )
    assert recall == 1 if method == "top_k" else recall > 0.8


def test_each_table_is_searched_on_its_own() -> None:
    keys = np.stack([table(2048, 3, seed, whole=True) for seed in range(3)])
    filled, query = np.random.default_rng(0).random((3, 2048)) < 0.7, table(4, 3, 9, whole=True)
    near = jax.jit(lambda *x: knn.nearest_in_each(*x, 6))(keys, norms(keys, filled), query)
    for i in range(3):
        index, distance = brute(keys[i], filled[i], query, 6)
        np.testing.assert_array_equal(near.index[i], index)
        np.testing.assert_array_equal(near.distance[i], distance)


def test_seeds_are_a_vmap() -> None:
    keys, query = np.stack([table(2048, 3, s) for s in range(2)]), np.stack([table(4, 3, s) for s in (5, 6)])
    cached = norms(keys, np.ones((2, 2048), bool))
    near = jax.jit(jax.vmap(lambda *x: knn.nearest(*x, 5)))(keys, cached, query)
    for i in range(2):
        np.testing.assert_array_equal(near.index[i], brute(keys[i], np.ones(2048, bool), query[i], 5)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_lowest_of_columns(dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 50, (3001, 3)).astype(dtype)
    np.testing.assert_array_equal(knn.lowest(jnp.asarray(x), 11), np.argsort(x, axis=0, kind="stable")[:11].T)


def test_kernel_mean_by_hand() -> None:
    """Squared distances 1 and 4, delta 1: weights 1/2 and 1/5; the third value is not in use."""
    query, key = jnp.zeros((1, 1)), jnp.array([[[1.0], [2.0], [0.0]]])
    value = jnp.array([[[7.0, 1.0], [0.0, 2.0], [9.0, 3.0]]])
    use = jnp.array([[[True, False], [True, False], [False, False]]])
    mean, known = knn.kernel_mean(query, key, value, use, 1.0)
    np.testing.assert_allclose(mean, [[5.0, 0.0]], rtol=1e-6)
    np.testing.assert_array_equal(known, [[True, False]])


def test_gradients_reach_query_keys_and_values() -> None:
    """One neighbor of two: d mean / d value = its share of the weight; nothing is NaN where nothing is in use."""
    args = (jnp.zeros((1, 1)), jnp.array([[[1.0], [2.0]]]), jnp.array([[[7.0], [0.0]]]))
    use = jnp.array([[[True], [True]]])
    to_query, to_key, to_value = jax.grad(lambda *x: knn.kernel_mean(*x, use, 1.0)[0].sum(), (0, 1, 2))(*args)
    np.testing.assert_allclose(to_value[0, :, 0], [5 / 7, 2 / 7], rtol=1e-6)
    assert float(to_query[0, 0]) != 0 and np.all(np.asarray(to_key) != 0)
    none = jax.grad(lambda *x: knn.kernel_mean(*x, ~use, 1.0)[0].sum(), (0, 1, 2))(*args)
    assert all(np.all(np.asarray(g) == 0) for g in none)
