"""DIFFER: one update worked out by hand, the identities behind it, and the five ways to choose transitions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_close, hasty_jit

from rookery.algorithms.q import Q
from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.types import ActionSpec, Clock, Spec, Step
from rookery.mechanisms.agent_values import Weights
from rookery.mechanisms.credit import Credit
from rookery.memory.learning import Learner, Minibatch
from rookery.memory.replay import Draw
from rookery.memory.sequences import Memory, Sequence
from rookery.nets.agent import Net
from rookery.nets.mixers import Mixer
from rookery.nets.optimiser import Optimiser, Schedule

TIME, BATCH, AGENTS, ACTIONS, GAMMA = 3, 2, 2, 2, 0.9
SPEC = Spec("hand", ("a", "b"), obs_shape=(2,), action=ActionSpec("discrete", (ACTIONS,)), limit=TIME)
CLOCK = Clock(jnp.int32(0), jnp.uint32(30), jnp.float32(100))
KEY = jax.random.PRNGKey(3)
OPT = Optimiser("adam", lr=0.1, clip=0.5, eps=0.1)
OPT_MIXER = Optimiser("adam", lr=0.02, clip=0.2, eps=0.2)
LINEAR = Q(
    mixer=Mixer("qmix", embed=3, hyper=2),
    net=Net("mlp", layers=0),
    optimiser=OPT,
    gamma=GAMMA,
    double=False,
    agent_id=False,
    last_action=False,
    credit=Credit("differ", select="all", clip=0.0, mixer_optimiser=OPT_MIXER),
)
"""Agents whose values are linear in what they see: Q_i = x_i W + b."""


@cache
def batch() -> Sequence:
    """Three transitions of two sequences; in the second, agent b dies at once, and the last transition is void."""
    rng = np.random.default_rng(0)
    rows = (TIME + 1, BATCH)
    alive = np.ones((*rows, AGENTS), bool)
    alive[1:, 1, 1] = False
    discount = np.ones((*rows, AGENTS), np.float32)
    discount[1:, 1, 1] = 0.0
    last = np.zeros(rows, bool)
    last[2, 1] = True
    step = Step(
        obs=jnp.asarray(rng.normal(size=(*rows, AGENTS, 2)), jnp.float32),
        state=jnp.zeros((*rows, 0)),
        legal=jnp.ones((*rows, AGENTS, ACTIONS), bool),
        alive=jnp.asarray(alive),
        reward=jnp.asarray(rng.normal(size=(*rows, AGENTS)), jnp.float32),
        discount=jnp.asarray(discount),
        first=jnp.zeros(rows, bool),
        last=jnp.asarray(last),
        success=jnp.zeros(rows),
    )
    action = jnp.asarray(rng.integers(0, ACTIONS, (TIME, BATCH, AGENTS)), jnp.int32)
    memory = Memory(jnp.zeros((BATCH, AGENTS, 0)), jnp.zeros((BATCH, AGENTS), jnp.int32))
    return Sequence(step, action, ~step.last[:-1], memory)


def learner(algo: Q) -> Learner[Weights]:
    """Different weights online and in the target; no bias is 0, where |w| would have no slope."""
    first, second = (algo.init(SPEC, jax.random.PRNGKey(seed)).learner for seed in (0, 1))
    online = jax.tree.map(lambda x: x + 0.1, first.online)
    return replace(first, online=online, target=second.online)


def sees(data: Sequence) -> Minibatch:
    return Minibatch(data, Draw(jnp.arange(BATCH), None), CLOCK, KEY, jnp.int32(0))


def stepped(algo: Q, now: Learner[Weights]) -> tuple[Learner[Weights], Any]:
    return hasty_jit(lambda now: algo._gradient_step(SPEC, now, sees(batch())))(now)


class Dense:
    """The same learner in plain numpy, in double precision."""

    def __init__(self, now: Learner[Weights]) -> None:
        self.b = jax.tree.map(np.asarray, batch())
        self.on, self.to = (jax.tree.map(lambda x: np.asarray(x, np.float64), w) for w in (now.online, now.target))
        self.x = self.b.step.obs.astype(np.float64)
        self.state = self.x.reshape(TIME + 1, BATCH, -1)
        self.filled = self.b.filled
        self.lived = self.filled[..., None] & self.b.step.alive[:-1]
        q = self.x @ self.on.agent.head.weight + self.on.agent.head.bias
        self.q_i = np.take_along_axis(q[:-1], self.b.action[..., None], -1)[..., 0]
        self.v_i = (self.x @ self.to.agent.head.weight + self.to.agent.head.bias).max(-1)[1:]
        v_tot, _ = self.mix(self.to.mixer, self.v_i, self.state[1:])
        self.y = self.b.step.reward[1:].mean(-1) + GAMMA * self.b.step.discount[1:].max(-1) * v_tot
        q_tot, self.slope = self.mix(self.on.mixer, self.q_i, self.state[:-1])
        self.delta = q_tot - self.y

    @staticmethod
    def mix(p: Any, q: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Q_tot and dQ_tot / dQ_i."""

        def two(layers: Any) -> np.ndarray:
            hidden = np.maximum(s @ layers[0].weight + layers[0].bias, 0)
            return hidden @ layers[1].weight + layers[1].bias

        w1, w2 = np.abs(two(p.w1)).reshape(*q.shape, 3), np.abs(two(p.w2))
        pre = (q[..., None] * w1).sum(-2) + s @ p.b1.weight + p.b1.bias
        elu, elu_slope = np.where(pre > 0, pre, np.expm1(np.minimum(pre, 0))), np.where(pre > 0, 1, np.exp(pre))
        return (elu * w2).sum(-1) + two(p.b2)[..., 0], (w1 * (elu_slope * w2)[..., None, :]).sum(-1)

    def mixer_loss(self, p: Any) -> float:
        return float(((self.mix(p, self.q_i, self.state[:-1])[0] - self.y) ** 2)[self.filled].mean())


