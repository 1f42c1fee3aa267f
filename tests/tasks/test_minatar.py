"""MinAtar: agreement with gymnax, ends and cuts, sticky actions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.registry import TASKS
from rookery.tasks.compiled.minatar import GAMES, Minatar, MinatarState, env_of

KEY = jax.random.PRNGKey(0)
PLANES = {"asterix": 4, "breakout": 4, "freeway": 7, "space_invaders": 6}
ACTIONS = {"asterix": 5, "breakout": 3, "freeway": 3, "space_invaders": 4}


@pytest.mark.parametrize("game", GAMES)
def test_shapes(game: str) -> None:
    spec = TASKS[f"minatar/{game}"].spec
    assert spec.obs_shape == (10, 10, PLANES[game]) and spec.action.sizes == (ACTIONS[game],)
    assert spec.limit == env_of(game).default_params.max_steps_in_episode


def test_same_trajectory_as_gymnax(rollout: Any) -> None:
    """gymnax's own step, which resets by itself, up to the first end."""
    task = TASKS["minatar/breakout"]
    env = env_of("breakout")
    _, steps, actions = rollout(task, 120, KEY)
    reset_key, key = jax.random.split(KEY)
    _, state = env.reset(stream(reset_key, "game"))
    ends = 0
    for t, k in enumerate(jax.random.split(key, 120)):
        state_key = stream(jax.random.split(k)[1], "game")
        _, state, reward, terminated, truncated, info = env.step(state_key, state, actions[t, 0])
        np.testing.assert_array_equal(steps.obs[t, 0], info["final_observation"])
        assert steps.reward[t, 0] == reward and bool(steps.last[t]) is bool(terminated)
        assert steps.discount[t, 0] == 1.0 - terminated and not truncated
        if terminated:
            ends += 1
            break
    assert ends == 1, "the game must end within the rollout"


def test_a_lost_ball_ends_breakout_and_a_caught_one_does_not() -> None:
    task = TASKS["minatar/breakout"]
    state, _ = task.reset(KEY)
    # The ball is one above the paddle's row and comes down to the right, from column 4 to 5.
    down_right = {"ball_x": 4, "ball_y": 8, "ball_dir": 2, "last_x": 3, "last_y": 7}
    for paddle, ends in ((5, False), (9, True)):
        game = state.game.replace(pos=jnp.array(paddle), **{k: jnp.array(v) for k, v in down_right.items()})
        _, step = task.step(MinatarState(game, state.action, state.t), jnp.array([0]), KEY)
        assert bool(step.last) is ends and step.discount[0] == 1.0 - ends


@pytest.mark.parametrize("game", ["freeway", "breakout"])
def test_time_limit_is_a_cut(game: str) -> None:
    task = Minatar(game=game, limit=7)  # type: ignore[arg-type]
    step_of = hasty_jit(task.step)
    state, _ = task.reset(KEY)
    for t in range(7):
        state, step = step_of(state, jnp.array([0]), KEY)
        assert bool(step.last) is (t == 6) and step.discount[0] == 1


def test_gymnax_own_limit_is_out_of_the_way() -> None:
    task = Minatar(game="freeway", limit=5000)
    state, _ = task.reset(KEY)
    late = MinatarState(state.game.replace(time=jnp.array(2499)), state.action, jnp.array(2499, jnp.int32))
    _, step = task.step(late, jnp.array([0]), KEY)
    assert not step.last and step.discount[0] == 1


def test_sticky_actions() -> None:
    task = Minatar(game="breakout", sticky=0.25)
    state, _ = task.reset(KEY)
    right = MinatarState(state.game, jnp.array(2, jnp.int32), state.t)
    after, _ = jax.vmap(lambda key: task.step(right, jnp.array([1]), key))(jax.random.split(KEY, 1000))
    moved = np.array(after.game.pos) - int(state.game.pos)
    assert set(np.unique(moved)) == {-1, 1}
    assert abs(np.mean(moved == 1) - 0.25) < 0.05
    np.testing.assert_array_equal(after.action, np.where(moved == 1, 2, 1))


def test_a_game_imports_its_own_module_only() -> None:
    code = (
        "import sys, rookery.tasks\n"
        "from rookery.core.registry import TASKS\n"
        "TASKS['minatar/breakout'].spec\n"
        "assert 'gymnax.environments.minatar.breakout' in sys.modules\n"
        "assert not {'gymnax.environments.bsuite', 'matplotlib', 'jaxmarl'} & set(sys.modules)\n"
        "import gymnax\n"
        "assert gymnax.make('Breakout-MinAtar')[0].num_actions == 3\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == ""


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="sticky"):
        Minatar(sticky=1.0)
    with pytest.raises(ConfigError, match="at least 1"):
        Minatar(limit=0)
    with pytest.raises((ConfigError, TypeError)):
        Minatar(game="seaquest")  # type: ignore[arg-type]
