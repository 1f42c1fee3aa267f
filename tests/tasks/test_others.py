"""Overcooked, Hanabi, the switch riddle, the coin game and STORM: what sets each apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit

from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.tasks.compiled.adapter import load, world_of
from rookery.tasks.compiled.hanabi import Hanabi
from rookery.tasks.compiled.overcooked import LAYOUTS, Overcooked
from rookery.tasks.compiled.riddle import Riddle
from rookery.tasks.compiled.social import Coin, Storm

KEY = jax.random.PRNGKey(0)


def test_all_kitchens_are_listed() -> None:
    assert set(LAYOUTS) == set(load("overcooked_v2", "overcooked_v2_layouts"))


def test_kitchen_can_be_seen_in_part() -> None:
    assert Overcooked().spec.obs_shape == (4, 5, 30)
    assert Overcooked(view=1).spec.obs_shape == (3, 3, 30)


def test_shaping_is_added_to_the_reward(rollout: Any) -> None:
    length = 120
    _, plain, _ = rollout(Overcooked(), length, KEY)
    _, shaped, _ = rollout(Overcooked(shaping=1.0), length, KEY)
    assert not np.any(plain.reward[plain.reward < 20])
    assert np.any(shaped.reward != plain.reward)
    np.testing.assert_array_equal(shaped.obs, plain.obs)


def test_only_one_hanabi_player_may_move(rollout: Any) -> None:
    first, steps, _ = rollout(TASKS["hanabi/2p"], 102, KEY)
    free = np.sum(first.legal, axis=-1) > 1
    assert np.sum(free) == 1
    end = int(np.argmax(steps.last))
    assert end < 99 and not np.any(steps.discount[end]), "a game ends by its rules"
    passing = steps.legal[:end, :, -1]
    assert np.all(np.sum(passing, axis=1) == 1), "whoever waits can only pass"


def test_riddle_by_hand() -> None:
    task = Riddle()
    assert task.spec.limit == 6
    state, _ = task.reset(KEY)
    tell = jnp.full(3, 2, jnp.int32)
    _, step = task.step(state, tell, KEY)
    assert step.last and np.all(step.reward == -1) and not np.any(step.discount) and step.success == 0
    known = type(state)(state.env.replace(has_been=jnp.ones(3, state.env.has_been.dtype)), state.t)
    _, step = task.step(known, tell, KEY)
    assert step.last and np.all(step.reward == 1) and step.success == 1
    late = type(state)(state.env, jnp.array(5, jnp.int32))
    _, step = task.step(late, jnp.zeros(3, jnp.int32), KEY)
    assert step.last and np.all(step.discount == 1), "no more days: a cut"


def test_coins_by_hand() -> None:
    for shared, rewards in ((False, [1.0, -2.0]), (True, [-1.0, -1.0])):
        task = Coin(shared=shared)
        state, _ = task.reset(KEY)
        cells = {"red_pos": [0, 0], "blue_pos": [2, 2], "red_coin_pos": [2, 0], "blue_coin_pos": [0, 1]}
        env = state.env.replace(**{k: jnp.array(v, state.env.red_pos.dtype) for k, v in cells.items()})
        # Red steps right onto blue's coin; blue stays.
        _, step = hasty_jit(task.step)(type(state)(env, state.t), jnp.array([0, 4], jnp.int32), KEY)
        np.testing.assert_array_equal(step.reward, rewards)
        assert task.spec.cooperative is shared
        assert task.spec.teams == (() if shared else ("red", "blue"))


def test_storm_shows_an_agent_its_own_inventory_first() -> None:
    task = Storm(variant="grid", agents=4)
    assert not task.spec.cooperative and len(set(task.spec.teams)) == 4
    views, inventory = jnp.zeros((4, 5, 5, 16)), jnp.arange(20).reshape(5, 4)
    # Rows: two kinds of coins, whether ready, and what is shown of both kinds; columns: agents.
    seen = world_of(task).read({"observations": views, "inventory": inventory})
    assert seen[2].shape == task.spec.obs_shape
    assert list(seen[2][-11:]) == [2, 6, 10, 14, 15, 12, 13, 18, 19, 16, 17]


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (Overcooked, {"layout": "cramped_rom"}, "cramped_room"),
        (Overcooked, {"view": -1}, "task.view must be at least 0"),
        (Hanabi, {"players": 6}, "task.players must be at least 2 and at most 5"),
        (Riddle, {"agents": 2}, "at least 3"),
        (Riddle, {"limit": -1}, "task.limit must be at least 0"),
        (Coin, {"limit": 0}, "at least 1"),
        (Storm, {"variant": "gird"}, "grid"),
        (Storm, {"agents": 3}, "exactly 2"),
        (Storm, {"variant": "grid", "agents": 9}, "2 to 8"),
    ],
)
def test_bad_settings(make: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**settings)