def adam(opt: Optimiser, params: list[np.ndarray], grads: list[np.ndarray]) -> list[np.ndarray]:
    """The first step of Adam is g / (|g| + eps), after the clip of the norm over all arrays."""
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    scale = min(1.0, opt.clip / norm)
    return [p - opt.lr * g * scale / (np.abs(g * scale) + opt.eps) for p, g in zip(params, grads, strict=True)]


def test_one_update_by_hand() -> None:
    now = learner(LINEAR)
    dense = Dense(now)
    error = dense.slope * dense.delta[..., None]
    n = dense.lived.sum()
    assert n == 9  # 5 real transitions of 2 agents, in one of which b is dead
    # Agents: d/dW of sum(error_i^2) / n with fixed targets is sum(2 error_i x_i e_action) / n.
    grad_w, grad_b = np.zeros((2, ACTIONS)), np.zeros(ACTIONS)
    for t, b, i in np.argwhere(dense.lived):
        grad_w[:, dense.b.action[t, b, i]] += 2 * error[t, b, i] * dense.x[t, b, i] / n
        grad_b[dense.b.action[t, b, i]] += 2 * error[t, b, i] / n
    head = dense.on.agent.head
    expected_w, expected_b = adam(OPT, [head.weight, head.bias], [grad_w, grad_b])
    # Mixer: differences of its own loss, with the agents' values held.
    leaves, tree = jax.tree.flatten(dense.on.mixer)
    slopes = [np.zeros_like(x) for x in leaves]
    for k, leaf in enumerate(leaves):
        for at in np.ndindex(leaf.shape):
            sides = []
            for h in (1e-6, -1e-6):
                moved = [x.copy() for x in leaves]
                moved[k][at] += h
                sides.append(dense.mixer_loss(jax.tree.unflatten(tree, moved)))
            slopes[k][at] = (sides[0] - sides[1]) / 2e-6
    expected_mixer = adam(OPT_MIXER, leaves, slopes)

    after, metrics = stepped(LINEAR, now)
    np.testing.assert_allclose(after.online.agent.head.weight, expected_w, atol=2e-5)
    np.testing.assert_allclose(after.online.agent.head.bias, expected_b, atol=2e-5)
    assert_close(jax.tree.leaves(after.online.mixer), expected_mixer, 2e-5)
    reward = dense.q_i - GAMMA * dense.b.step.discount[1:] * dense.v_i - error
    assert float(metrics["credit_reward"].value) == pytest.approx(reward[dense.lived].mean(), rel=1e-4)
    assert float(metrics["credit_error"].value) == pytest.approx(np.abs(error)[dense.lived].mean(), rel=1e-4)
    assert float(metrics["loss"].value) == pytest.approx((dense.delta[dense.filled] ** 2).mean(), rel=1e-4)


