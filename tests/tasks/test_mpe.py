"""Particle worlds: time limit, teams, agreement with the wrapped environment."""

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
from rookery.tasks.compiled.adapter import construct, load, world_of
from rookery.tasks.compiled.mpe import _CLASSES, _FACMAC, Mpe, _entities, _Lean

KEY = jax.random.PRNGKey(0)


def test_episode_is_cut_after_exactly_25_transitions(rollout: Any) -> None:
    _, steps, _ = rollout(TASKS["mpe/simple_spread"], 27, KEY)
    assert list(np.flatnonzero(steps.last)) == [24, 25, 26]
    assert np.all(steps.discount == 1), "a time limit keeps bootstrapping"


def test_limit_is_a_setting() -> None:
    assert Mpe(limit=2).spec.limit == 2


def test_same_trajectory_as_jaxmarl(rollout: Any) -> None:
    """Same keys, same actions: the same observations and rewards, number for number."""
    _, steps, actions = rollout(TASKS["mpe/simple_spread"], 27, KEY)
    env = load("mpe", "SimpleSpreadMPE")()
    reset_key, key = jax.random.split(KEY)
    _, state = env.reset(reset_key)
    for t, k in enumerate(jax.random.split(key, 27)[:10]):
        named = {a: actions[t, i] for i, a in enumerate(env.agents)}
        obs, state, reward, _, _ = env.step_env(jax.random.split(k)[1], state, named)
        np.testing.assert_allclose(steps.obs[t], np.stack([obs[a] for a in env.agents]), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(steps.reward[t], np.stack([reward[a] for a in env.agents]), rtol=1e-5)


def moved(env: Any) -> Any:
    """What a step makes of many states in which things touch."""

    def one(key: jax.Array) -> Any:
        begin, act, step = jax.random.split(key, 3)
        _, state = env.reset(begin)
        keys = jax.random.split(act, len(env.agents))
        actions = {name: env.action_space(name).sample(k) for name, k in zip(env.agents, keys, strict=True)}
        return env.step_env(step, state.replace(p_pos=0.2 * state.p_pos), actions)[:3]

    return hasty_jit(jax.vmap(one))(jax.random.split(KEY, 64))


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("name", ["simple_speaker_listener", "simple_world_comm", "simple_facmac_9a"])
def test_the_same_physics_as_jaxmarl(name: str, noise: float) -> None:
    """Also where landmarks and agents of all sizes touch, where nothing does, and where there is noise."""
    theirs, ours = (construct("mpe", _CLASSES[name], *lean, **_FACMAC.get(name, {})) for lean in ((), (_Lean,)))
    for env in (theirs, ours):
        env.u_noise = env.c_noise = jnp.full(env.num_agents, noise)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), moved(ours), moved(theirs))


def test_position_and_entities_of_spread() -> None:
    task = TASKS["mpe/simple_spread"]
    state, step = task.reset(KEY)
    where = state.env.p_pos
    np.testing.assert_allclose(step.obs[:, jnp.array(task.spec.position)], where[:3])
    landmark = next(e for e in task.spec.entities if e.name == "landmark")
    block = step.obs[1, landmark.start : landmark.start + landmark.count * landmark.size].reshape(-1, landmark.size)
    np.testing.assert_allclose(block, where[3:] - where[1], rtol=1e-6)


def test_more_agents_in_spread() -> None:
    spec = Mpe(agents=5).spec
    assert spec.n_agents == 5
    assert [e.count for e in spec.entities if e.name == "landmark"] == [5]


def test_teams() -> None:
    spec = Mpe(scenario="simple_tag").spec
    assert spec.teams == ("adversary",) * 3 + ("good",) and not spec.cooperative
    hunters = Mpe(scenario="simple_tag", team="adversary").spec
    assert hunters.agents == spec.agents[:3] and hunters.teams == () and hunters.cooperative
    assert hunters.obs_shape == (16,)
    prey = Mpe(scenario="simple_tag", team="good").spec
    assert prey.agents == spec.agents[3:] and prey.obs_shape == (14,)
    assert [(e.name, e.count) for e in prey.entities[2:]] == [("hunter", 3)]


def test_sides_of_a_hunt_are_different_kinds() -> None:
    """Where a kind stands in a hunter's observation there are the positions of that kind."""
    task = Mpe(scenario="simple_tag", team="adversary")
    state, step = task.reset(KEY)
    where = state.env.p_pos
    kinds = {e.name: step.obs[1, e.start : e.start + e.count * e.size].reshape(-1, 2) for e in task.spec.entities}
    np.testing.assert_allclose(kinds["hunter"], where[jnp.array([0, 2])] - where[1], rtol=1e-5)
    np.testing.assert_allclose(kinds["prey"], where[3:4] - where[1], rtol=1e-5)
    # Without a team, what stands between hunters and prey is the other side for both.
    (opponent,) = (
        e for e in _entities("simple_tag", "all", ("adversary",) * 2 + ("good",) * 2, 2) if e.name == "opponent"
    )
    assert (opponent.start, opponent.count) == (4 + 2 * 2 + 2, 1)
    ordered = {name: [e.name for e in TASKS[f"mpe/{name}"].spec.entities if e.ordered] for name in _CLASSES}
    assert {name: kinds for name, kinds in ordered.items() if kinds} == {
        "simple_reference": ["landmark"],
        "simple_facmac_6a": ["prey"],
        "simple_facmac_9a": ["prey"],
    }


