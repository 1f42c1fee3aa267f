"""Policies answer what an environment returns by what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery.algorithms  # noqa: F401  (fills the registry)
from rookery.core.errors import ConfigError
from rookery.core.registry import PRESETS, find_task
from rookery.core.types import Clock
from rookery.tasks.compiled.mpe import Mpe
from rookery.tasks.host.factory_task import Factory
from rookery.tasks.host.gymnasium_task import Gymnasium
from rookery.training.config import RunConfig
from rookery.training.run import Policy

KEYS = [jax.random.PRNGKey(i) for i in range(30)]


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tasks" / "host")


def policy_of(task: Any, preset: str = "ippo", shift: float = 0.0) -> Policy:
    """The untrained policy, its weights moved."""
    algo = PRESETS[preset].small()
    params = algo.snapshot(algo.init(task.spec, jax.random.PRNGKey(0)))
    params = jax.tree.map(lambda x: x + shift if jnp.issubdtype(x.dtype, jnp.floating) else x, params)
    return Policy(RunConfig(preset, "test", algo, task), params, {}, Clock(jnp.int32(0), jnp.uint32(0), jnp.float32(1)))


def test_box_actions_stay_in_their_bounds() -> None:
    policy, env = policy_of(Gymnasium(id="Pendulum-v1"), "ppo", shift=3.0), Gymnasium(id="Pendulum-v1").make()._env
    seen, space = env.reset(seed=0)[0], env.action_space
    actions = [policy.act(seen, key) for key in [None, *KEYS]]
    assert all(a.shape == (1,) and a.dtype == np.float32 and space.contains(a) for a in actions)
    assert max(abs(a[0]) for a in actions) == 2.0, "some must have been clipped"
    free = policy_of(Gymnasium(id="Pendulum-v1", clip_actions=False), "ppo", shift=3.0)
    assert max(abs(free.act(seen, key)[0]) for key in KEYS) > 2.0
    stacked = policy.act(seen[None])
    assert stacked.shape == (1, 1) and stacked[0] == policy.act(seen)


def test_a_dict_with_its_mask_is_one_observation() -> None:
    policy = policy_of(Factory(path="host_toys:menu"))
    for dish in range(3):
        assert policy.act({"dish": dish, "action_mask": np.int8([0, 1])}) == 6
        assert policy.act({"dish": dish, "action_mask": np.int8([1, 0])}) == 5
    assert policy.act({"agent": {"dish": 1, "action_mask": np.int8([0, 1])}}) == {"agent": 6}
    both = {"dish": 0, "action_mask": np.int8([1, 1])}
    assert {policy.act(both, key) for key in KEYS} == {5, 6}
    assert policy.act(both, legal=[True, False]) == 5


def test_branches_are_padded_one_by_one() -> None:
    task = Factory(path="host_toys:two_menus")
    policy, space = policy_of(task), task.make()._env.action_space
    actions = [policy.act((np.float32([0.5, 0.5]), 2), key) for key in KEYS]
    assert all(space.contains(tuple(pair)) for pair in actions)
    for agent, branch, sizes in ((0, 1, {0, 1, 2}), (1, 0, {0, 1, 2}), (0, 0, {0, 1}), (1, 1, {0, 1})):
        assert {int(pair[agent][branch]) for pair in actions} == sizes
    with pytest.raises(ConfigError, match="3 observations"):
        policy.act((np.zeros(2), 1, 1))


def test_players_take_turns() -> None:
    pytest.importorskip("pettingzoo")
    task = find_task("pettingzoo:pettingzoo.classic.tictactoe_v3")
    policy, env, moves = policy_of(task), task.make()._env, 0
    env.reset(seed=0)
    for player in env.agent_iter():
        seen, _, over, cut, _ = env.last()
        action = None if over or cut else policy.act({player: seen})[player]
        assert action is None or seen["action_mask"][action]
        env.step(action)
        moves += action is not None
    assert moves >= 5
    with pytest.raises(ConfigError, match="unknown agents"):
        policy.act({"player_9": seen})


def test_actions_of_compiled_tasks_lose_their_padding() -> None:
    task = Mpe(scenario="simple_speaker_listener", action_type="continuous")
    policy = policy_of(task, shift=3.0)
    seen = dict(zip(task.spec.agents, (np.ones(n, np.float32) for n in task.spec.obs_sizes), strict=True))
    actions = policy.act(seen, KEYS[0])
    assert [actions[name].shape for name in task.spec.agents] == [(3,), (5,)]
    assert all((a >= 0).all() and (a <= 1).all() for a in actions.values())
    with pytest.raises(ConfigError, match=r"has shape \(99,\)"):
        policy.act({task.spec.agents[0]: np.ones(99)})
