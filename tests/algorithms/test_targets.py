"""What is learnt towards: a cut bootstraps, a termination does not; TD(lambda) with 0 is one-step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_close, differs, hasty_jit

from rookery.algorithms.ppo import PPO, Value
from rookery.algorithms.q import Q
from rookery.core.types import Clock, Collect, Rollout, Step
from rookery.nets.agent import Net
from rookery.nets.inputs import own_view
from rookery.tasks.compiled.maze import Maze

SPEC = Maze(height=3, width=3, obstacles=0, limit=2).spec
CLOCK = Clock(jnp.int32(0), jnp.uint32(0), jnp.float32(100))
ENVS, GAMMA = 2, 0.9
NET = Net("mlp", width=8)
Q_ALGO = replace(
    Q().small(), net=NET, last_action=False, gamma=GAMMA, collect=Collect(envs=ENVS, length=3), double=False
)
Q_ALGO = replace(Q_ALGO, replay=replace(Q_ALGO.replay, capacity=2, batch=2, start=2))
PPO_ALGO = PPO(
    actor=NET, critic=NET, gamma=GAMMA, gae_lambda=0.7, epochs=1, collect=Collect(envs=ENVS, length=3),
    value=Value(sees="obs", loss="mse", clip=0.0, normalise="none"),
)  # fmt: skip


def rollout(discount: float) -> Rollout:
    """Two transitions to a last row, reached with this discount; then a reset. The same in every environment."""

    def rows(*values: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jnp.broadcast_to(jnp.array(values, dtype)[:, None], (4, ENVS))

    obs = jnp.array([[0.0, 0.5], [0.5, 0.5], [1.0, 0.5], [0.0, 0.0]])
    step = Step(
        obs=jnp.broadcast_to(obs[:, None, None], (4, ENVS, 1, 2)),
        state=jnp.zeros((4, ENVS, 0)),
        legal=jnp.ones((4, ENVS, 1, 4), bool),
        alive=jnp.ones((4, ENVS, 1), bool),
        reward=rows(0, 1, 2, 0)[..., None],
        discount=rows(1, 1, discount, 1)[..., None],
        first=rows(True, False, False, True, dtype=bool),
        last=rows(False, False, True, False, dtype=bool),
        success=rows(0, 0, 0, 0),
    )
    action = jnp.broadcast_to(jnp.array([1, 3, 0], jnp.int32)[:, None, None], (3, ENVS, 1))
    return Rollout(step, action, {}, None, ~step.last[:-1])


def read(net: Net, params: Any, step: Step) -> np.ndarray:
    """What a network says of the four rows: [row, output]."""
    x = own_view(SPEC, step, agent_id=False)
    return np.asarray(net.unroll(params, net.carry(ENVS, 1), x, step.first)[1])[:, 0, 0]


@pytest.mark.parametrize("lam", [0.0, 0.5])
@pytest.mark.parametrize("discount", [1.0, 0.0], ids=["cut", "terminated"])
def test_q_targets(discount: float, lam: float) -> None:
    algo = replace(Q_ALGO, td_lambda=lam)
    state = algo.init(SPEC, jax.random.PRNGKey(0))
    data = rollout(discount)
    data = Rollout(data.step, data.action, {}, jax.tree.map(lambda x: x[None], algo.carry(SPEC, ENVS)), data.filled)
    _, metrics = hasty_jit(lambda s, r: algo.update(SPEC, s, r, CLOCK, jax.random.PRNGKey(1)))(state, data)
    best = read(algo.net, algo.policy(state), data.step).max(axis=1)
    second = 2 + GAMMA * discount * best[2]
    first = 1 + GAMMA * ((1 - lam) * best[1] + lam * second)
    # Two gradient steps on the whole store: targets are those of the untouched target network in both.
    assert float(metrics["q_target"].value) == pytest.approx((first + second) / 2, rel=1e-4)


@pytest.mark.parametrize("discount", [1.0, 0.0], ids=["cut", "terminated"])
def test_ppo_goals(discount: float) -> None:
    """The value loss before the first gradient step tells the targets: mean of (v - goal)^2 / 2."""
    algo, data = PPO_ALGO, rollout(discount)
    state = algo.init(SPEC, jax.random.PRNGKey(0))
    carry = jnp.zeros((3, ENVS, 1, 0))
    data = Rollout(data.step, data.action, {"log_prob": jnp.full((3, ENVS, 1), np.log(0.25))}, carry, data.filled)
    _, metrics = hasty_jit(lambda s, r: algo.update(SPEC, s, r, CLOCK, jax.random.PRNGKey(1)))(state, data)
    v = read(algo.critic, state.nets["critic"], data.step)[:, 0]
    second = 2 + GAMMA * discount * v[2]
    first = 1 + GAMMA * (0.3 * v[1] + 0.7 * second)
    expected = ((v[0] - first) ** 2 + (v[1] - second) ** 2) / 4
    assert float(metrics["value_loss"].value) == pytest.approx(expected, rel=1e-4)
    errors = np.array([first - v[0], second - v[1]])
    # Advantages are brought to mean 0 and deviation 1 over the two real transitions: the void one has no part.
    assert float(metrics["advantage_std"].value) == pytest.approx(errors.std() / (errors.std() + 1e-5), rel=1e-3)


def test_td_lambda_0_is_one_step() -> None:
    state, data = Q_ALGO.init(SPEC, jax.random.PRNGKey(0)), rollout(1.0)
    data = Rollout(data.step, data.action, {}, jax.tree.map(lambda x: x[None], Q_ALGO.carry(SPEC, ENVS)), data.filled)

    def after(lam: float) -> Any:
        algo = replace(Q_ALGO, td_lambda=lam)
        update = hasty_jit(lambda s, r: algo.update(SPEC, s, r, CLOCK, jax.random.PRNGKey(1)))
        return algo.policy(update(state, data)[0])

    one_step = after(0.0)
    assert_close(one_step, after(1e-12), 1e-6)
    assert differs(one_step, after(0.5))
