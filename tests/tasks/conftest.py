"""Random rollouts of one environment, shared by the tests of tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import pytest
from small import hasty_jit

from rookery.core.types import Step
from rookery.tasks.measure import random_action


@partial(hasty_jit, static_argnums=(0, 1))
def random_rollout(task: Any, length: int, key: jax.Array) -> tuple[Step, Step, jax.Array]:
    """The first step, the `length` steps that uniformly random legal actions lead to (no reset), and these actions."""
    reset_key, key = jax.random.split(key)
    state, first = task.reset(reset_key)

    def advance(carry: Any, key: jax.Array) -> Any:
        state, step = carry
        act_key, step_key = jax.random.split(key)
        action = random_action(task.spec.action, step.legal, act_key)
        state, step = task.step(state, action, step_key)
        return (state, step), (step, action)

    _, (steps, actions) = jax.lax.scan(advance, (state, first), jax.random.split(key, length))
    return first, steps, actions


@pytest.fixture(scope="session")
def rollout() -> Any:
    """`random_rollout`, whose compilations are shared between tests."""
    return random_rollout
