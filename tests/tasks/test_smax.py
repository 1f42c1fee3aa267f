"""Battles: death, victory, the time limit, agreement with the wrapped environment."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit

from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.tasks.compiled.adapter import EnvState, load, world_of
from rookery.tasks.compiled.smax import MAPS, MORE_MAPS, Smax

KEY = jax.random.PRNGKey(0)
TASK = TASKS["smax/3m"]
LENGTH = 102


def with_health(state: EnvState, units: list[int], health: float) -> EnvState:
    """The state in which some units have this health."""
    battle = state.env.state
    changed = battle.unit_health.at[jnp.array(units)].set(health)
    return EnvState(state.env.replace(state=battle.replace(unit_health=changed)), state.t)


@pytest.fixture(scope="module")
def stop() -> Any:
    """One transition in which every ally stops."""
    step = hasty_jit(TASK.step)
    return lambda state: step(state, jnp.full(3, 4, jnp.int32), KEY)


def test_all_maps_are_listed() -> None:
    known = load("smax.smax_env", "MAP_NAME_TO_SCENARIO")
    assert set(MAPS) == set(known) and len(MAPS) == 14
    assert not set(MORE_MAPS) & set(known), "jaxmarl has such a map by now"


NAMES = {"m": "marine", "s": "stalker", "z": "zealot"}


@pytest.mark.parametrize("name", MORE_MAPS)
def test_more_maps_have_the_units_of_their_names(name: str) -> None:
    """Types and health of jaxmarl's own tables, in the state that an episode begins in."""
    env = world_of(Smax(map=name)).env
    units = [env.unit_type_names[i] for i in np.array(env.scenario)]
    if name == "corridor":
        assert units == ["zealot"] * 6 + ["zergling"] * 24
    else:
        ours, theirs = name.split("_vs_")
        assert units == [NAMES[ours[1]]] * int(ours[0]) + [NAMES[theirs[1]]] * int(theirs[0])
        assert (env.num_allies, env.num_enemies) == (int(ours[0]), int(theirs[0]))
    assert Smax(map=name).spec.n_agents == env.num_allies


def test_corridor_begins_with_healthy_units_on_two_sides() -> None:
    state, step = TASKS["smax/corridor"].reset(KEY)
    battle = state.env.state
    assert list(battle.unit_health) == [150.0] * 6 + [35.0] * 24
    assert np.all(battle.unit_positions[:6, 0] < 16) and np.all(battle.unit_positions[6:, 0] > 16)
    assert step.legal.shape == (6, 5 + 24) and not np.any(step.legal[:, 5:]), "nobody is in range yet"


def test_a_dead_ally(stop: Any) -> None:
    state, _ = TASK.reset(KEY)
    state, step = stop(with_health(state, [1], 0.0))
    assert list(step.alive) == [True, False, True]
    assert list(step.discount) == [1.0, 0.0, 1.0]
    assert list(step.legal[1]) == [False] * 4 + [True] + [False] * 3, "the dead can only stop"
    assert not step.last
    state, step = stop(state)
    assert step.discount[1] == 0.0, "and stays dead"


def test_defeat_terminates(stop: Any) -> None:
    _, step = stop(with_health(TASK.reset(KEY)[0], [0, 1, 2], 0.0))
    assert step.last and not np.any(step.discount) and step.success == 0.0


def test_victory_terminates(stop: Any) -> None:
    _, step = stop(with_health(TASK.reset(KEY)[0], [3, 4, 5], 0.0))
    assert step.last and not np.any(step.discount)
    assert step.success == 1.0
    assert np.all(step.reward >= 1.0), "the bonus for a win"


def test_a_draw_is_no_victory(stop: Any) -> None:
    _, step = stop(with_health(TASK.reset(KEY)[0], [0, 1, 2, 3, 4, 5], 0.0))
    assert step.last and step.success == 0.0


def test_time_limit_is_a_cut(stop: Any) -> None:
    state, _ = TASK.reset(KEY)
    for t, last in ((98, False), (99, True)):
        _, step = stop(EnvState(state.env, jnp.array(t, jnp.int32)))
        assert bool(step.last) is last
        assert np.all(step.discount == 1) and step.success == 0.0


def test_same_trajectory_as_jaxmarl(rollout: Any) -> None:
    """Same keys, same actions: the same observations, state, masks and rewards."""
    _, steps, actions = rollout(TASK, LENGTH, KEY)
    env = world_of(TASK).env
    step_env, available = hasty_jit(env.step_env), hasty_jit(env.get_avail_actions)
    reset_key, key = jax.random.split(KEY)
    _, state = env.reset(reset_key)
    for t, k in enumerate(jax.random.split(key, LENGTH)[:12]):
        named = {a: actions[t, i] for i, a in enumerate(env.agents)}
        obs, state, reward, dones, _ = step_env(jax.random.split(k)[1], state, named)
        masks = available(state)
        np.testing.assert_allclose(steps.obs[t], np.stack([obs[a] for a in env.agents]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(steps.state[t], obs["world_state"], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(steps.legal[t], np.stack([masks[a] for a in env.agents]).astype(bool))
        np.testing.assert_allclose(steps.reward[t], np.stack([reward[a] for a in env.agents]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(steps.alive[t], ~np.stack([dones[a] for a in env.agents]))


def test_position_and_entities() -> None:
    state, step = TASK.reset(KEY)
    battle = state.env.state
    np.testing.assert_allclose(step.obs[:, jnp.array(TASK.spec.position)], battle.unit_positions[:3] / 32, rtol=1e-5)
    ally = TASK.spec.entities[0]
    block = step.obs[0, ally.start : ally.start + ally.size]
    apart = (battle.unit_positions[1] - battle.unit_positions[0]) / 9.0  # a marine sees 9 far
    np.testing.assert_allclose(block[1:3], apart, rtol=1e-4)


def test_attacks_are_about_the_enemies_in_their_place(rollout: Any) -> None:
    """Only an enemy that is alive and seen can be attacked: its entry in the observation is not empty."""
    _, steps, _ = rollout(TASK, LENGTH, KEY)
    enemy = next(e for e in TASK.spec.entities if e.name == "enemy")
    ours = steps.legal[..., enemy.first_action : enemy.first_action + enemy.count]
    seen = steps.obs[..., enemy.start : enemy.start + enemy.count * enemy.size].reshape(*ours.shape, -1)
    possible = np.asarray(ours & steps.alive[..., None])
    assert TASK.spec.action.width == enemy.first_action + enemy.count
    assert not np.any(possible & np.all(np.asarray(seen) == 0, axis=-1))
    # Some can be attacked while others cannot, so that no other order would do.
    assert len(np.unique(possible.reshape(-1, enemy.count), axis=0)) > 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"map": "2s3zz"}, "2s3z"), ({"limit": -1}, "at least 1")],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Smax(**settings)
