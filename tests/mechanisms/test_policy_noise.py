"""Noise on actions and on weights, and the measures of how much an update changes a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_same, differs, hasty_jit

from rookery.algorithms.ppo import PPO
from rookery.core.types import ActionSpec, Clock, Collect, Mean, Spec, Step
from rookery.mechanisms import explore, probe
from rookery.mechanisms.actor import Distribution
from rookery.mechanisms.explore import Explore
from rookery.mechanisms.hyper import Hyper
from rookery.mechanisms.probe import Probe
from rookery.nets.agent import Net
from rookery.ops import distributions
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.compiled.rollout import collect, open_worlds

TASK = Mpe(agents=2, limit=3)
CLOCK = Clock(jnp.int32(0), jnp.uint32(30), jnp.float32(100))
KEY = jax.random.PRNGKey(0)
NET = Net("mlp", width=8, layers=1)
PLAIN = PPO(actor=NET, critic=NET, collect=Collect(envs=4, length=6), epochs=2, minibatches=2)
BOX = Spec("box", ("a", "b"), (3,), ActionSpec("box", (2,), ((-0.1, -0.2),), ((0.1, 0.3),)), limit=5)


def step_of(spec: Spec, envs: int) -> Step:
    n = spec.n_agents
    return Step(
        obs=jax.random.normal(KEY, (envs, n, *spec.obs_shape)),
        state=jnp.zeros((envs, 0)),
        legal=jnp.ones((envs, n, spec.action.width), bool),
        alive=jnp.ones((envs, n), bool),
        reward=jnp.zeros((envs, n)),
        discount=jnp.ones((envs, n)),
        first=jnp.ones(envs, bool),
        last=jnp.zeros(envs, bool),
        success=jnp.zeros(envs),
    )


def test_noisy_actions_stay_in_bounds_and_have_the_probability_of_what_was_executed() -> None:
    algo, step = replace(PLAIN, explore=Explore(noise=0.5)), step_of(BOX, 16)
    algo.check(BOX)
    policy = algo.policy(algo.init(BOX, KEY))
    carry = algo.carry(BOX, 16)
    _, action, extra = algo.act(BOX, policy, carry, step, CLOCK, KEY, greedy=False)
    low, high = BOX.action.bounds
    assert np.all(action >= low) and np.all(action <= high) and np.any(action == high) and np.any(action == low)
    rows = jax.tree.map(lambda x: x[None], step)
    now = algo._actor.read(BOX, policy, carry, rows)[1]
    wanted = distributions.log_prob(BOX.action, now.params[0], now.log_std, step.legal, action)
    np.testing.assert_allclose(extra["log_prob"], wanted, rtol=1e-5)
    # None without the setting, none in evaluation.
    greedy = [a.act(BOX, policy, carry, step, CLOCK, KEY, greedy=True)[1] for a in (algo, PLAIN)]
    assert_same(*greedy)
    assert differs(PLAIN.act(BOX, policy, carry, step, CLOCK, KEY, greedy=False)[1], action)


def test_noise_on_weights_is_for_collecting_only() -> None:
    algo, step = replace(PLAIN, explore=Explore(parameter_noise=0.1)), step_of(BOX, 8)
    policy = algo.policy(algo.init(BOX, KEY))
    clean = {name: x for name, x in policy.items() if name != "noise"}
    carry = algo.carry(BOX, 8)
    assert_same(*(algo.act(BOX, p, carry, step, CLOCK, KEY, greedy=True)[1] for p in (policy, clean)))
    assert differs(*(algo.act(BOX, p, carry, step, CLOCK, KEY, greedy=False)[1] for p in (policy, clean)))


def test_the_scale_of_noise_on_weights_follows_the_distance_of_actions() -> None:
    net = {"w": jnp.zeros((200, 200))}
    noise = explore.draw(net, jnp.float32(0.5), KEY)
    assert float(jnp.std(noise.net["w"])) == pytest.approx(0.5, rel=0.02)
    for found, more in ((0.03, True), (0.05, False)):
        # A box measures squares: a distance of 0.2 is 0.04.
        after, far = explore.adapt(BOX, noise, Mean.of(jnp.float32(found)), 0.2, net, KEY)
        assert float(far) == pytest.approx(found**0.5) and (float(after.scale) > 0.5) == more
        assert float(jnp.std(after.net["w"])) == pytest.approx(float(after.scale), rel=0.02)


def _begin(algo: PPO) -> Any:
    algo.check(TASK.spec)

    def build() -> Any:
        state = algo.init(TASK.spec, KEY)
        worlds = open_worlds(algo, TASK, algo.collect.envs, KEY)
        return state, collect(algo, TASK, algo.policy(state), worlds, CLOCK, KEY)[1]

    return hasty_jit(build)()


def test_the_policy_change_is_that_of_the_joint_policy() -> None:
    spec = Spec("d", ("a", "b"), (3,), ActionSpec("discrete", (2,)), limit=5)
    step = jax.tree.map(lambda x: x[None], step_of(spec, 3))
    step = replace(step, alive=step.alive.at[0, 2, 1].set(False))
    old = jnp.zeros((1, 3, 2, 2)).at[..., 0].set(1.0)
    new = old.at[0, 0, :, 1].set(3.0).at[0, 2, 1, 1].set(9.0)  # both agents of state 0, and a dead one
    found = probe.change(spec, Distribution(old, jnp.zeros(2)), Distribution(new, jnp.zeros(2)), step)
    p, q = (np.exp(x) / np.exp(x).sum() for x in (np.array([1.0, 0.0]), np.array([1.0, 3.0])))
    assert float(found["probe/joint_kl"].value) == pytest.approx(2 * np.sum(p * np.log(p / q)) / 3, rel=1e-5)
    assert float(found["probe/churn"].value) == pytest.approx(1 / 3)


def test_the_variance_of_gradients_is_that_of_the_minibatches() -> None:
    g = jnp.array([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    found = probe.gradient_variance(lambda i: {"w": g[i[0]]}, jnp.arange(3)[:, None])
    variance = np.var(np.asarray(g), axis=0, ddof=1).sum()
    assert float(found["probe/gradient_variance"].value) == pytest.approx(variance)
    assert float(found["probe/gradient_noise"].value) == pytest.approx(variance / 5)


def test_probes_of_actors_without_a_carry_are_the_same_rows() -> None:
    """However long training sequences are; actors with a carry need rows that it is kept in."""
    rollout, zero, found = _begin(PLAIN)[1], jnp.int32(0), []
    hyper = replace(PLAIN, hyper=Hyper("all", width=8))
    for algo, rows in ((PLAIN, 1), (hyper, 6)):
        assert algo.carry_interval(TASK.spec) == rows
        algo = replace(algo, probe=Probe(8))
        algo.check(TASK.spec)
        actor, kept = algo._actor, replace(rollout, carry=jax.tree.map(lambda x, n=rows: x[::n], rollout.carry))
        first = algo.probe.keep_first(algo.probe.init(TASK.spec, actor), actor, kept, rows, zero)
        found.append(first.step)
        np.testing.assert_array_equal(
            first.step.obs, rollout.step.obs[:-1].reshape(24, *rollout.step.obs.shape[2:])[::3]
        )
    assert_same(*found)
    # Rows 0 and 3 of four environments open sequences of three.
    actor = replace(PLAIN, actor=replace(NET, kind="gru"))._actor
    carry = jnp.arange(2 * 4 * 2 * 8, dtype=jnp.float32).reshape(2, 4, 2, 8)
    kept = Probe(4).keep_first(Probe(4).init(TASK.spec, actor), actor, replace(rollout, carry=carry), 3, zero)
    np.testing.assert_array_equal(kept.step.obs, rollout.step.obs[jnp.array([0, 0, 3, 3]), jnp.array([0, 2, 0, 2])])
    np.testing.assert_array_equal(kept.carry, carry.reshape(8, 2, 8)[::2])


def test_probes_compare_with_the_first_rollout_and_change_nothing() -> None:
    algo = replace(PLAIN, probe=Probe(6))
    state, rollout = _begin(algo)
    update = hasty_jit(lambda s, r, c: algo.update(TASK.spec, s, r, c, KEY))
    after, metrics = update(state, rollout, CLOCK)
    for name in ("probe/joint_kl", "probe/churn", "probe/gradient_variance", "probe/gradient_noise"):
        assert np.isfinite(metrics[name].value) and float(metrics[name].weight) > 0
    assert float(metrics["probe/joint_kl"].value) > 0 and float(metrics["probe/gradient_variance"].value) > 0
    # 24 rows, every fourth of them.
    wanted = rollout.step.obs[:-1].reshape(24, *rollout.step.obs.shape[2:])[::4]
    np.testing.assert_array_equal(after.probe.step.obs, wanted)
    later = replace(CLOCK, iteration=jnp.int32(1))
    other = replace(rollout, step=replace(rollout.step, obs=rollout.step.obs + 1.0))
    assert_same(update(after, other, later)[0].probe, after.probe)
    # The same training as without.
    plain, _ = hasty_jit(lambda s, r: PLAIN.update(TASK.spec, s, r, CLOCK, KEY))(replace(state, probe=None), rollout)
    for name, x in plain.nets.items():
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(after.nets[name]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