@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
def test_the_individual_td_error_is_slope_times_the_teams(mixer: str) -> None:
    mix = Mixer(mixer, embed=3, hyper=2)
    params = mix.init(jax.random.PRNGKey(0), AGENTS, 4)
    q, state = (jax.random.normal(jax.random.PRNGKey(i), (5, n)) for i, n in ((1, AGENTS), (2, 4)))
    delta = jax.random.normal(jax.random.PRNGKey(3), (5, 1))
    slope = np.stack([jax.grad(lambda q, s: mix(params, q, s)[0])(q[i], state[i]) for i in range(5)])
    assert np.all(slope >= 0) and (mixer == "qmix" or np.all(slope == 1))
    for clip in (0.0, 10.0, 0.05):
        error = Credit("differ", clip=clip).errors(lambda q: mix(params, q, state), q, delta)
        limited = np.clip(slope, -clip, clip) if clip else slope
        np.testing.assert_allclose(error, limited * np.asarray(delta), rtol=1e-5)
        # With the reward that goes with it, the agent's own one-step TD error is that error again.
        v, d = 0.7, np.array([1.0, 0.0])
        reward = q - GAMMA * d * v - error
        np.testing.assert_allclose(q - (reward + GAMMA * d * v), error, atol=1e-5)


@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
@pytest.mark.parametrize("lam", [0.0, 0.6])
def test_all_without_clipping_is_the_mixers_gradient(mixer: str, lam: float) -> None:
    """Where nobody is dead, up to the number of agents: the team's loss is a mean over its transitions, the agents'
    over individual ones."""
    living = replace(batch().step, alive=jnp.ones_like(batch().step.alive))
    data = replace(batch(), step=living)
    differ = replace(LINEAR, mixer=replace(LINEAR.mixer, kind=mixer), td_lambda=lam)
    through = replace(differ, credit=Credit())
    now = learner(differ)

    def grads(algo: Q) -> Weights:
        return shards.mean_gradient(lambda w: algo._loss(SPEC, w, now, sees(data)), now.online)[0]

    own, team = grads(differ), grads(through)
    assert_close(jax.tree.map(lambda g: AGENTS * g, own.agent), team.agent, 1e-5)
    assert_close(own.mixer, team.mixer, 1e-6)


# --- choosing

SIZES = np.array([[0.5, 3.0, -1.0, 9.0], [2.0, -0.1, 4.0, 9.0]], np.float32)
VALID = np.array([[True, True, True, False], [True, True, True, False]])


def weights(credit: Credit, seed: int = 0, clock: Clock = CLOCK) -> np.ndarray:
    return np.asarray(credit.weights(jax.random.PRNGKey(seed), jnp.asarray(SIZES), jnp.asarray(VALID), clock)[0])


def fixed(fraction: float) -> Schedule:
    return Schedule(fraction, fraction)


def test_all() -> None:
    np.testing.assert_array_equal(weights(Credit("differ", "all")), VALID)


def test_greedy_takes_the_largest() -> None:
    expected = [[0, 1, 0, 0], [1, 0, 1, 0]]
    np.testing.assert_array_equal(weights(Credit("differ", "greedy", fixed(0.5))), expected)
    np.testing.assert_array_equal(weights(Credit("differ", "greedy", fixed(1.0))), VALID)


