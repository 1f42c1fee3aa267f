"""Random play: uniform over what is legal, and scored in the task's own unit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.core.registry import TASKS
from rookery.core.types import ActionSpec
from rookery.tasks.catalog import FACTS
from rookery.tasks.compiled.maze import Maze
from rookery.tasks.measure import random_action, random_episodes, random_score

KEY = jax.random.PRNGKey(0)


def test_random_actions_are_legal_and_uniform() -> None:
    legal = jnp.array([[True, False, True, True], [False, False, True, False]])
    draw = jax.vmap(lambda key: random_action(ActionSpec("discrete", (4,)), legal, key))
    actions = np.array(draw(jax.random.split(KEY, 3000)))
    np.testing.assert_allclose(np.bincount(actions[:, 0], minlength=4) / 3000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.04)
    assert np.all(actions[:, 1] == 2)


def test_random_actions_of_other_kinds() -> None:
    legal = jnp.array([[True, False, False, True, True]])
    action = random_action(ActionSpec("multi_discrete", (2, 3)), legal, KEY)
    assert action.shape == (1, 2) and action[0, 0] == 0 and action[0, 1] in (1, 2)
    action = random_action(ActionSpec("box", (5,), ((2.0,) * 5,), ((3.0,) * 5,)), legal, KEY)
    assert action.shape == (1, 5) and np.all((action >= 2) & (action <= 3))
    assert random_action(ActionSpec("multi_binary", (5,)), legal, KEY).dtype == bool


def test_matrix_games_have_exact_random_scores() -> None:
    for name in ("matrix/climbing", "matrix/penalty_100"):
        mean, error, _ = random_score(TASKS[name], 4096, KEY)
        assert FACTS[name].error == 0
        assert abs(mean - FACTS[name].random) < 4 * error
        assert FACTS[name].random == np.mean(TASKS[name].payoff)
        assert FACTS[name].reference == np.max(TASKS[name].payoff)


def test_recorded_random_scores_can_be_measured_again() -> None:
    mean, error, _ = random_score(TASKS["maze/goal"], 2048, jax.random.PRNGKey(1))
    facts = FACTS["maze/goal"]
    assert abs(mean - facts.random) < 4 * np.hypot(error, facts.error)


def test_episodes_stop_at_their_own_end() -> None:
    result = random_episodes(Maze(), 64, KEY)
    assert result["length"].min() < result["length"].max() <= 100
    # Every episode that ended early earned exactly one of the two final rewards.
    early = result["length"] < 100
    assert set(np.unique(result["returns"][early])) <= {-1.0, 200.0}
    np.testing.assert_array_equal(result["success"] == 1, result["returns"][:, 0] == 200)
