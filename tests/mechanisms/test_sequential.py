"""Agents that learn one after the other: each agent's advantage carries the ratios of those before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from small import assert_close, differs, hasty_jit

from rookery.algorithms.ppo import PPO
from rookery.core.keys import stream
from rookery.core.types import Clock, Collect
from rookery.mechanisms.sequential import next_factor
from rookery.nets.agent import Net
from rookery.nets.optimiser import Optimiser
from rookery.ops import batches, distributions
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.compiled.rollout import collect, open_worlds

TASK = Mpe(agents=3, limit=3)
SPEC = TASK.spec
CLOCK = Clock(jnp.int32(0), jnp.uint32(30), jnp.float32(100))
KEY = jax.random.PRNGKey(0)
NET = Net("mlp", width=8, layers=1)
HAPPO = PPO(
    actor=replace(NET, weights="per_agent"),
    critic=NET,
    collect=Collect(envs=4, length=6),
    epochs=2,
    optimiser=Optimiser(lr=3e-2),
    order="sequential",
    align=0.5,
)


def test_the_factor_is_the_product_of_the_ratios_so_far() -> None:
    """Probabilities went from 0.5 to 0.6 and from 0.4 to 0.1; the third agent is dead."""
    row = lambda x: jnp.full((1, 1, 1), x)  # noqa: E731
    factor, alive, dead = row(1.0), row(True), row(False)
    factor = next_factor(factor, jnp.log(row(0.6)), jnp.log(row(0.5)), alive)
    np.testing.assert_allclose(factor, 1.2, rtol=1e-6)
    factor = next_factor(factor, jnp.log(row(0.1)), jnp.log(row(0.4)), alive)
    np.testing.assert_allclose(factor, 0.3, rtol=1e-6)
    np.testing.assert_allclose(next_factor(factor, jnp.log(row(0.9)), jnp.log(row(0.2)), dead), 0.3, rtol=1e-6)


def test_agents_learn_as_a_loop_written_out_would() -> None:
    state, rollout = _begin(HAPPO)
    actor = HAPPO._actor
    batch, carries, _, _ = HAPPO._prepare(SPEC, state, rollout, 1)
    # One agent is dead in some rows: it learns nothing there and leaves the factor alone.
    alive = batch.step.alive.at[:, ::3, 1].set(False)
    batch = jax.tree.map(lambda x: x, replace(batch, step=replace(batch.step, alive=alive)))
    after, steps, more = hasty_jit(lambda s, b: HAPPO._in_turn(SPEC, s, b, carries, CLOCK, KEY))(state, batch)
    assert float(steps.at(0).metrics()["ratio_error"].value) < 1e-6

    def log_probs(weights: Any) -> jax.Array:
        now = actor.read(SPEC, {"actor": weights}, carries[0], batch.step)[1]
        return distributions.log_prob(SPEC.action, now.params, now.log_std, batch.step.legal, batch.action)

    def loss(weights: Any, agent: int, factor: jax.Array) -> jax.Array:
        now = actor.read(SPEC, {"actor": weights}, carries[0], batch.step)[1]
        ratio = jnp.exp(log_probs(weights) - batch.extra["log_prob"])[..., agent]
        gain = factor * batch.advantage[..., agent]
        gain = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain)
        bonus = distributions.entropy(SPEC.action, now.params, now.log_std, batch.step.legal)[..., agent]
        old = (batch.extra["params"], batch.extra["log_std"])
        kl = distributions.kl(SPEC.action, *old, now.params, now.log_std, batch.step.legal)[..., agent]
        return jnp.mean(-gain - 0.01 * bonus + 0.5 * kl, where=batch.active[..., agent])

    weights, opts = state.nets["actor"], state.opt["actor"]
    factor, gradient = jnp.ones(batch.filled.shape), hasty_jit(jax.grad(loss), static_argnums=1)
    for agent in np.asarray(batches.shuffled(stream(KEY, "agents"), 3)):
        own, opt = jax.tree.map(lambda x, i=agent: x[i], (weights, opts))
        for _ in range(HAPPO.epochs):
            grads = jax.tree.map(lambda x, i=agent: x[i], gradient(weights, int(agent), factor))
            own, opt = HAPPO.optimiser.step(own, grads, opt, CLOCK.progress)
            weights = jax.tree.map(lambda all_, x, i=agent: all_.at[i].set(x), weights, own)
        ratio = jnp.exp(log_probs(weights) - batch.extra["log_prob"])[..., agent]
        factor = factor * jnp.where(batch.active[..., agent], ratio, 1.0)
    assert_close(after.nets["actor"], weights, 2e-4)
    np.testing.assert_allclose(more["happo_factor"].value, jnp.mean(jnp.abs(factor - 1), where=batch.filled), rtol=1e-3)
    assert float(more["happo_factor"].value) > 1e-3
    assert differs(after.nets["critic"], state.nets["critic"])


def _begin(algo: PPO) -> Any:
    algo.check(SPEC)

    def build() -> Any:
        state = algo.init(SPEC, KEY)
        worlds = open_worlds(algo, TASK, algo.collect.envs, KEY)
        return state, collect(algo, TASK, algo.policy(state), worlds, CLOCK, KEY)[1]

    return hasty_jit(build)()