def test_greedy_weights_are_what_exceeds_the_pivot() -> None:
    expected = [[0, 0.5, 0, 0], [0, 0, 1, 0]]
    np.testing.assert_allclose(weights(Credit("differ", "greedy_weight", fixed(0.5))), expected)
    same = Credit("differ", "greedy_weight", fixed(0.5)).weights(KEY, jnp.ones(4), jnp.ones(4, bool), CLOCK)[0]
    assert sorted(np.asarray(same)) == [0, 0, 1, 1]


def test_draws_follow_priorities_and_never_hit_padding() -> None:
    credit = Credit("differ", "per", fixed(0.5), alpha=0.7, eps=0.2, eps_relative=False)
    drawn = np.stack([weights(credit, seed) for seed in range(600)])
    assert np.all(drawn.sum(axis=(1, 2)) == 3) and np.all(drawn == np.round(drawn))
    assert not drawn[:, ~VALID].any()
    p = (np.abs(SIZES) + 0.2) ** 0.7 * VALID
    p /= p.sum()
    np.testing.assert_allclose(drawn.sum(0) / drawn.sum(), p, atol=4 * np.sqrt(0.25 / drawn.sum()))


def test_draws_do_not_depend_on_the_unit_of_rewards() -> None:
    """An eps that is a share of the mean |TD error| keeps priorities where errors are small."""
    errors, valid = jnp.asarray(SIZES), jnp.asarray(VALID)

    def drawn(credit: Credit, unit: float) -> np.ndarray:
        of_seed = lambda key: credit.weights(key, unit * errors, valid, CLOCK)[0]  # noqa: E731
        return np.asarray(jnp.sum(jax.vmap(of_seed)(jax.random.split(jax.random.PRNGKey(0), 600)), axis=0))

    relative = Credit("differ", "per", fixed(1.0), alpha=0.7, eps=0.2)
    np.testing.assert_array_equal(drawn(relative, 1.0), drawn(relative, 2.0**-10))
    p = (np.abs(SIZES) + 0.2 * np.abs(SIZES)[VALID].mean()) ** 0.7 * VALID
    np.testing.assert_allclose(drawn(relative, 1.0) / 3600, p / p.sum(), atol=4 * np.sqrt(0.25 / 3600))
    absolute = drawn(replace(relative, eps_relative=False), 2.0**-10)[VALID]
    assert absolute.max() < 1.2 * absolute.min()  # as good as uniform, though errors differ by a factor of 40


def test_importance_weights_count_valid_transitions_only() -> None:
    beta_of = Schedule(0.6, 1.0, steps=0, share=1.0)
    credit = Credit("differ", "per_weight", fixed(1.0), alpha=0.7, eps=0.2, eps_relative=False, beta=beta_of)
    count = weights(replace(credit, select="per"))
    p = (np.abs(SIZES) + 0.2) ** 0.7 * VALID
    p /= p.sum()
    beta = 0.6 + 0.4 * 0.3  # 30 of 100 steps
    w = np.where(count > 0, (VALID.sum() * np.where(VALID, p, 1)) ** -beta, 0)
    np.testing.assert_allclose(weights(credit), count * w / w.max(), rtol=1e-5)


def test_the_fraction_warms_up() -> None:
    credit = Credit("differ", "greedy")
    used = []
    for steps in (0, 30, 60, 100):
        _, metrics = credit.weights(
            KEY, jnp.arange(100.0), jnp.ones(100, bool), replace(CLOCK, steps=jnp.uint32(steps))
        )
        used.append(float(metrics["credit_used"].value))
    assert used == pytest.approx([0.8, 0.9, 1.0, 1.0])


def test_nothing_valid_is_no_error() -> None:
    for select in ("all", "greedy", "greedy_weight", "per", "per_weight"):
        weight, metrics = Credit("differ", select).weights(KEY, jnp.ones(4), jnp.zeros(4, bool), CLOCK)
        assert not np.asarray(weight).any()
        assert all(np.isfinite(m.total) for m in metrics.values())


def test_without_a_mixer_there_is_nothing_to_divide() -> None:
    with pytest.raises(ConfigError, match="mixer 'none'"):
        replace(LINEAR, mixer=Mixer("none")).check(SPEC)
