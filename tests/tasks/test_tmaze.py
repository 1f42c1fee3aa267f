"""T-mazes: the rules, and that nothing but the first observation tells which arm is right."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit

from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.tasks.catalog import FACTS
from rookery.tasks.compiled.tmaze import DOWN, FORWARD, UP, Tmaze, TmazeState
from rookery.tasks.measure import episodes_of

KEY = jax.random.PRNGKey(0)


def at(arm: int, cell: int, t: int = 5) -> TmazeState:
    return TmazeState(*(jnp.array(x, jnp.int32) for x in (arm, cell, t)))


def test_the_cue_names_the_arm() -> None:
    state, step = jax.vmap(Tmaze().reset)(jax.random.split(KEY, 200))
    np.testing.assert_array_equal(step.obs[:, 0, :2], np.eye(2)[np.array(state.arm)])
    np.testing.assert_array_equal(step.obs[:, 0, 2:], np.tile([1.0, 0.0], (200, 1)))
    assert 60 < int(state.arm.sum()) < 140


@pytest.mark.parametrize(
    ("arm", "cell", "action", "reward", "ends", "success", "moves"),
    [
        (0, 3, FORWARD, 0.0, False, 0, 1),
        (0, 3, UP, -0.1, False, 0, 0),
        (0, 3, DOWN, -0.1, False, 0, 0),
        (0, 10, FORWARD, -0.1, False, 0, 0),
        (0, 10, UP, 4.0, True, 1, 0),
        (0, 10, DOWN, -0.1, True, 0, 0),
        (1, 10, UP, -0.1, True, 0, 0),
        (1, 10, DOWN, 4.0, True, 1, 0),
    ],
)
def test_rules(arm: int, cell: int, action: int, reward: float, ends: bool, success: int, moves: int) -> None:
    state, step = Tmaze().step(at(arm, cell), jnp.array([action]), KEY)
    assert float(step.reward[0]) == pytest.approx(reward)
    assert bool(step.last) is ends and float(step.discount[0]) == 1.0 - ends and step.success == success
    assert int(state.cell) == cell + moves
    junction = cell + moves == 10
    np.testing.assert_array_equal(step.obs[0], [0, 0, not junction, junction])


def test_time_limit_is_a_cut() -> None:
    _, step = Tmaze().step(at(0, 3, t=49), jnp.array([UP]), KEY)
    assert step.last and step.discount[0] == 1


def test_after_the_first_step_nothing_tells_the_cue() -> None:
    """The same actions bring the same observations and rewards whichever arm is right, until the choice is made."""
    task = Tmaze(length=4, limit=30)
    actions = jax.random.randint(KEY, (200, 30, 1), 0, 3)

    def play(arm: Any, actions: Any) -> Any:
        def advance(state: TmazeState, action: Any) -> Any:
            state, step = task.step(state, action, KEY)
            return state, (step.obs, step.reward, step.last, step.discount)

        start = TmazeState(arm, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return jax.lax.scan(advance, start, actions)[1]

    up, down = (hasty_jit(jax.vmap(play, (None, 0)))(jnp.array(arm, jnp.int32), actions) for arm in (0, 1))
    np.testing.assert_array_equal(up[0], down[0])
    np.testing.assert_array_equal(up[2], down[2])
    before_choice = np.cumsum(np.array(up[3][..., 0] == 0), axis=1) == 0
    assert before_choice.any() and not before_choice.all()
    np.testing.assert_array_equal(up[1][before_choice], down[1][before_choice])


def test_the_best_without_memory_is_chance_and_with_memory_all() -> None:
    task = TASKS["tmaze/10"]

    def forget(_: Any, step: Any, key: Any) -> Any:
        at_junction = step.obs[0, 3] == 1
        return jnp.where(at_junction, UP, FORWARD)[None].astype(jnp.int32)

    def remember(state: Any, step: Any, key: Any) -> Any:
        at_junction = step.obs[0, 3] == 1
        return jnp.where(at_junction, UP + state.arm, FORWARD)[None].astype(jnp.int32)

    forgetful, mindful = (hasty_jit(partial(episodes_of, p, task, 2000))(KEY) for p in (forget, remember))
    assert abs(float(forgetful["success"].mean()) - 0.5) < 0.05
    assert float(mindful["success"].mean()) == FACTS["tmaze/10"].reference == 1.0
    assert np.all(mindful["length"] == 11) and np.all(mindful["returns"] == 4.0)


@pytest.mark.parametrize("length", [10, 30, 100])
def test_random_score_is_exact(length: int) -> None:
    task, facts = TASKS[f"tmaze/{length}"], FACTS[f"tmaze/{length}"]
    here, chosen = np.eye(length + 1)[0], 0.0
    for _ in range(task.limit):
        chosen += here[-1] * 2 / 3
        after = here * 2 / 3
        after[-1] = here[-1] / 3
        after[1:] += here[:-1] / 3
        here = after
    np.testing.assert_allclose(facts.random, chosen / 2, atol=1e-6)


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="more than length"):
        Tmaze(length=50)
    with pytest.raises(ConfigError, match="length"):
        Tmaze(length=0)
