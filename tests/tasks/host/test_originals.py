"""Compiled particle worlds beside mpe2's: the same positions and actions lead to the same observations and rewards, and
a policy has the same score in both."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_play import need
from small import hasty_jit

from rookery.core.registry import TASKS
from rookery.tasks.compiled.adapter import world_of

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from originals import compare

ORIGINALS = {
    "simple_spread": "simple_spread_v3",
    "simple_speaker_listener": "simple_speaker_listener_v4",
    "simple_reference": "simple_reference_v3",
    "simple_adversary": "simple_adversary_v3",
    "simple_tag": "simple_tag_v3",
    "simple_push": "simple_push_v3",
}


def goal_of(scenario: str, world: Any) -> Any:
    """The landmarks that are meant, as the compiled state has them; None if there are none."""
    if scenario in ("simple_adversary", "simple_push"):
        return jnp.int32(world.landmarks.index(world.agents[0].goal_a))
    if scenario == "simple_speaker_listener":
        return jnp.int32(world.landmarks.index(world.agents[0].goal_b))
    if scenario == "simple_reference":  # each agent knows where the other one should go
        return jnp.asarray([world.landmarks.index(agent.goal_b) for agent in reversed(world.agents)], jnp.int32)
    return None


@pytest.mark.parametrize("scenario", ORIGINALS)
def test_the_same_as_mpe2(scenario: str) -> None:
    need("pettingzoo", "mpe2")
    original = importlib.import_module(f"mpe2.{ORIGINALS[scenario]}").parallel_env()
    compiled = world_of(TASKS[f"mpe/{scenario}"]).env
    step, rng = hasty_jit(compiled.step_env), np.random.default_rng(0)
    _, begun = compiled.reset(jax.random.PRNGKey(0))
    for seed in range(3):
        original.reset(seed=seed)
        world = original.unwrapped.world
        for thing in world.agents:
            thing.state.p_pos *= 0.4  # so that they touch
        state = begun.replace(p_pos=jnp.asarray(np.stack([e.state.p_pos for e in world.entities]), jnp.float32))
        goal = goal_of(scenario, world)
        state = state if goal is None else state.replace(goal=goal)
        for t in range(25):
            actions = {a: int(rng.integers(original.action_space(a).n)) for a in original.agents}
            seen, reward, _, _, _ = original.step(actions)
            mine, state, earned, _, _ = step(jax.random.PRNGKey(t), state, actions)
            for agent in actions:
                np.testing.assert_allclose(mine[agent], seen[agent], atol=2e-3, err_msg=f"{agent} sees, row {t}")
                np.testing.assert_allclose(earned[agent], reward[agent], atol=2e-3, err_msg=f"{agent} earns, row {t}")


def test_a_policy_trained_on_the_compiled_world_scores_the_same_in_mpe2() -> None:
    need("pettingzoo", "mpe2")
    (found,) = compare("simple_speaker_listener", "ippo", steps=20_000, seeds=1, episodes=128).values()
    assert found["compiled"] > -30, "it has learned: random play scores -38"
    assert abs(found["difference"]) < found["interval"]
