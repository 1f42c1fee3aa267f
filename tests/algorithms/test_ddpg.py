"""The DDPG family: every mistake that published code has made is put to the test, with hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from small import assert_close, assert_same, differs, hasty_jit, small_config

from rookery.algorithms.ddpg import DDPG
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.registry import PRESETS, TASKS
from rookery.core.types import ActionSpec, Clock, Collect, Rollout, Spec, Step
from rookery.mechanisms.action_critic import ActionCritic
from rookery.mechanisms.action_head import Entropy, Smoothing, real
from rookery.memory.learning import Learner, Minibatch, draw_filled
from rookery.memory.replay import Draw, Replay
from rookery.memory.sequences import Memory, Sequence, transitions
from rookery.nets.agent import Net
from rookery.nets.mixers import Mixer
from rookery.nets.optimiser import Groups, Optimiser
from rookery.nets.target import Target
from rookery.ops.gumbel import Gumbel, Kind
from rookery.ops.noise import Noise
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.compiled.program import Program
from rookery.training.compiled.rollout import collect, open_worlds

KEY = jax.random.PRNGKey(0)
CLOCK = Clock(jnp.int32(0), jnp.uint32(0), jnp.float32(100))
TIME, BATCH, GAMMA = 3, 5, 0.9
DISCRETE = ActionSpec("discrete", (4,))
BRANCHES = ActionSpec("multi_discrete", (2, 3))
BOX = ActionSpec("box", (2,), ((-2.0, 0.0), (-1.0, -3.0)), ((2.0, 1.0), (1.0, 5.0)))
KINDS = {"discrete": DISCRETE, "branches": BRANCHES, "box": BOX}
TINY = Net("mlp", width=8)
ALGO = DDPG(
    actor=TINY,
    critic=ActionCritic(TINY),
    collect=Collect(envs=2, length=8),
    replay=Replay(capacity=8, batch=16, unit="transition", start=2, steps_per_sequence=1.0),
    gamma=GAMMA,
)
ALGOS: dict[str, DDPG] = {
    "maddpg": ALGO,
    "sequences": replace(ALGO, replay=replace(ALGO.replay, batch=2, unit="sequence")),
    "iddpg": replace(ALGO, critic=ActionCritic(TINY, sees="own")),
    "masac": replace(ALGO, critic=ActionCritic(TINY, twins=2), entropy=Entropy("auto")),
    "facmac": replace(ALGO, critic=ActionCritic(TINY, sees="own"), mixer=Mixer("qmix", embed=4, hyper=4)),
    "gru": replace(
        ALGO,
        actor=replace(TINY, kind="gru", layers=1),
        critic=ActionCritic(replace(TINY, kind="gru", layers=1)),
        replay=replace(ALGO.replay, batch=2, unit="sequence"),
    ),
}
SPREAD = Mpe(agents=2, limit=3)


def spec_of(action: ActionSpec, **more: Any) -> Spec:
    return Spec("toy", ("a", "b"), (3,), action, limit=TIME, cooperative=False, **more)


def random_actions(spec: Spec, *batch: int, seed: int = 0) -> jax.Array:
    rng, shape = np.random.default_rng(seed), (*batch, spec.n_agents)
    if spec.action.kind == "box":
        return jnp.asarray(rng.uniform(*spec.action.bounds, size=(*shape, spec.action.width)), jnp.float32)
    drawn = np.stack([rng.integers(size, size=shape) for size in spec.action.sizes], axis=-1)
    return jnp.asarray(drawn[..., 0] if spec.action.kind == "discrete" else drawn, jnp.int32)


def batch_of(spec: Spec, hidden: int = 0, last: bool = True, discount: float = 1.0) -> Sequence:
    """Random sequences of one episode each, closed by their last row (with this discount) or still going on."""
    rng, rows, n = np.random.default_rng(1), TIME + 1, spec.n_agents
    ends = jnp.zeros((rows, BATCH), bool).at[-1].set(last)
    step = Step(
        obs=jnp.asarray(rng.normal(size=(rows, BATCH, n, 3)), jnp.float32),
        state=jnp.zeros((rows, BATCH, 0)),
        legal=jnp.ones((rows, BATCH, n, spec.action.width), bool),
        alive=jnp.ones((rows, BATCH, n), bool),
        reward=jnp.asarray(rng.normal(size=(rows, BATCH, n)), jnp.float32),
        discount=jnp.ones((rows, BATCH, n)).at[-1].set(discount),
        first=jnp.zeros((rows, BATCH), bool).at[0].set(True),
        last=ends,
        success=jnp.zeros((rows, BATCH)),
    )
    memory = Memory(jnp.zeros((BATCH, n, hidden)), random_actions(spec, BATCH, seed=3))
    return Sequence(step, random_actions(spec, TIME, BATCH, seed=2), jnp.ones((TIME, BATCH), bool), memory)


def at(tree: Any, where: Any, value: Any) -> Any:
    return eqx.tree_at(where, tree, value)


def learner_of(algo: DDPG, spec: Spec) -> Learner[Groups]:
    """Fresh, with target networks that differ from the online ones."""
    now = algo.init(spec, KEY).learner
    return replace(now, target=jax.tree.map(lambda x: 0.7 * x + 0.01, now.target))


def sees(batch: Sequence, clock: Clock = CLOCK, step: Any = 0) -> Minibatch:
    return Minibatch(batch, Draw(jnp.arange(BATCH), None), clock, KEY, jnp.int32(step))


@partial(hasty_jit, static_argnums=(0, 1))
def critic_loss(algo: DDPG, spec: Spec, now: Learner[Groups], batch: Sequence) -> tuple[Any, Any]:
    """The loss as a mean, and its metrics."""
    losses, (_, metrics) = algo._critic_loss(spec, now, sees(batch), now.online)
    return losses["critic"], metrics


@partial(hasty_jit, static_argnums=(0, 1))
def targets(algo: DDPG, spec: Spec, now: Learner[Groups], batch: Sequence) -> jax.Array:
    taken = algo._head.encode(spec, batch.action)[:, :, None]
    state = batch.step.obs.reshape(TIME + 1, BATCH, -1)
    return algo._targets(spec, now, sees(batch), taken, state)


@partial(hasty_jit, static_argnums=(0, 1))
def actor_gradient(algo: DDPG, spec: Spec, now: Learner[Groups], batch: Sequence, clock: Clock = CLOCK) -> Any:
    def loss(actor: Any) -> jax.Array:
        return algo._actor_loss(spec, now, sees(batch, clock), {**now.online, "actor": actor})[0]["actor"].value

    return jax.grad(loss)(now.online["actor"])


# -- targets --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("discount", [1.0, 0.0], ids=["cut", "terminated"])
def test_a_time_limit_bootstraps_and_a_termination_does_not(kind: str, discount: float) -> None:
    """Targets by hand: numpy's own forward pass of the target actors and of the target critic."""
    spec, algo = spec_of(KINDS[kind]), replace(ALGO, target_action="argmax")
    now, batch = learner_of(algo, spec), batch_of(spec, discount=discount)
    s = batch.step
    ids = np.broadcast_to(np.eye(2), (*s.first.shape, 2, 2))
    params = forward(now.target["actor"], np.concatenate([s.obs, ids], axis=-1))
    q = judge(now.target["critic"].twins[0], s, choose(spec, params))
    keep = np.ones((TIME, 1, 1))
    keep[-1] = discount
    expected = np.asarray(s.reward)[1:] + GAMMA * keep * q[1:]
    np.testing.assert_allclose(targets(algo, spec, now, batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_soft_targets_by_hand(kind: str) -> None:
    """The least of the target critics' values of what the online actors do, and what their entropy is worth."""
    spec = spec_of(KINDS[kind])
    algo = replace(ALGOS["masac"], target_action="argmax")
    now, batch = learner_of(algo, spec), batch_of(spec)
    alpha = np.array([0.2, 0.5], np.float32)
    now = replace(now, online={**now.online, "alpha": jnp.log(alpha)})
    s = batch.step
    ids = np.broadcast_to(np.eye(2), (*s.first.shape, 2, 2))
    params = forward(now.online["actor"], np.concatenate([s.obs, ids], axis=-1))
    if kind == "box":
        mean, spread = np.split(params, 2, axis=-1)
        std = np.exp(-5 + 3.5 * (np.tanh(spread) + 1))
        x = mean + std * np.asarray(jax.random.normal(sees(batch).key("target"), mean.shape))
        action = np.tanh(x)
        entropy = -(stats.norm(mean, std).logpdf(x) - np.log(1 - action**2)).sum(-1)
    else:
        action, p = choose(spec, params), softmax(params, axis=-1)
        entropy = -(p * np.log(p)).sum(-1)
    q = np.minimum(*(judge(twin, s, action) for twin in now.target["critic"].twins))
    expected = np.asarray(s.reward)[1:] + GAMMA * (q + alpha * entropy)[1:]
    np.testing.assert_allclose(targets(algo, spec, now, batch), expected, rtol=1e-4, atol=1e-4)


def test_smoothed_targets_by_hand() -> None:
    """TD3's noise is cut off at its limit, and is on the target actors' actions, which stay within the bounds."""
    spec, algo = spec_of(BOX), replace(ALGO, smoothing=Smoothing(scale=0.5, limit=0.3))
    now, batch = learner_of(algo, spec), batch_of(spec)
    now = replace(now, target=at(now.target, lambda t: t["actor"].head.bias, jnp.array([3.0, 0.0])))
    s = batch.step
    ids = np.broadcast_to(np.eye(2), (*s.first.shape, 2, 2))
    action = choose(spec, forward(now.target["actor"], np.concatenate([s.obs, ids], axis=-1)))
    noise = np.clip(0.5 * np.asarray(jax.random.normal(sees(batch).key("target"), action.shape)), -0.3, 0.3)
    q = judge(now.target["critic"].twins[0], s, np.clip(action + noise, -1, 1))
    expected = np.asarray(s.reward)[1:] + GAMMA * q[1:]
    np.testing.assert_allclose(targets(algo, spec, now, batch), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(targets(ALGO, spec, now, batch) - expected).max() > 1e-2


def judge(critic: Any, step: Step, action: np.ndarray) -> np.ndarray:
    """What a feed-forward critic of two agents makes of everything that both see and do, in numpy."""
    both = lambda x: np.broadcast_to(np.reshape(x, (*step.first.shape, 1, -1)), (*x.shape[:3], 2 * x.shape[-1]))  # noqa: E731
    ids = np.broadcast_to(np.eye(2), (*step.first.shape, 2, 2))
    return forward(critic, np.concatenate([both(step.obs), both(action), ids], axis=-1))[..., 0]


def forward(net: Any, x: np.ndarray) -> np.ndarray:
    """A feed-forward network in numpy."""
    for layer in net.before:
        x = np.maximum(x @ np.asarray(layer.weight) + np.asarray(layer.bias), 0)
    return x @ np.asarray(net.head.weight) + np.asarray(net.head.bias)


def choose(spec: Spec, params: np.ndarray) -> np.ndarray:
    """The most likely action of each branch, one-hot; or the squashed mean."""
    if spec.action.kind == "box":
        return np.tanh(params)
    edges = np.cumsum(spec.action.sizes)[:-1]
    return np.concatenate([np.eye(b.shape[-1])[b.argmax(-1)] for b in np.split(params, edges, axis=-1)], axis=-1)


@pytest.mark.parametrize("name", ["maddpg", "masac", "facmac"])
def test_targets_come_from_the_target_critics(name: str) -> None:
    spec, algo = spec_of(DISCRETE), ALGOS[name]
    now, batch = learner_of(algo, spec), batch_of(spec)
    plain = targets(algo, spec, now, batch)
    online = replace(now, online={**now.online, "critic": jax.tree.map(lambda x: x + 1.0, now.online["critic"])})
    np.testing.assert_array_equal(targets(algo, spec, online, batch), plain)
    target = replace(now, target={**now.target, "critic": jax.tree.map(lambda x: x + 1.0, now.target["critic"])})
    assert differs(targets(algo, spec, target, batch), plain)


def test_the_least_of_two_critics_is_the_target() -> None:
    spec = spec_of(DISCRETE)
    algo = replace(ALGO, critic=ActionCritic(TINY, twins=2), target_action="argmax")
    now, batch = learner_of(algo, spec), batch_of(spec)
    single = replace(algo, critic=ActionCritic(TINY))
    each = [
        targets(single, spec, at(now, lambda n: n.target["critic"].twins, (twin,)), batch)
        for twin in now.target["critic"].twins
    ]
    assert differs(*each)
    np.testing.assert_allclose(targets(algo, spec, now, batch), np.minimum(*each), rtol=1e-5)


def test_the_terminal_transition_is_learned_from() -> None:
    """It is the last of each sequence; dropping it would leave 2 of 3 transitions."""
    spec = spec_of(DISCRETE)
    now, batch = learner_of(ALGO, spec), batch_of(spec, discount=0.0)
    loss, metrics = critic_loss(ALGO, spec, now, batch)
    assert float(loss.weight) == TIME * BATCH * 2
    richer = at(batch, lambda b: b.step.reward, batch.step.reward.at[-1].add(10.0))
    gained = critic_loss(ALGO, spec, now, richer)[1]["q_target"].total - metrics["q_target"].total
    assert float(gained) == pytest.approx(10.0 * BATCH * 2, rel=1e-4)


# -- masks ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", list(ALGOS))
def test_padding_teaches_nothing(name: str) -> None:
    """Transitions out of `last` rows are in the store; whatever they hold, the update is the same to the bit."""
    algo = ALGOS[name]
    state, rollout = experience(name)
    void = ~rollout.filled[..., None]
    assert bool(jnp.any(void)) and bool(jnp.any(~void))
    reward = rollout.step.reward.at[1:].add(jnp.where(void, 50.0, 0.0))
    scrambled = at(rollout, lambda r: r.step.reward, reward)
    if algo.actor.kind == "mlp":  # what a recurrent critic has read before a reset is forgotten, not unread
        scrambled = at(scrambled, lambda r: r.action, jnp.where(void, (rollout.action + 1) % 5, rollout.action))
    assert_same(update_of(name)(state, scrambled), update_of(name)(state, rollout))
    noticed = at(rollout, lambda r: r.step.reward, rollout.step.reward.at[1:].add(jnp.where(void, 0.0, 50.0)))
    assert differs(update_of(name)(state, noticed)[0], update_of(name)(state, rollout)[0])


@pytest.mark.parametrize("name", ["maddpg", "masac", "facmac"])
def test_what_is_not_filled_has_no_weight(name: str) -> None:
    """Single transitions too: most that are not filled are drawn again, the rest must not count."""
    spec, algo = replace(spec_of(DISCRETE), cooperative=True), ALGOS[name]
    now, batch = learner_of(algo, spec), batch_of(spec)
    batch = at(batch, lambda b: b.filled, batch.filled.at[1].set(False))
    loss, _ = critic_loss(algo, spec, now, batch)
    assert float(loss.weight) == (TIME - 1) * BATCH * (1 if name == "facmac" else 2)
    paid = at(batch, lambda b: b.step.reward, batch.step.reward.at[2].add(50.0))
    assert_same(critic_loss(algo, spec, now, paid), critic_loss(algo, spec, now, batch))
    done = at(batch, lambda b: b.action, batch.action.at[1].set((batch.action[1] + 1) % 4))
    assert_same(actor_gradient(algo, spec, now, done), actor_gradient(algo, spec, now, batch))


@cache
def experience(name: str) -> tuple[Any, Rollout]:
    """A fresh learner and one rollout, over several episodes."""

    def build(key: jax.Array) -> tuple[Any, Rollout]:
        state = ALGOS[name].init(SPREAD.spec, key)
        worlds = open_worlds(ALGOS[name], SPREAD, 2, key)
        return state, collect(ALGOS[name], SPREAD, ALGOS[name].policy(state), worlds, CLOCK, key)[1]

    return hasty_jit(build)(KEY)


@cache
def update_of(name: str) -> Any:
    def update(state: Any, rollout: Rollout) -> Any:
        state, metrics = ALGOS[name].update(SPREAD.spec, state, rollout, CLOCK, jax.random.PRNGKey(1))
        return state.learner.online, metrics

    return hasty_jit(update)


@pytest.mark.parametrize("name", ["maddpg", "iddpg", "masac"])
def test_dead_agents_do_not_count(name: str) -> None:
    """Agent 1 is dead from row 1 on: its rewards and its own actions after that change no critic's loss of its own."""
    spec, algo = spec_of(DISCRETE), ALGOS[name]
    now, batch = learner_of(algo, spec), batch_of(spec)
    dying = at(batch, lambda b: b.step.alive, batch.step.alive.at[1:, :, 1].set(False))
    dying = at(dying, lambda b: b.step.discount, dying.step.discount.at[1:, :, 1].set(0.0))
    loss, _ = critic_loss(algo, spec, now, dying)
    assert float(loss.weight) == TIME * BATCH + BATCH  # all of agent 0's, one of agent 1's
    paid = at(dying, lambda b: b.step.reward, dying.step.reward.at[2:, :, 1].add(50.0))
    assert_same(critic_loss(algo, spec, now, paid), critic_loss(algo, spec, now, dying))
    # Its actors' gradient: only agent 1's dead rows differ, and only its own critic and actor would see that.
    seen = dying.step.obs.at[1:-1, :, 1].add(3.0)
    blind = replace(algo, critic=replace(algo.critic, sees="own"))
    mine = learner_of(blind, spec)
    other = at(dying, lambda b: b.step.obs, seen)
    assert_same(actor_gradient(blind, spec, mine, other), actor_gradient(blind, spec, mine, dying))
    assert differs(
        actor_gradient(blind, spec, mine, at(batch, lambda b: b.step.obs, seen)),
        actor_gradient(blind, spec, mine, batch),
    )


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_a_dead_agents_entropy_is_worth_nothing_to_its_team(kind: str) -> None:
    """Agent 1 is dead in row 2: of its policy there, only the living one's half of the team's entropy is left."""
    spec = replace(spec_of(KINDS[kind]), cooperative=True)
    algo = replace(ALGOS["facmac"], entropy=Entropy("fixed", alpha=0.5), target_action="argmax")
    now, batch = learner_of(algo, spec), batch_of(spec)
    dying = at(batch, lambda b: b.step.alive, batch.step.alive.at[2, :, 1].set(False))
    params = algo._reader.sequences(spec, now.online["actor"], batch)
    key = sees(batch).key("target")
    entropy = algo._head.target(spec, params, batch.step.legal, key, sampled=False)[1]
    fewer = np.zeros((TIME, BATCH, 1), np.float32)
    fewer[1, :, 0] = GAMMA * 0.5 * entropy[2, :, 1] / 2
    assert np.abs(fewer[1]).min() > 1e-3
    np.testing.assert_allclose(
        targets(algo, spec, now, dying), targets(algo, spec, now, batch) - fewer, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", ["maddpg", "masac", "facmac"])
def test_illegal_actions_have_no_gradient_and_are_never_done(name: str) -> None:
    spec = spec_of(DISCRETE, action_sizes=(4, 2))
    algo = replace(ALGOS[name], actor=replace(TINY, weights="per_agent"))
    now, batch = learner_of(algo, spec), batch_of(spec)
    batch = at(batch, lambda b: b.step.legal, batch.step.legal.at[:, :, 1, 2:].set(False))
    batch = at(batch, lambda b: b.action, batch.action.at[:, :, 1].min(1))
    head = np.asarray(actor_gradient(algo, spec, now, batch).head.weight)
    assert not head[1, :, 2:].any() and head[1, :, :2].any() and head[0].any()
    step, policy = jax.tree.map(lambda x: x[0], batch.step), now.online["actor"]
    for greedy in (True, False):
        act = lambda k, g=greedy: algo.act(spec, policy, algo.carry(spec, BATCH), step, CLOCK, k, greedy=g)[1]  # noqa: E731
        drawn = np.asarray(jax.vmap(act)(jax.random.split(KEY, 50)))
        assert drawn[..., 1].max() <= 1
    u, _ = algo._head.target(spec, jnp.zeros((BATCH, 2, 4)).at[:, 1, 2:].set(9.0), step.legal, KEY, sampled=True)
    assert not np.asarray(u)[:, 1, 2:].any()


@pytest.mark.parametrize("soft", [False, True])
def test_dimensions_that_an_agent_lacks_have_no_gradient(soft: bool) -> None:
    spec = spec_of(BOX, action_sizes=(2, 1))
    np.testing.assert_array_equal(real(spec), [[True, True], [True, False]])
    algo = replace(ALGO, actor=replace(TINY, weights="per_agent"), entropy=Entropy("auto" if soft else "none"))
    now, batch = learner_of(algo, spec), batch_of(spec)
    head = np.asarray(actor_gradient(algo, spec, now, batch).head.bias)
    lacking = [1, 3] if soft else [1]
    assert not head[1, lacking].any() and head[0].all()
    scrambled = at(batch, lambda b: b.action, batch.action.at[:, :, 1, 1].set(0.5))
    assert_same(critic_loss(algo, spec, now, scrambled), critic_loss(algo, spec, now, batch))


# -- acting ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_evaluation_does_not_sample(kind: str, soft: bool) -> None:
    spec, algo = spec_of(KINDS[kind]), replace(ALGO, entropy=Entropy("auto" if soft else "none"))
    policy = jax.tree.map(lambda x: x + 0.3, algo.init(spec, KEY).learner.online["actor"])
    step = jax.tree.map(lambda x: x[0], batch_of(spec).step)

    def act(key: jax.Array, greedy: bool) -> jax.Array:
        return algo.act(spec, policy, algo.carry(spec, BATCH), step, CLOCK, key, greedy=greedy)[1]

    same = np.asarray(jax.vmap(partial(act, greedy=True))(jax.random.split(KEY, 20)))
    assert np.all(same == same[:1])
    explored = np.asarray(jax.vmap(partial(act, greedy=False))(jax.random.split(KEY, 20)))
    assert np.any(explored != explored[:1])
    params = forward(policy, np.concatenate([step.obs, np.broadcast_to(np.eye(2), (BATCH, 2, 2))], axis=-1))
    best = choose(spec, params[..., : spec.action.width])
    np.testing.assert_allclose(algo._head.encode(spec, jnp.asarray(same[0])), best, atol=1e-5)


def test_evaluation_episodes_are_not_stored() -> None:
    config = small_config("maddpg", seeds=(0, 1))
    program = Program(config)
    state, _ = hasty_jit(partial(program.chunk, iterations=2))(hasty_jit(program.init)())
    after, _ = hasty_jit(program.evaluate)(state)
    assert_same(after.members.algo, state.members.algo)


@pytest.mark.parametrize("kind", ["st", "gst", "tags", "grmck", "relaxed"])
def test_the_environment_gets_an_index_and_the_store_keeps_it(kind: Kind) -> None:
    spec, algo = spec_of(BRANCHES), replace(ALGO, gumbel=Gumbel(kind))
    state = algo.init(spec, KEY)
    step = jax.tree.map(lambda x: x[0], batch_of(spec).step)
    _, action, _ = algo.act(spec, algo.policy(state), algo.carry(spec, BATCH), step, CLOCK, KEY, greedy=False)
    assert action.dtype == state.store.items.action.dtype == jnp.int32 and action.shape == (BATCH, 2, 2)
    assert np.all(np.asarray(action) < np.array([2, 3])) and np.all(np.asarray(action) >= 0)
    # What a critic reads in an actor's loss: one action of each branch, unless relaxed.
    params = jax.random.normal(KEY, (BATCH, 2, 5))
    u, _ = algo._head.differentiable(spec, params, step.legal, KEY, jnp.uint32(0))
    for branch in np.split(np.asarray(u), [2], axis=-1):
        np.testing.assert_allclose(branch.sum(-1), 1.0, rtol=1e-5)
        assert (set(np.unique(branch)) == {0.0, 1.0}) == (kind != "relaxed")


@pytest.mark.parametrize("action", [DISCRETE, BRANCHES], ids=["discrete", "branches"])
def test_ties_give_one_action(action: ActionSpec) -> None:
    spec = spec_of(action)
    flat, legal = jnp.zeros((BATCH, 2, action.width)), jnp.ones((BATCH, 2, action.width), bool)
    for sampled in (False, True):
        u, _ = ALGO._head.target(spec, flat, legal, KEY, sampled=sampled)
        for branch in np.split(np.asarray(u), np.cumsum(action.sizes)[:-1], axis=-1):
            assert set(np.unique(branch)) == {0.0, 1.0} and np.all(branch.sum(-1) == 1.0)


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_noise_has_a_state_of_its_own(kind: Any) -> None:
    """It holds no action: every step's noise is added to the actor's clean output."""
    spec, algo = spec_of(BOX), replace(ALGO, noise=Noise(kind, scale=0.05))
    policy = algo.init(spec, KEY).learner.online["actor"]
    step = jax.tree.map(lambda x: x[1], batch_of(spec).step)
    carry = algo.carry(spec, BATCH)
    mean = algo._head.encode(spec, algo.act(spec, policy, carry, step, CLOCK, KEY, greedy=True)[1])
    for t in range(30):
        carry, action, _ = algo.act(spec, policy, carry, step, CLOCK, stream(KEY, "t", t), greedy=False)
        off = np.asarray(algo._head.encode(spec, action) - mean)
        assert np.abs(off).max() < 0.7
        if kind == "ou":
            np.testing.assert_allclose(off, carry.noise, atol=1e-5)
        else:
            assert carry.noise.shape == (BATCH, 2, 0) and 0.02 < off.std() < 0.1
    opened = at(step, lambda s: s.first, jnp.ones(BATCH, bool))
    after, _, _ = algo.act(spec, policy, carry, opened, CLOCK, KEY, greedy=False)
    if kind == "ou":  # a new episode forgets the process
        assert np.abs(np.asarray(after.noise)).max() < 0.3 and differs(after.noise, carry.noise)


def test_actions_of_a_box_lie_between_the_bounds_of_each_agent() -> None:
    spec = spec_of(BOX)
    head, (low, high) = ALGO._head, BOX.bounds
    step = jax.tree.map(lambda x: x[0], batch_of(spec).step)
    for value, bound in ((50.0, high), (-50.0, low), (0.0, (low + high) / 2)):
        action = head.greedy(spec, jnp.full((BATCH, 2, 2), value), step.legal)
        np.testing.assert_allclose(action, np.broadcast_to(bound, (BATCH, 2, 2)), atol=1e-5)
    drawn = np.asarray(head.uniform(spec, jnp.ones((2000, 2, 2), bool), KEY))
    np.testing.assert_allclose([drawn.min(0), drawn.max(0)], [low, high], atol=0.05)
    action = random_actions(spec, 7)
    np.testing.assert_allclose(head._decode(spec, head.encode(spec, action)), action, rtol=1e-5, atol=1e-5)


def test_random_steps_are_uniform_and_end() -> None:
    spec = spec_of(DISCRETE)
    algo = replace(ALGO, random_steps=10)
    policy = at(algo.init(spec, KEY).learner.online["actor"], lambda p: p.head.bias, jnp.array([50.0, 0, 0, 0]))
    step = jax.tree.map(lambda x: x[0], batch_of(spec).step)

    def act(steps: int) -> np.ndarray:
        clock = Clock(jnp.int32(0), jnp.uint32(steps), jnp.float32(100))
        each = jax.vmap(lambda k: algo.act(spec, policy, algo.carry(spec, BATCH), step, clock, k, greedy=False)[1])
        return np.asarray(each(jax.random.split(KEY, 200)))

    np.testing.assert_allclose(np.bincount(act(9).ravel()) / 2000, 0.25, atol=0.05)
    assert not act(10).any()


# -- actors ---------------------------------------------------------------------------------------------------------
def test_the_temperature_falls_with_environment_steps_not_with_updates() -> None:
    spec = spec_of(DISCRETE)
    gumbel = Gumbel("tags", temperature=4.0, end=1.0, period=1000)
    algo = replace(ALGO, gumbel=gumbel)
    now, batch = learner_of(algo, spec), batch_of(spec)
    later = Clock(jnp.int32(0), jnp.uint32(500), jnp.float32(100))
    half = replace(algo, gumbel=Gumbel("st", temperature=2.0))
    aged = replace(now, updates=jnp.int32(10**6))
    assert_close(actor_gradient(algo, spec, aged, batch, later), actor_gradient(half, spec, now, batch), 1e-6)
    assert_same(actor_gradient(algo, spec, aged, batch), actor_gradient(algo, spec, now, batch))
    assert differs(actor_gradient(algo, spec, now, batch), actor_gradient(algo, spec, now, batch, later))


@pytest.mark.parametrize("others", ["buffer", "current"])
def test_actors_follow_their_own_critic_only(others: Any) -> None:
    """With weights per agent, agent 0's gradient is that of critic 0 alone, and of its own action in it."""
    spec = spec_of(BOX)
    own = replace(TINY, weights="per_agent")
    algo = replace(ALGO, actor=own, critic=ActionCritic(own), others=others, logit_penalty=0.0, agent_id=False)
    now, batch = learner_of(algo, spec), batch_of(spec)
    now = replace(now, online=jax.tree.map(lambda x: x + 0.1, now.online))
    taken = algo._head.encode(spec, batch.action)
    pick = lambda tree, i: jax.tree.map(lambda x: x[i], tree)  # noqa: E731

    def by_hand(actor: Any) -> jax.Array:
        total = jnp.zeros(())
        for i in range(2):
            mine = jnp.tanh(run(pick(actor, i), batch.step.obs[:-1, :, i]))
            rest = taken[:, :, 1 - i]
            if others == "current":
                rest = jax.lax.stop_gradient(jnp.tanh(run(pick(actor, 1 - i), batch.step.obs[:-1, :, 1 - i])))
            joint = jnp.concatenate([mine, rest] if i == 0 else [rest, mine], axis=-1)
            seen = batch.step.obs[:-1].reshape(TIME, BATCH, -1)
            total += run(pick(now.online["critic"].twins[0], i), jnp.concatenate([seen, joint], axis=-1)).mean()
        return -total / 2

    assert_close(actor_gradient(algo, spec, now, batch), jax.grad(by_hand)(now.online["actor"]), 1e-5)


def run(net: Any, x: jax.Array) -> jax.Array:
    for layer in net.before:
        x = jax.nn.relu(x @ layer.weight + layer.bias)
    return x @ net.head.weight + net.head.bias


@pytest.mark.parametrize("updates", [0, 1])
def test_delayed_actors_and_targets_move_every_second_step(updates: int) -> None:
    """In the same one, however many steps were taken before the clock's present count (after an odd warm-up, say)."""
    spec = spec_of(DISCRETE)
    algo = replace(ALGO, delay=2, target=Target(every=2, tau=0.5))
    now, batch = replace(algo.init(spec, KEY).learner, updates=jnp.int32(updates)), batch_of(spec)
    one, metrics = delayed(algo, spec, now, batch, 0)
    assert_same(one.online["actor"], now.online["actor"])
    assert differs(one.online["critic"], now.online["critic"]) and float(metrics["actor_value"].weight) == 0
    assert_same(one.target, now.target)
    two, metrics = delayed(algo, spec, one, batch, 1)
    assert differs(two.online["actor"], one.online["actor"]) and float(metrics["actor_value"].weight) > 0
    halfway = jax.tree.map(lambda new, old: (new + old) / 2, two.online["actor"], one.target["actor"])
    assert_close(two.target["actor"], halfway, 1e-6)


@partial(hasty_jit, static_argnums=(0, 1))
def delayed(algo: DDPG, spec: Spec, now: Learner[Groups], batch: Sequence, step: jax.Array) -> Any:
    return algo._gradient_step(spec, now, sees(batch, step=step))


def test_weights_per_team_are_moved_by_their_team_alone() -> None:
    spec = replace(spec_of(DISCRETE), agents=("a", "b", "c"), teams=("x", "y", "x"))
    net = replace(TINY, weights="per_team")
    algo = replace(ALGO, actor=net, critic=ActionCritic(net), optimiser=Optimiser(clip=1e9))
    algo.check(spec)
    now, batch = algo.init(spec, KEY).learner, batch_of(spec)
    assert all(x.shape[0] == 2 for x in jax.tree.leaves(now.online))
    paid = at(batch, lambda b: b.step.reward, batch.step.reward.at[1:, :, 1].add(9.0))
    (after, _), (other, _) = (delayed(algo, spec, now, b, 0) for b in (batch, paid))
    pick = lambda tree, i: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
    for group in ("actor", "critic"):
        assert differs(pick(after.online[group], 0), pick(now.online[group], 0))
        assert_same(pick(after.online[group], 0), pick(other.online[group], 0))
        assert differs(pick(after.online[group], 1), pick(other.online[group], 1))


def test_weights_of_the_only_team_are_shared() -> None:
    spec, net = spec_of(DISCRETE), replace(TINY, weights="per_team")
    algo = replace(ALGO, actor=net, critic=ActionCritic(net))
    now, batch = learner_of(ALGO, spec), batch_of(spec)
    apart = jax.tree.map(lambda x: x[None], now)
    assert jax.tree.map(jnp.shape, apart.online) == jax.tree.map(jnp.shape, algo.init(spec, KEY).learner.online)
    assert_close(targets(algo, spec, apart, batch), targets(ALGO, spec, now, batch), 1e-5)
    own = jax.tree.map(lambda x: x[0], actor_gradient(algo, spec, apart, batch))
    assert_close(own, actor_gradient(ALGO, spec, now, batch), 1e-5)


def test_an_automatic_alpha_rises_where_entropy_is_short() -> None:
    spec = spec_of(DISCRETE)
    algo = replace(ALGOS["masac"], entropy=Entropy("auto", share=0.5))
    now, batch = learner_of(algo, spec), batch_of(spec)

    def slope(bias: float) -> np.ndarray:
        sharp = at(now.online["actor"], lambda p: p.head.bias, jnp.array([bias, 0, 0, 0]))

        def loss(alpha: jax.Array) -> jax.Array:
            groups = {**now.online, "actor": sharp, "alpha": alpha}
            return algo._actor_loss(spec, now, sees(batch), groups)[0]["alpha"].value

        return np.asarray(jax.grad(loss)(now.online["alpha"]))

    # Gradient descent: positive slopes lower alpha. A uniform policy has log(4), twice the target.
    np.testing.assert_allclose(slope(0.0), np.log(4) / 4, rtol=2e-2)
    np.testing.assert_allclose(slope(50.0), -np.log(4) / 4, rtol=2e-2)


# -- critics, recurrent and not -------------------------------------------------------------------------------------
def test_sequences_and_single_transitions_have_the_same_loss() -> None:
    spec, algo = spec_of(BOX), replace(ALGO, last_action=True)
    now, batch = learner_of(algo, spec), batch_of(spec)
    step, action, filled = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batch.step, batch.action, batch.filled))
    store = Sequence(step, action, filled, batch.memory)
    index, time = (x.ravel() for x in jnp.meshgrid(jnp.arange(BATCH), jnp.arange(TIME)))
    singles = transitions(store, index, time)
    assert singles.step.obs.shape == (2, TIME * BATCH, 2, 3) and singles.action.shape == (1, TIME * BATCH, 2, 2)
    whole, single = (critic_loss(algo, spec, now, b)[1] for b in (batch, singles))
    assert_close(whole, single, 1e-4)
    gradient = actor_gradient(algo, spec, now, batch)
    assert np.abs(gradient.head.weight).max() > 1e-2
    assert_close(gradient, actor_gradient(algo, spec, now, singles), 1e-5)


def test_only_filled_transitions_are_drawn_each_as_often() -> None:
    filled = jnp.asarray(np.random.default_rng(0).random((6, 4)) < 0.6)
    index = jax.random.randint(KEY, (40_000,), 0, 5)
    sequence, time = (np.asarray(x) for x in draw_filled(KEY, filled, jnp.int32(5), index))
    hit = np.asarray(filled)[sequence, time]
    share = np.asarray(filled)[:5].mean()
    assert hit.mean() == pytest.approx(1 - (1 - share) ** 4, abs=0.01) and sequence.max() == 4
    counts = np.bincount(sequence[hit] * 4 + time[hit], minlength=24).reshape(6, 4)
    expected = np.asarray(filled) * (np.arange(6)[:, None] < 5)
    np.testing.assert_allclose(counts / hit.sum(), expected / expected.sum(), atol=0.01)


def test_a_recurrent_critic_judges_other_actions_after_the_same_history() -> None:
    spec, algo = spec_of(BOX), ALGOS["gru"]
    critic, twins = algo.critic, algo.init(spec, KEY).learner.online["critic"].twins
    batch = batch_of(spec)
    taken = algo._head.encode(spec, batch.action)[:, :, None]
    other = algo._head.encode(spec, random_actions(spec, TIME + 1, BATCH, seed=9))[:, :, None]
    found = np.asarray(critic.alternatives(spec, twins, batch.step, taken, other))
    for t in range(TIME + 1):
        rows = jax.tree.map(lambda x, t=t: x[: t + 1], batch.step)
        joint = jnp.concatenate([taken[:t], other[t : t + 1]])
        np.testing.assert_allclose(found[:, t], critic.values(spec, twins, rows, joint)[:, t], atol=1e-5)
    # The actions taken themselves: as if nothing had been asked.
    same = critic.alternatives(spec, twins, batch.step, taken, jnp.concatenate([taken, other[-1:]]))
    before = jax.tree.map(lambda x: x[:-1], batch.step)
    np.testing.assert_allclose(same[:, :-1], critic.values(spec, twins, before, taken), atol=1e-5)


@pytest.mark.parametrize("sees", ["all", "own", "team"])
@pytest.mark.parametrize("weights", ["shared", "per_agent"])
def test_what_critics_see(sees: Any, weights: Any) -> None:
    spec = replace(spec_of(DISCRETE), agents=("a", "b", "c"), teams=("x", "x", "y"))
    critic = ActionCritic(replace(TINY, weights=weights), sees=sees)
    twins = critic.init(spec, KEY)
    step = batch_of(spec).step
    joint = ALGO._head.encode(spec, random_actions(spec, TIME + 1, BATCH))[:, :, None]
    seen_by = {"all": np.ones((3, 3)), "own": np.eye(3), "team": [[1, 1, 0], [1, 1, 0], [0, 0, 1]]}[sees]

    def moved(step: Step, joint: jax.Array) -> np.ndarray:
        change = critic.values(spec, twins, step, joint) - critic.values(spec, twins, *plain)
        return np.abs(np.asarray(change)).max(axis=(0, 1, 2)) > 1e-6

    plain = (step, joint)
    for agent in range(3):
        seen = at(step, lambda s: s.obs, step.obs.at[:, :, agent].add(1.0))
        np.testing.assert_array_equal(moved(seen, joint), np.array(seen_by)[:, agent] > 0)
        done = joint.at[:, :, :, agent].set(jnp.roll(joint[:, :, :, agent], 1, axis=-1))
        np.testing.assert_array_equal(moved(step, done), np.array(seen_by)[:, agent] > 0)


def test_a_million_transitions_fit_into_a_gibibyte() -> None:
    spec, collect = TASKS["mpe/simple_spread"].spec, PRESETS["maddpg"].collect
    algo = replace(PRESETS["maddpg"], replay=Replay(capacity=-(-(10**6) // collect.length), unit="transition"))
    store = jax.eval_shape(lambda: algo.init(spec, KEY).store)
    assert spec.n_agents == 3 and store.items.filled.size >= 10**6
    assert sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(store)) < 2**30


# -- switches -------------------------------------------------------------------------------------------------------
SOFT = replace(ALGO, entropy=Entropy("auto"))
OFF = replace(ALGO, noise=Noise("none"), logit_penalty=0.0)
OU = replace(ALGO, noise=Noise("ou"))
NEUTRAL: dict[str, tuple[str, DDPG, DDPG]] = {
    "smoothing": ("box", ALGO, replace(ALGO, smoothing=Smoothing(scale=0.0, limit=0.1))),
    "entropy": ("box", ALGO, replace(ALGO, entropy=Entropy("none", alpha=0.7, share=0.7, lr=0.7))),
    "entropy fixed": (
        "discrete",
        replace(ALGO, entropy=Entropy("fixed")),
        replace(ALGO, entropy=Entropy("fixed", share=0.7, lr=0.7)),
    ),
    "noise": ("box", OFF, replace(OFF, noise=Noise("none", scale=0.7, theta=0.7, dt=0.7))),
    "noise gaussian": ("box", ALGO, replace(ALGO, noise=Noise("gaussian", theta=0.7, dt=0.7))),
    "noise of discrete actions": ("discrete", ALGO, OU),
    "mixer": ("discrete", ALGO, replace(ALGO, mixer=Mixer("none", embed=7, hyper=7))),
    "gumbel of a box": ("box", ALGO, replace(ALGO, gumbel=Gumbel("grmck", temperature=0.7))),
}
ACTIVE: dict[str, tuple[str, DDPG, DDPG]] = {
    "twins": ("discrete", ALGO, replace(ALGO, critic=replace(ALGO.critic, twins=2))),
    "delay": ("discrete", ALGO, replace(ALGO, delay=2)),
    "smoothing": ("box", ALGO, replace(ALGO, smoothing=Smoothing(scale=0.2))),
    "smoothing.limit": ("box", *(replace(ALGO, smoothing=Smoothing(0.2, limit)) for limit in (0.5, 0.4))),
    "entropy fixed": ("discrete", ALGO, replace(ALGO, entropy=Entropy("fixed"))),
    "entropy auto": ("box", replace(ALGO, entropy=Entropy("fixed")), SOFT),
    "entropy.share": ("discrete", SOFT, replace(ALGO, entropy=Entropy("auto", share=0.7))),
    "entropy.lr": ("discrete", SOFT, replace(ALGO, entropy=Entropy("auto", lr=0.7))),
    "logit_penalty": ("discrete", replace(ALGO, logit_penalty=0.0), ALGO),
    "noise gaussian": ("box", replace(ALGO, noise=Noise("none")), ALGO),
    "noise ou": ("box", ALGO, OU),
    "noise.scale": ("box", ALGO, replace(ALGO, noise=Noise(scale=0.7))),
    "noise.theta": ("box", OU, replace(ALGO, noise=Noise("ou", theta=0.7))),
    "noise.dt": ("box", OU, replace(ALGO, noise=Noise("ou", dt=0.7))),
    "mixer vdn": ("discrete", ALGO, replace(ALGO, mixer=Mixer("vdn"))),
    "mixer qmix": ("discrete", replace(ALGO, mixer=Mixer("vdn")), replace(ALGO, mixer=Mixer("qmix"))),
}
SHOWN = {"entropy fixed": {"entropy", "alpha"}, "entropy auto": {"grad_norm_alpha"}, "logit_penalty": {"logit_size"}}


@cache
def program(algo: DDPG, kind: str) -> tuple[str, frozenset[str]]:
    """What acting and a gradient step are before they are compiled, constants and all, and the step's metrics."""
    spec = replace(spec_of(KINDS[kind]), cooperative=True)
    algo.check(spec)
    batch, now = batch_of(spec), jax.eval_shape(lambda: algo.init(spec, KEY).learner)
    row = jax.tree.map(lambda x: x[0], batch.step)

    def both(now: Learner[Groups], batch: Sequence, row: Step) -> Any:
        carry = algo.carry(spec, BATCH)
        acted = algo.act(spec, now.online["actor"], carry, row, CLOCK, KEY, greedy=False)[:2]
        return acted, algo._gradient_step(spec, now, sees(batch))

    lowered = jax.jit(both).lower(now, batch, row)
    return lowered.as_text(), frozenset(lowered.out_info[1][1])


@pytest.mark.parametrize("name", list(NEUTRAL))
def test_what_is_off_leaves_no_trace(name: str) -> None:
    kind, bare, off = NEUTRAL[name]
    assert off != bare and program(off, kind) == program(bare, kind)


@pytest.mark.parametrize("name", list(ACTIVE))
def test_what_is_on_changes_the_program(name: str) -> None:
    kind, off, on = ACTIVE[name]
    assert program(off, kind)[0] != program(on, kind)[0]
    assert SHOWN.get(name, set()) == program(on, kind)[1] - program(off, kind)[1]


def test_a_mechanism_shows_what_it_does() -> None:
    metrics = update_of("masac")(*experience("masac"))[1]
    assert all(float(metrics[name].value) > 0 for name in ("entropy", "alpha", "grad_norm_alpha", "logit_size"))


# -- refusals -------------------------------------------------------------------------------------------------------
def test_what_cannot_be_trained_is_refused() -> None:
    unbounded = ActionSpec("box", (1,), ((-np.inf,),), ((np.inf,),))
    cases = [
        (ALGO, ActionSpec("multi_binary", (3,)), "bits"),
        (ALGO, unbounded, "finite bounds"),
        (replace(ALGO, mixer=Mixer("vdn")), DISCRETE, "cooperative"),
        (replace(ALGO, actor=replace(TINY, kind="gru")), DISCRETE, "single transitions"),
        (replace(PRESETS["iql"], net=replace(TINY, weights="per_team")), DISCRETE, "per_team"),
        (replace(PRESETS["ippo"], actor=replace(TINY, weights="per_team")), DISCRETE, "per_team"),
    ]
    for algo, action, message in cases:
        with pytest.raises(ConfigError, match=message):
            algo.check(spec_of(action))
    replace(ALGO, replay=replace(ALGO.replay, priority=0.6)).check(spec_of(DISCRETE))
    for name in ("maddpg", "masac", "matd3", "maddpg_openai"):
        PRESETS[name].check(spec_of(BOX))
