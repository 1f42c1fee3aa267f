"""Epsilon-greedy: which actions, and how often."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.ops.explore import epsilon_greedy, weighted

DRAWS = 40_000
LEGAL = jnp.array([True, False, True, True, False, True])
Q = jnp.array([-50.0, 1e6, -3.0, -7.0, 1e6, -4.0])
"""All legal values are negative: an explorer that scores illegal ones by 0 would choose them."""


def frequencies(epsilon: float, seed: int = 0) -> np.ndarray:
    q, legal = jnp.broadcast_to(Q, (DRAWS, 6)), jnp.broadcast_to(LEGAL, (DRAWS, 6))
    chosen = epsilon_greedy(jax.random.PRNGKey(seed), q, legal, jnp.float32(epsilon))
    assert chosen.dtype == jnp.int32
    return np.bincount(np.asarray(chosen), minlength=6) / DRAWS


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_frequencies(epsilon: float) -> None:
    """Each of 4 legal actions gets epsilon / 4; the best (2) gets the rest. 5 standard errors are allowed."""
    expected = np.where(np.asarray(LEGAL), epsilon / 4, 0.0)
    expected[2] += 1 - epsilon
    error = np.sqrt(expected * (1 - expected) / DRAWS)
    assert np.all(np.abs(frequencies(epsilon) - expected) <= 5 * error)


def test_whether_to_explore_is_independent_of_what_is_explored() -> None:
    """At epsilon 1/2 explorers still choose uniformly: the two draws are not the same draw."""
    f = frequencies(0.5, seed=3)
    assert np.ptp(f[[0, 3, 5]]) < 5 * np.sqrt(2 * 0.125 / DRAWS)


def test_rows_and_agents_explore_on_their_own() -> None:
    q, legal = jnp.zeros((200, 3, 4)), jnp.ones((200, 3, 4), bool)
    a = np.asarray(epsilon_greedy(jax.random.PRNGKey(1), q, legal, jnp.float32(1.0)))
    assert a.shape == (200, 3)
    # Two agents agree by chance in a quarter of the rows.
    assert 0.1 < np.mean(a[:, 0] == a[:, 1]) < 0.4
    assert 0.1 < np.mean(a[:-1, 0] == a[1:, 0]) < 0.4


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0 - 2.0**-24, None], ids=["least", "half", "most", "drawn"])
def test_a_weight_of_0_is_never_drawn(share: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by chance nor at the edges of what can be drawn; weights need not add up to 1."""
    weights = jnp.array([0.0, 1e-3, 0.0, 0.0, 7.1, 0.3, 0.0])
    if share is not None:
        monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, share, jnp.float32))
    drawn = np.asarray(weighted(jax.random.PRNGKey(0), jnp.broadcast_to(weights, (DRAWS, 7))))
    assert set(np.unique(drawn)) <= {1, 4, 5}
    if share is None:
        p = np.asarray(weights) / float(weights.sum())
        error = np.sqrt(p * (1 - p) / DRAWS)
        assert np.all(np.abs(np.bincount(drawn, minlength=7) / DRAWS - p) <= 5 * error)


def test_one_action_leaves_no_choice() -> None:
    drawn = weighted(jax.random.PRNGKey(0), jnp.full((3, 2, 1), 0.2))
    assert drawn.shape == (3, 2) and drawn.dtype == jnp.int32 and not np.any(drawn)
