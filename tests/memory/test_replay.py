"""The ring: where items go, what is drawn, and how often."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.core.errors import ConfigError
from rookery.core.types import Clock, Collect
from rookery.memory import replay
from rookery.memory.replay import Draw, Replay

N, CAPACITY = 2, 6
KEY = jax.random.PRNGKey(0)
CLOCK = Clock(jnp.int32(0), jnp.uint32(25), jnp.float32(100))


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


def uniform(groups: int, draws: int) -> np.ndarray:
    """The numbers of so many items drawn from a store."""
    draw = Replay(CAPACITY, draws).draw(KEY, None, replay.filled(jnp.int32(groups - 1), N, CAPACITY), CLOCK)
    drawn = replay.take(store(groups), draw.index)
    np.testing.assert_array_equal(drawn["x"][:, 0], drawn["frame"])
    assert draw.weight is None
    return np.asarray(drawn["frame"])


def test_samples_are_whole_items_uniform_over_what_is_stored() -> None:
    frequency = np.bincount(uniform(2, 20_000), minlength=4) / 20_000
    assert len(frequency) == 4 and np.all(np.abs(frequency - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 20_000))
    assert set(uniform(4, 2_000).tolist()) == {2, 3, 4, 5, 6, 7}


# --- priorities

PER = Replay(CAPACITY, 40_000, priority=0.5, importance=0.4)


def test_without_priorities_there_is_nothing_to_keep() -> None:
    plain = Replay(CAPACITY, 3)
    assert plain.priorities() is None and plain.welcome(None, jnp.int32(0), N) is None
    assert replay.rate(None, Draw(jnp.arange(3), None), None) is None
    x = jnp.ones((2, 3, 1))
    draw = Draw(jnp.arange(3), None)
    assert draw.weigh(x) is x and draw.sizes(x, x, x > 0) is None


def test_new_items_are_as_important_as_the_most_important() -> None:
    p = PER.welcome(PER.priorities(), jnp.int32(0), N)
    np.testing.assert_array_equal(p, [1, 1, 0, 0, 0, 0])
    p = replay.rate(p, Draw(jnp.array([1]), jnp.ones(1)), jnp.array([7.0]))
    np.testing.assert_array_equal(PER.welcome(p, jnp.int32(2), N), [1, 7, 7, 7, 0, 0])


def test_draws_follow_priorities_and_weights_undo_them() -> None:
    stored, priorities = 4, jnp.array([0.0, 1.0, 4.0, 9.0, 100.0, 100.0])  # what is not stored is never drawn
    draw = PER.draw(KEY, priorities, jnp.int32(stored), CLOCK)
    p = (np.asarray(priorities[:stored]) + PER.eps * 3.5) ** 0.5  # 3.5 is their mean
    p /= p.sum()
    index = np.asarray(draw.index)
    np.testing.assert_allclose(np.bincount(index, minlength=6)[:4] / 40_000, p, atol=0.01)
    assert index.max() < stored
    w = (stored * p) ** -(0.4 + 0.6 * 0.25)  # a quarter of the run is over
    np.testing.assert_allclose(draw.weight, (w / w.max())[index], rtol=1e-4)
    held = replace(PER, importance_end=0.4).draw(KEY, priorities, jnp.int32(stored), CLOCK)
    assert held.weight is not None
    w = (stored * p) ** -0.4
    np.testing.assert_allclose(held.weight, (w / w.max())[index], rtol=1e-4)
    # At the end of the run weighted draws are as good as uniform ones.
    late = PER.draw(KEY, priorities, jnp.int32(stored), Clock(jnp.int32(0), jnp.uint32(100), jnp.float32(100)))
    assert late.weight is not None
    x = np.array([1.0, -2.0, 3.0, 5.0])
    assert (x[index] * late.weight).sum() / late.weight.sum() == pytest.approx(x.mean(), abs=0.3)


def test_priorities_matter_however_small_errors_are() -> None:
    priorities = jnp.array([0.0, 1.0, 4.0, 9.0, 0.0, 0.0])
    draws = [PER.draw(KEY, scale * priorities, jnp.int32(4), CLOCK).index for scale in (1.0, 2.0**-10)]
    np.testing.assert_array_equal(*draws)
    absolute = replace(PER, eps=0.5, eps_relative=False).draw(KEY, 2.0**-10 * priorities, jnp.int32(4), CLOCK)
    np.testing.assert_allclose(np.bincount(absolute.index, minlength=4) / 40_000, 0.25, atol=0.01)
    nothing = PER.draw(KEY, jnp.zeros(6), jnp.int32(4), CLOCK)
    np.testing.assert_allclose(np.bincount(nothing.index, minlength=4) / 40_000, 0.25, atol=0.01)


def test_an_item_without_mass_has_no_weight() -> None:
    """Rounding of cumulative sums draws some of them from a large store."""
    n = 1 << 17
    filled = jnp.arange(n) % 32 != 0
    draw = replace(PER, capacity=n, batch=1 << 20).draw(KEY, jax.random.uniform(KEY, (n,)), jnp.int32(n), CLOCK, filled)
    assert draw.weight is not None
    without = ~filled[draw.index]
    assert without.any()
    assert jnp.isfinite(draw.weight).all() and not draw.weight[without].any() and draw.weight[~without].all()


def test_sizes_are_means_over_real_transitions() -> None:
    q, valid = jnp.array([[[1.0], [-2.0]], [[3.0], [50.0]]]), jnp.array([[[True], [True]], [[True], [False]]])
    draw = Draw(jnp.arange(2), jnp.array([1.0, 0.5]))
    np.testing.assert_allclose(draw.sizes(q, jnp.zeros_like(q), valid), [2, 2])
    np.testing.assert_allclose(draw.weigh(q)[:, 1, 0], [-1, 25])


def test_proportional_draws_skip_what_has_no_mass() -> None:
    mass = jnp.where(jnp.arange(1000) % 3 == 0, 0.0, jax.random.uniform(KEY, (1000,)))
    index = np.asarray(replay.proportional(KEY, mass, 50_000))
    assert np.all(np.asarray(mass)[index] > 0)
    np.testing.assert_allclose(np.bincount(index // 100) / 50_000, mass.reshape(10, 100).sum(1) / mass.sum(), atol=0.01)


def test_impossible_sizes_are_refused() -> None:
    for wrong in (Replay(10), Replay(4, batch=8), Replay(steps_per_sequence=0.01)):
        with pytest.raises(ConfigError, match=r"algo\.replay"):
            wrong.check(Collect(envs=4))
    Replay().check(Collect(envs=4))