@pytest.mark.parametrize(("opponents", "action_type"), [("random", "discrete"), ("idle", "continuous")])
def test_other_team_moves_by_itself(opponents: Any, action_type: Any) -> None:
    task = Mpe(scenario="simple_tag", team="adversary", opponents=opponents, action_type=action_type)
    action = jnp.zeros((3, *task.spec.action.shape), task.spec.action.dtype)

    @hasty_jit
    def prey_speed(key: jax.Array) -> jax.Array:
        state, _ = task.reset(KEY)
        # Far from everybody, so that nothing pushes the prey.
        env = state.env.replace(p_pos=state.env.p_pos.at[3].set(jnp.array([50.0, 50.0])))
        state, step = task.step(type(state)(env, state.t), action, key)
        assert step.reward.shape == (3,)
        return jnp.linalg.norm(state.env.p_vel[3])

    speeds = np.array([prey_speed(jax.random.PRNGKey(i)) for i in range(10)])
    assert np.any(speeds > 1e-3) if opponents == "random" else np.all(speeds < 1e-6)


def test_continuous_actions() -> None:
    padded = Mpe(scenario="simple_speaker_listener", action_type="continuous")
    spec = padded.spec
    assert (spec.action.kind, spec.action.sizes) == ("box", (5,))
    low, high = spec.action.bounds
    assert low.shape == high.shape == (2, 5) and np.all(low == 0.0) and np.all(high == 1.0)
    assert spec.action_sizes == (3, 5)
    _, step = hasty_jit(padded.reset)(KEY)
    assert np.asarray(step.legal).astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "padding is illegal"
    task = Mpe(action_type="continuous")
    state, step = task.reset(KEY)
    assert np.all(step.legal)
    right = jnp.zeros((3, 5)).at[:, 2].set(1.0)
    state, _ = hasty_jit(task.step)(state, right, KEY)
    assert np.all(state.env.p_vel[:3, 0] > 0.1)


def test_prey_of_facmac_belongs_to_the_environment() -> None:
    task = TASKS["mpe/simple_facmac_6a"]
    assert task.spec.n_agents == 6 and len(world_of(task).ids) == 8


def facmac(places: list[list[float]]) -> Any:
    """The world of simple_facmac_3a with three hunters, a prey and two landmarks in these places, at rest."""
    state, _ = TASKS["mpe/simple_facmac_3a"].reset(KEY)
    where = jnp.array([*places, [0.0, 1.0], [3.0, 3.0]])
    return type(state)(state.env.replace(p_pos=where, p_vel=jnp.zeros_like(where)), state.t)


def test_sight_of_facmac_is_of_each_thing_by_itself() -> None:
    """A hunter sees what is within 1.5 of it, however far away the others are."""
    task = TASKS["mpe/simple_facmac_3a"]
    state = facmac([[0.0, 0.0], [5.0, 5.0], [-1.0, 0.0], [1.0, 0.0]])
    _, step = hasty_jit(task.step)(state, jnp.zeros((3, 5)), KEY)
    obs, where = np.asarray(step.obs[0]), np.asarray(state.env.p_pos)
    np.testing.assert_allclose(obs[4:8], [*where[4], 0.0, 0.0], atol=1e-6)  # the near landmark only
    np.testing.assert_allclose(obs[8:12], [0.0, 0.0, *where[2]], atol=1e-6)  # of the hunters, the near one
    np.testing.assert_allclose(obs[12:14], where[3], atol=0.1)  # the prey, which has moved
    assert np.any(obs[14:16] != 0.0)
    np.testing.assert_array_equal(step.obs[1, 4:], 0.0)


def test_prey_of_facmac_flees_the_nearest_hunter() -> None:
    task = TASKS["mpe/simple_facmac_3a"]
    state = facmac([[-0.3, -0.5], [5.0, 5.0], [5.0, -5.0], [0.0, -0.5]])
    speeds = [hasty_jit(task.step)(state, jnp.zeros((3, 5)), jax.random.PRNGKey(i))[0].env.p_vel[3] for i in range(5)]
    assert np.all(np.array(speeds)[:, 0] > 0.05)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scenario": "simple_spred"}, "simple_spread"),
        ({"scenario": "simple_tag", "team": "adversaries"}, "adversary"),
        ({"scenario": "simple_spread", "team": "good"}, "all"),
        ({"scenario": "simple_facmac"}, "continuous"),
        ({"scenario": "simple_tag", "agents": 4}, "simple_spread only"),
        ({"agents": 1}, "at least 2"),
        ({"limit": 0}, "at least 1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Mpe(**settings)


@pytest.mark.parametrize("settings", [{"opponents": "asleep"}, {"action_type": "discret"}])
def test_misspelt_choices(settings: dict[str, Any]) -> None:
    # Where annotations are checked at run time, the checker speaks first.
    with pytest.raises((ConfigError, TypeError)):
        Mpe(**settings)
