"""Matrix games: exact payoffs, one move, the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.core.errors import ConfigError
from rookery.tasks.compiled.matrix import CLIMBING, Matrix, penalty

KEY = jax.random.PRNGKey(0)


def play(task: Matrix) -> jax.Array:
    """Rewards [row, column, agent] of every joint action."""
    state, _ = task.reset(KEY)
    sizes = len(task.payoff), len(task.payoff[0])
    joint = jnp.stack(jnp.meshgrid(*map(jnp.arange, sizes), indexing="ij"), -1).reshape(-1, 2)
    _, step = jax.vmap(task.step, (None, 0, None))(state, joint, KEY)
    assert np.all(step.last) and not np.any(step.discount)
    return step.reward.reshape(*sizes, 2)


@pytest.mark.parametrize("payoff", [CLIMBING, penalty(-100.0), ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))])
def test_payoffs_are_exact(payoff: tuple[tuple[float, ...], ...]) -> None:
    rewards = play(Matrix(payoff=payoff))
    for agent in range(2):
        np.testing.assert_array_equal(rewards[..., agent], payoff)


def test_climbing_is_the_published_game() -> None:
    assert CLIMBING == ((11, -30, 0), (-30, 7, 0), (0, 6, 5))
    assert penalty(-7.0) == ((10, 0, -7), (0, 2, 0), (-7, 0, 10))


def test_first_step() -> None:
    _, step = Matrix().reset(KEY)
    assert step.first and not step.last and np.all(step.obs == 1) and np.all(step.discount == 1)


def test_unequal_numbers_of_actions_are_padded() -> None:
    task = Matrix(payoff=((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)))
    _, step = task.reset(KEY)
    assert task.spec.action_sizes == (2, 3)
    np.testing.assert_array_equal(step.legal, [[True, True, False], [True, True, True]])


def test_ragged_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="equally long"):
        Matrix(payoff=((1.0,), (1.0, 2.0)))
    with pytest.raises(ConfigError, match="equally long"):
        Matrix(payoff=())
