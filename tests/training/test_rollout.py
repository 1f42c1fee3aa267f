"""Moving on: a transition where the episode goes on, a fresh episode where it has ended, one member or many."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from small import SMALL_TASKS, assert_close, hasty_jit

from rookery.core.types import where_env
from rookery.training.compiled.rollout import advance

ENVS, MEMBERS = 3, 2
KEY = jax.random.PRNGKey(3)


def opened(task: Any, key: jax.Array) -> Any:
    return jax.vmap(task.reset)(jax.random.split(key, ENVS))


def moved(task: Any, key: jax.Array, last: jax.Array) -> tuple[Any, Any]:
    """One row on from fresh environments, as if `last` had been set in some of them."""
    env, step = opened(task, key)
    step = eqx.tree_at(lambda s: s.last, step, last)
    action = jnp.zeros((ENVS, task.spec.n_agents), jnp.int32)
    return advance(task, env, step, action, key)


@pytest.mark.parametrize("name", ["matrix/climbing", "mpe/simple_spread"])
def test_only_ended_environments_begin_anew(name: str) -> None:
    task = SMALL_TASKS[name]
    step = hasty_jit(lambda last: moved(task, KEY, last))
    none, all_, some = (step(jnp.array(x)) for x in ([False] * 3, [True] * 3, [False, True, False]))
    assert not bool(jnp.any(none[1].first)) and bool(jnp.all(all_[1].first))
    assert some[1].first.tolist() == [False, True, False]
    assert_close(some, where_env(jnp.array([False, True, False]), all_, none), 1e-6)


@pytest.mark.parametrize("ended", [[[False] * 3, [False] * 3], [[False] * 3, [True, False, True]]])
def test_members_move_as_they_would_alone(ended: list[list[bool]]) -> None:
    """The choice to compute resets at all is made for all members together; what comes of it is each one's own."""
    task = SMALL_TASKS["mpe/simple_spread"]
    keys, last = jax.random.split(KEY, MEMBERS), jnp.array(ended)
    together = hasty_jit(jax.vmap(lambda k, x: moved(task, k, x)))(keys, last)
    alone = hasty_jit(lambda k, x: moved(task, k, x))
    for i in range(MEMBERS):
        assert_close(jax.tree.map(lambda x, i=i: x[i], together), alone(keys[i], last[i]), 1e-6)
    # A key that all members share is not batched.
    shared = hasty_jit(jax.vmap(lambda x: moved(task, KEY, x)))(last)
    assert_close(jax.tree.map(lambda x: x[1], shared), alone(KEY, last[1]), 1e-6)
