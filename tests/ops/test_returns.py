"""TD(lambda) returns against numbers worked out by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from rookery.ops.returns import continues, lambda_returns, n_step, n_step_rows


def column(*values: float) -> Array:
    return jnp.array(values, jnp.float32)[:, None]


def test_one_step_two_step_and_a_mixture_by_hand() -> None:
    r, d, v = column(1, 2, 3), column(0.5, 0.5, 0.5), column(10, 20, 40)
    # lambda 0: r + d v, each row alone.
    np.testing.assert_allclose(lambda_returns(r, d, v, column(0, 0, 0)), column(6, 12, 23))
    # lambda 1: g2 = 3 + .5 * 40 = 23; g1 = 2 + .5 * 23 = 13.5; g0 = 1 + .5 * 13.5 = 7.75.
    np.testing.assert_allclose(lambda_returns(r, d, v, column(1, 1, 0)), column(7.75, 13.5, 23))
    # lambda 1/2: g1 = 2 + .5 * (10 + 11.5) = 12.75; g0 = 1 + .5 * (5 + 6.375) = 6.6875.
    np.testing.assert_allclose(lambda_returns(r, d, v, column(0.5, 0.5, 0)), column(6.6875, 12.75, 23))


def test_lambda_returns_are_the_weighted_sum_of_n_step_returns() -> None:
    """Sutton & Barto 12.3: (1 - l) sum_n l^(n-1) G_n, the last one taking the rest of the weight."""
    rng = np.random.default_rng(0)
    time, lam = 7, 0.7
    r, d, v = rng.normal(size=time), rng.uniform(0.5, 1, size=time), rng.normal(size=time)
    lambdas = np.full(time, lam)
    lambdas[-1] = 0
    have = lambda_returns(*(jnp.array(x, jnp.float32)[:, None] for x in (r, d, v, lambdas)))[:, 0]

    def n_step(t: int, n: int) -> float:
        discounts = np.concatenate([[1.0], np.cumprod(d[t : t + n])])
        return float(np.sum(discounts[:-1] * r[t : t + n]) + discounts[-1] * v[t + n - 1])

    for t in range(time):
        longest = time - t
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, longest)] + [lam ** (longest - 1)]
        assert have[t] == pytest.approx(sum(w * n_step(t, n + 1) for n, w in enumerate(weights)), abs=1e-5)


def test_continues_stops_at_ends_and_at_the_final_row() -> None:
    last = jnp.array([[False, True], [False, False], [True, False], [False, False], [False, False]])
    lam = continues(last, 0.9)
    # Rows 1 to 4. `last` of row 0 is about the transition before the rollout; row 4 has nothing after it.
    np.testing.assert_allclose(lam, np.float32([[0.9, 0.9], [0, 0.9], [0.9, 0.9], [0, 0]]))
    assert lam.dtype == jnp.float32


def test_a_cut_in_the_middle_bootstraps_and_a_termination_does_not() -> None:
    """Rows 0 1 2 | 3 4: row 2 is `last`, row 3 the `first` of the next episode; 2 -> 3 is no transition."""
    last = jnp.array([False, False, True, False, False])[:, None]
    r, v, gamma = column(1, 2, 99, 4), column(10, 20, 30, 40), 0.5
    lam = continues(last, 1.0)
    cut = lambda_returns(r, gamma * column(1, 1, 1, 1), v, lam)[:, 0]
    # Row 1 -> 2: 2 + .5 * 20 = 12, whatever comes after the reset; row 0 -> 1: 1 + .5 * 12 = 7.
    np.testing.assert_allclose(cut[:2], [7, 12])
    np.testing.assert_allclose(cut[3], 4 + 0.5 * 40)
    ended = lambda_returns(r, gamma * column(1, 0, 1, 1), v, lam)[:, 0]
    np.testing.assert_allclose(ended[:2], [1 + 0.5 * 2, 2])


def test_n_step_targets_by_hand() -> None:
    r, d = column(1, 2, 4, 8), column(0.5, 0.5, 0.5, 0.5)
    total, discount, count = n_step(r, d, column(1, 1, 1, 1) > 0, 3)
    # 1 + .5 * 2 + .25 * 4 = 3; 2 + .5 * 4 + .25 * 8 = 6; then the sequence ends.
    np.testing.assert_allclose(total, column(3, 6, 8, 8))
    np.testing.assert_allclose(discount, column(0.125, 0.125, 0.25, 0.5))
    np.testing.assert_array_equal(count, column(3, 3, 2, 1))
    one, same, alone = n_step(r, d, column(1, 1, 1, 1) > 0, 1)
    assert (one == r).all() and (same == d).all() and (alone == 1).all()


def test_n_step_targets_stop_where_an_episode_does() -> None:
    """Rows 0 1 2 | 3 4: row 2 is `last`; a life is lost on the way to row 1, but the episode goes on."""
    last = jnp.array([False, False, True, False, False])[:, None]
    total, discount, rows = n_step_rows(column(1, 2, 99, 4), column(0, 0.5, 0.5, 0.5), last, 3)
    np.testing.assert_allclose(total[jnp.array([0, 1, 3])], column(1, 2, 4))
    np.testing.assert_allclose(discount[jnp.array([0, 1, 3])], column(0, 0.5, 0.5))
    # Row 0 bootstraps from row 2 (entry 1), with discount 0.
    np.testing.assert_array_equal(rows[jnp.array([0, 1, 3])], column(1, 1, 3))
