"""Values of next actions, by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.ops.td import ILLEGAL, next_values, only_legal, take

TARGET = jnp.array([[1.0, 5.0, 3.0, 100.0], [4.0, 2.0, 7.0, -1.0]])
ONLINE = jnp.array([[9.0, 0.0, 2.0, 100.0], [1.0, 8.0, 3.0, 50.0]])
LEGAL = jnp.array([[True, True, True, False], [True, True, True, False]])


def test_take() -> None:
    np.testing.assert_allclose(take(TARGET, jnp.array([3, 0])), [100, 4])


@pytest.mark.parametrize(("double", "expected"), [(False, [5, 7]), (True, [1, 2])])
def test_next_values_never_choose_an_illegal_action(double: bool, expected: list[float]) -> None:
    """Action 3 has the highest value everywhere and is illegal: the best of the others counts."""
    np.testing.assert_allclose(next_values(TARGET, ONLINE, LEGAL, double=double), expected)


@pytest.mark.parametrize("double", [False, True])
def test_what_an_illegal_action_is_worth_does_not_matter(double: bool) -> None:
    before = next_values(TARGET, ONLINE, LEGAL, double=double)
    after = next_values(TARGET.at[:, 3].set(-7.0), ONLINE.at[:, 3].set(1e6), LEGAL, double=double)
    np.testing.assert_array_equal(before, after)


def test_only_legal_stays_finite() -> None:
    masked = only_legal(TARGET, LEGAL)
    assert bool(jnp.all(masked[:, 3] == ILLEGAL)) and bool(jnp.all(jnp.isfinite(0.0 * masked)))
    np.testing.assert_array_equal(masked[:, :3], TARGET[:, :3])
    # Below any value that a network may give.
    assert ILLEGAL < -1e8
