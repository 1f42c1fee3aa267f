"""Sharing: what is offered, to whom, what is taken, how much; and what receivers make of it, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import differs, hasty_jit

from rookery.algorithms.q import Q
from rookery.core.errors import ConfigError
from rookery.core.types import ActionSpec, Clock, Spec, Step
from rookery.mechanisms import measures
from rookery.mechanisms.agent_values import Nets
from rookery.mechanisms.credit import Credit, Experience
from rookery.mechanisms.judge import FEATURES, Clues, Judge
from rookery.mechanisms.share import Recent, Share
from rookery.memory.learning import Minibatch
from rookery.memory.replay import Draw
from rookery.memory.sequences import Memory, Sequence, borrow
from rookery.nets.agent import Net
from rookery.nets.mixers import Mixer

KEY = jax.random.PRNGKey(0)
CLOCK = Clock(jnp.int32(0), jnp.uint32(0), jnp.float32(100))
ACTIONS = 3


def spec_of(agents: int, **facts: Any) -> Spec:
    names = tuple(f"a{i}" for i in range(agents))
    return Spec("hand", names, (4,), ActionSpec("discrete", (ACTIONS,)), 9, **{"position": (0, 1), **facts})


SPEC = spec_of(3)


def batch_of(spec: Spec, time: int = 5, batch: int = 2, hidden: int = 0, seed: int = 0, **parts: Any) -> Sequence:
    """Random transitions; the second sequence ends before its last transition, which is void."""
    rng = np.random.default_rng(seed)
    rows, n = (time + 1, batch), spec.n_agents
    step = {
        "obs": rng.normal(size=(*rows, n, 4)).astype(np.float32),
        "state": np.zeros((*rows, 0), np.float32),
        "legal": np.ones((*rows, n, ACTIONS), bool),
        "alive": np.ones((*rows, n), bool),
        "reward": rng.normal(size=(*rows, n)).astype(np.float32),
        "discount": np.ones((*rows, n), np.float32),
        "first": np.zeros(rows, bool),
        "last": np.zeros(rows, bool),
        "success": np.zeros(rows, np.float32),
    }
    step["last"][time - 1, 1:] = True
    step |= parts
    action = jnp.asarray(rng.integers(0, ACTIONS, (time, batch, n)), jnp.int32)
    memory = Memory(jnp.asarray(rng.normal(size=(batch, n, hidden)), jnp.float32), jnp.zeros((batch, n), jnp.int32))
    made = Step(**jax.tree.map(jnp.asarray, step))
    return Sequence(made, action, ~made.last[:-1], memory)


def experience(error: np.ndarray, lived: np.ndarray | None = None) -> Experience:
    """Transitions [time, batch, agent] with these TD errors."""
    x = jnp.asarray(error, jnp.float32)
    mask = jnp.ones(x.shape, bool) if lived is None else jnp.asarray(lived)
    return Experience(x, x, x, jnp.ones_like(x), mask, mask.astype(jnp.float32))


def remembered(share: Share, *batches: np.ndarray, lived: np.ndarray | None = None) -> Recent:
    spec = spec_of(batches[0].shape[-1])
    recent = share.init(spec, KEY)
    for error in batches:
        recent = share.remember(recent, spec, experience(error, lived), batch_of(spec, *error.shape[:2]))
    return recent


# --- what is offered


@pytest.mark.parametrize("window", [7, 100])
def test_the_window_holds_the_last_real_errors(window: int) -> None:
    rng = np.random.default_rng(1)
    share, spec = Share("quantile", window=window), spec_of(2)
    recent, expected = share.init(spec, KEY), [[], []]
    remember = jax.jit(lambda r, e, m: share.remember(r, spec, Experience(e, e, e, e, m, e), batch_of(spec, 4, 3)))
    for _ in range(9):
        error, lived = rng.normal(size=(4, 3, 2)), rng.random((4, 3, 2)) < 0.6
        recent = remember(recent, jnp.asarray(error, jnp.float32), jnp.asarray(lived))
        for i in range(2):
            expected[i] += list(np.abs(error[..., i].ravel()[lived[..., i].ravel()]))
            last = expected[i][-window:]
            known = min(len(expected[i]), window)
            np.testing.assert_allclose(sorted(np.asarray(recent.errors[i])[:known]), sorted(last), rtol=1e-5)
    mean, std = share.moments(recent)
    np.testing.assert_allclose(mean, [np.mean(e[-window:]) for e in expected], rtol=1e-4)
    np.testing.assert_allclose(std, [np.std(e[-window:]) for e in expected], rtol=1e-4)


@pytest.mark.parametrize("bandwidth", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("select", ["quantile", "gaussian", "gaussian_upper", "stochastic"])
def test_the_realised_bandwidth_is_the_one_asked_for(select: str, bandwidth: float) -> None:
    """On Gaussian |TD errors| (of mean 10, so that none is negative), some transitions void, over several batches."""
    rng = np.random.default_rng(2)
    share, spec = Share(select, bandwidth=bandwidth, window=4000), spec_of(3)  # type: ignore

    def one(recent: Recent, error: jax.Array, lived: jax.Array, key: jax.Array) -> tuple[Recent, jax.Array]:
        own = Experience(error, error, error, error, lived, error)
        recent = share.remember(recent, spec, own, batch_of(spec, 40, 50))
        return recent, share.offer(key, recent, own, share.rate(own, error[..., None]), error[..., None])

    recent, offered, real = share.init(spec, KEY), 0, 0
    step = jax.jit(one)
    for k in range(5):
        error = rng.normal(10, 2, size=(40, 50, 3)) * np.array([1, 5, 0.1]) * rng.choice([-1, 1], size=(40, 50, 3))
        lived = rng.random((40, 50, 3)) < 0.8
        recent, chosen = step(recent, jnp.asarray(error, jnp.float32), jnp.asarray(lived), jax.random.PRNGKey(k))
        chosen = np.asarray(chosen)
        assert not chosen[~lived].any()
        offered, real = offered + chosen.sum((0, 1)), real + lived.sum((0, 1))
        if select in ("quantile", "gaussian_upper"):
            assert np.abs(error)[chosen].min() > 0 and all(
                np.abs(error[..., i])[chosen[..., i]].min() > np.median(np.abs(error[..., i])) for i in range(3)
            )
    np.testing.assert_allclose(offered / real, bandwidth, rtol=0.1)


def test_gaussian_offers_both_tails_and_stochastic_prefers_the_upper() -> None:
    rng = np.random.default_rng(3)
    error = rng.normal(10, 2, size=(40, 50, 1))
    spec, own = spec_of(1), experience(error)
    gaussian = Share("gaussian", bandwidth=0.2, window=2000)
    chosen = np.asarray(gaussian.offer(KEY, remembered(gaussian, error), own, jnp.array([0.2]), own.error))
    assert 0.4 < (error[chosen] < 10).mean() < 0.6
    stochastic = Share("stochastic", window=2000)
    recent = stochastic.init(spec, KEY)
    chosen = np.asarray(stochastic.offer(KEY, recent, own, jnp.array([0.2]), own.error))
    assert chosen.sum() == 400 and error[chosen].mean() > error.mean() + 0.2 and error[chosen].min() < 9


def test_a_judge_offers_what_it_expects_to_help() -> None:
    share = Share("learned")
    own, recent = experience(np.ones((5, 4, 2))), share.init(spec_of(2), KEY)
    features = jax.random.normal(KEY, (5, 4, 2, FEATURES))
    chosen = np.asarray(share.offer(KEY, recent, own, jnp.array([0.25, 0.5]), features))
    assert recent.judge is not None
    score = np.asarray(recent.judge.score(features))
    for i, n in enumerate((5, 10)):
        assert set(np.argsort(score[..., i].ravel())[-n:]) == set(np.flatnonzero(chosen[..., i].ravel()))


def test_a_judge_learns_what_helps() -> None:
    judge, rng = Judge.init(KEY, 4), np.random.default_rng(0)
    learn = jax.jit(lambda j, c, g, a: j.learn(c, g, a, jnp.float32(0)))
    losses = []
    for _ in range(400):
        x, r, s = rng.normal(size=(6, 8, 2, FEATURES)), rng.normal(size=(8, 2, 4)), rng.normal(size=(8, 2, 4))
        gain = x[..., 0] + r[..., 0] * s[..., 0]
        judge, metrics = learn(
            judge, Clues(*(jnp.asarray(v, jnp.float32) for v in (x, r, s))), jnp.asarray(gain, jnp.float32),
            jnp.ones(gain.shape, bool),
        )  # fmt: skip
        losses.append([float(metrics[f"share_judge_{name}"].value) for name in ("transitions", "partners")])
    first, last = np.mean(losses[:20], axis=0), np.mean(losses[-20:], axis=0)
    assert last[0] < 0.75 * first[0] and last[1] < 0.75 * first[1]


# --- with whom


def reach(share: Share, spec: Spec, batch: Sequence, offered: np.ndarray | None = None, seed: int = 0) -> Any:
    """Senders [batch, partner, receiver], and whether each transition in reach [time, batch, partner, receiver]."""
    shape = (*batch.filled.shape, spec.n_agents)
    mask = jnp.ones(shape, bool) if offered is None else jnp.asarray(offered)
    recent = share.remember(share.init(spec, KEY), spec, experience(np.ones(shape)), batch)
    senders, allowed, metrics = share.reach(jax.random.PRNGKey(seed), spec, recent, batch, mask)
    return np.asarray(senders), np.asarray(allowed), metrics


def test_everyone_reads_whoever_offers_most_but_never_itself() -> None:
    batch = batch_of(SPEC)
    offered = np.zeros((5, 2, 3), bool)
    offered[:3, 0, 2] = offered[:2, 0, 1] = offered[:1, 1, 0] = True
    senders, allowed, _ = reach(Share("all"), SPEC, batch, offered)
    assert senders[0, 0].tolist() == [2, 2, 1] and senders[1, 0, 1:].tolist() == [0, 0] and allowed.all()
    for partners in (9, 0):  # more than there are, and all
        both, _, _ = reach(Share("all", max_partners=partners), SPEC, batch, offered)
        assert both.shape == (2, 2, 3)
        assert all(sorted([*both[b, :, j], j]) == [0, 1, 2] for b in range(2) for j in range(3))
    # Equal offers: each in turn.
    seen = {int(reach(Share("all"), SPEC, batch, seed=s)[0][0, 0, 0]) for s in range(12)}
    assert seen == {1, 2}


def test_team() -> None:
    spec = spec_of(4, teams=("x", "y", "x", "y"))
    senders, allowed, _ = reach(Share("all", "team"), spec, batch_of(spec))
    assert np.all(senders == [2, 3, 0, 1]) and allowed.all()


def placed(positions: list[list[float]], spec: Spec = SPEC, **parts: Any) -> Sequence:
    obs = np.zeros((3, 1, spec.n_agents, 4), np.float32)
    obs[..., :2] = positions
    return batch_of(spec, 2, 1, obs=obs, last=np.zeros((3, 1), bool), **parts)


def test_range() -> None:
    batch = placed([[0, 0], [0.3, 0.3], [5, 5]])
    near = lambda **kw: reach(Share("all", "range", max_partners=2, **kw), SPEC, batch)  # noqa: E731

    def pairs(senders: np.ndarray, allowed: np.ndarray, _: Any) -> set[tuple[int, int]]:
        """(receiver, sender) in reach."""
        return {(j, int(senders[0, k, j])) for k in range(2) for j in range(3) if allowed[:, 0, k, j].all()}

    assert pairs(*near(radius=0.5)) == {(0, 1), (1, 0)}  # l2: 0.42, l1: 0.6
    assert pairs(*near(radius=0.5, metric="l1")) == set()
    assert pairs(*near(radius=0.7, metric="l1")) == {(0, 1), (1, 0)}
    assert pairs(*near(radius=0.5, alone="widen")) == {(0, 1), (1, 0), (2, 1)}
    assert pairs(*near(radius=9.0)) == {(i, j) for i in range(3) for j in range(3) if i != j}
    alive = np.ones((3, 1, 3), bool)
    alive[..., 0] = False
    dead = placed([[0, 0], [0.3, 0.3], [5, 5]], alive=alive)
    assert not reach(Share("all", "range", max_partners=2), SPEC, dead)[1].any()


def test_range_is_of_the_moment() -> None:
    """Agents that part: only transitions from when they were together are in reach."""
    obs = np.zeros((4, 1, 3, 4), np.float32)
    obs[2:, :, 1, :2] = 9.0
    obs[:, :, 2, :2] = -9.0
    batch = batch_of(SPEC, 3, 1, obs=obs, last=np.zeros((4, 1), bool))
    senders, allowed, _ = reach(Share("all", "range"), SPEC, batch)
    assert senders[0, 0, 0] == 1 and allowed[:, 0, 0, 0].tolist() == [True, True, False]


def test_similar() -> None:
    senders, _, _ = reach(Share("all", "similar"), SPEC, placed([[0, 0], [3, 0], [5, 0]]))
    assert senders[0, 0].tolist() == [1, 2, 1]


def test_roles() -> None:
    spec = spec_of(5)
    batch = placed([[0, 0], [5, 5], [0.1, 0], [5, 5.1], [0, 0.1]], spec)
    batch = replace(batch, action=jnp.broadcast_to(jnp.array([0, 1, 0, 1, 0]), batch.action.shape))
    senders, allowed, metrics = reach(Share("all", "role", max_partners=4), spec, batch)
    together = {(j, int(senders[0, k, j])) for k in range(4) for j in range(5) if allowed[0, 0, k, j]}
    assert together == {(i, j) for i in range(5) for j in range(5) if i != j and i % 2 == j % 2}
    assert float(metrics["share_roles"].value) == 2


def test_attention_prefers_but_does_not_insist() -> None:
    share, batch = Share("all", "attention"), placed([[1, 0], [0, 0], [0, 0]])
    recent = share.init(SPEC, KEY)
    assert recent.judge is not None
    eye = jnp.zeros((4, 16)).at[0, 0].set(4.0).at[3, 0].set(0.0)
    params = replace(
        recent.judge.params,
        receiver=replace(recent.judge.params.receiver, weight=jnp.zeros((4, 16)), bias=jnp.zeros(16).at[0].set(2.0)),
        sender=replace(recent.judge.params.sender, weight=eye, bias=jnp.zeros(16)),
    )
    recent = replace(recent, judge=replace(recent.judge, params=params))
    offered = jnp.ones((2, 1, 3), bool)
    chosen = [
        int(share.reach(jax.random.PRNGKey(s), SPEC, recent, batch, offered)[0][0, 0, 1]) for s in range(60)
    ]  # agent 1 expects 2 of agent 0 and 0 of agent 2: odds of e^2
    assert 0.75 < np.mean(np.array(chosen) == 0) < 1 and set(chosen) == {0, 2}


# --- what is taken


def test_what_is_taken() -> None:
    error = np.array([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1) * np.array([1.0, 10.0])
    size = jnp.broadcast_to(jnp.array([0.1, 2.4, 2.6, 4.4, 30.0])[:, None, None], (5, 1, 2))
    taken = {
        accept: np.asarray(share.accepts(remembered(share, error), size))[:, 0].T.tolist()
        for accept in ("everything", "novel", "closer")
        for share in [Share("all", accept=accept, bandwidth=0.1, window=10)]  # type: ignore
    }
    # Own errors have mean 2.5 (25), deviation 1.118 (11.18); z(0.1) = 1.645: closer is 0.66 to 4.34 (6.6 to 43.4).
    assert taken["everything"] == [[True] * 5] * 2
    assert taken["novel"] == [[False, False, True, True, True], [False, False, False, False, True]]
    assert taken["closer"] == [[False, True, True, False, False], [False, False, False, False, True]]


# --- how much


def test_schedules() -> None:
    even, peaked = np.ones((10, 8, 2)), np.full((10, 8, 2), 1e-6)
    peaked[0, 0] = 100.0
    obs = jax.random.normal(KEY, (10, 8, 2, 4))
    rates = lambda share, error, obs: np.asarray(share.rate(experience(error), obs))  # noqa: E731
    constant, entropy = Share("all", bandwidth=0.3), Share("all", schedule="entropy", floor=0.1, ceiling=0.5)
    np.testing.assert_allclose(rates(constant, even, obs), 0.3)
    np.testing.assert_allclose(rates(entropy, even, obs), 0.5, rtol=1e-5)
    np.testing.assert_allclose(rates(entropy, peaked, obs), 0.1, atol=0.01)
    mutual = Share("all", schedule="mutual_information", floor=0.1, ceiling=0.5)
    assert np.all(rates(mutual, even, obs) > 0.48)
    same = jnp.repeat(obs[:, :, :1], 2, axis=2)
    assert np.all(rates(mutual, even, same) < 0.15)


def test_mutual_information_of_gaussians() -> None:
    """Two features with correlation 0.8: I = -log(1 - 0.64) / 2 for each."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 100, 1, 2))
    y = 0.8 * x + 0.6 * rng.normal(size=x.shape)
    lived = np.ones((200, 100, 2), bool)
    lived[:50, :, 1] = False
    obs = np.concatenate([x, np.where(lived[..., 1:, None], y, 1e3)], axis=2)
    have = measures.independence(jnp.asarray(obs, jnp.float32), jnp.asarray(lived))
    np.testing.assert_allclose(have, np.exp(0.5 * np.log(1 - 0.64)), rtol=0.02)


# --- receivers


def sees(batch: Sequence) -> Minibatch:
    return Minibatch(batch, Draw(jnp.arange(batch.filled.shape[1]), None), CLOCK, KEY, jnp.int32(0))


SUPER = Q(
    mixer=Mixer("none"),
    net=Net("gru", width=4, layers=1, weights="per_agent"),
    gamma=0.9,
    agent_id=False,
    share=Share("all", window=50),
)


def test_receivers_read_with_their_own_weights_and_id() -> None:
    for algo, fresh in (
        (SUPER, True),
        (replace(SUPER, agent_id=True, net=replace(SUPER.net, weights="shared")), False),
    ):
        batch = batch_of(SPEC, hidden=4)
        learner = algo.init(SPEC, KEY).learner
        senders = jnp.array([[[1, 2, 0]], [[2, 0, 1]]])
        nets = algo._values.nets(learner.online, learner.target, None)
        q, v = algo._values.read(SPEC, nets, borrow(batch, senders, fresh=fresh))
        for b, j in np.ndindex(2, 3):
            i = int(senders[b, 0, j])
            # The same observations, actions and memory in agent j's place.
            swap = lambda x, i=i, j=j: x.at[:, :, j].set(x[:, :, i])  # noqa: E731
            step = replace(batch.step, obs=swap(batch.step.obs), legal=swap(batch.step.legal))
            hidden = batch.memory.hidden[None]
            memory = Memory(jnp.zeros_like(hidden[0]) if fresh else swap(hidden)[0], swap(batch.memory.action[None])[0])
            placed = Sequence(step, swap(batch.action), batch.filled, memory)
            q_j, v_j = algo._values.read(SPEC, nets, placed)
            np.testing.assert_allclose(q[:, b, j], q_j[:, b, j], atol=1e-5)
            np.testing.assert_allclose(v[:, b, j], v_j[:, b, j], atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_the_loss_of_independent_learners_by_hand(lam: float) -> None:
    """Two agents that share everything: each learns from its own transitions and from the other's, all alike."""
    spec = spec_of(2)
    algo = replace(SUPER, net=Net("mlp", layers=0, weights="per_agent"), td_lambda=lam, last_action=False, double=False)
    batch = batch_of(spec)
    now = algo.init(spec, KEY).learner
    now = replace(now, target=jax.tree.map(lambda x: x + 0.1, now.online))
    loss, (found, metrics) = hasty_jit(lambda now: algo._loss(spec, now.online, now, sees(batch)))(now)

    total, count = 0.0, 0
    x, r, action = (np.asarray(v, np.float64) for v in (batch.step.obs, batch.step.reward, batch.action))
    for i, j in np.ndindex(2, 2):  # agent j reads agent i's sequence
        on, to = (jax.tree.map(lambda w, j=j: np.asarray(w[j]), p.agent.head) for p in (now.online, now.target))
        q, v = x[:, :, i] @ on.weight + on.bias, (x[:, :, i] @ to.weight + to.bias).max(-1)
        for b in range(2):
            g = 0.0
            for t in reversed(range(5)):
                end = t == 4 or bool(batch.step.last[t + 1, b])
                g = r[t + 1, b, i] + 0.9 * (v[t + 1, b] if end else (1 - lam) * v[t + 1, b] + lam * g)
                if batch.filled[t, b]:
                    total, count = total + (q[t, b, int(action[t, b, i])] - g) ** 2, count + 1
    assert count == 2 * 2 * 9
    assert float(loss.value) == pytest.approx(total / count, rel=1e-4)
    assert float(metrics["share_accepted"].value) == 18 and float(metrics["share_offered"].value) == 18
    assert found.shared.borrowed is not None and found.shared.borrowed.target.shape == (5, 1, 2)


def test_individual_rewards_reproduce_the_senders_error() -> None:
    """With DIFFER, an agent that borrowed from itself would find exactly its own TD error."""
    algo = Q(
        mixer=Mixer("qmix", embed=4, hyper=4), net=Net("mlp", width=4), credit=Credit("differ", "all"), td_lambda=0.6
    )
    batch = batch_of(SPEC)
    now = algo.init(SPEC, KEY).learner
    nets = algo._values.nets(now.online, now.target, None)
    q, v = algo._values.read(SPEC, nets, batch)
    delta = jax.random.normal(KEY, (5, 2, 1))
    state = batch.step.obs.reshape(6, 2, -1)[:-1]
    mix = lambda x: algo.mixer(now.online.mixer, x, state)  # noqa: E731
    mine, _, _ = algo.credit.learn(mix, q, v, delta, algo.gamma, sees(batch))
    itself = borrow(batch, jnp.broadcast_to(jnp.arange(3), (2, 1, 3)), fresh=False)
    q_j, v_j = algo._values.read(SPEC, nets, itself)
    np.testing.assert_allclose(q_j - (mine.reward + mine.discount * v_j), mine.error, atol=1e-5)


@pytest.mark.parametrize("select", ["all", "per_weight", "greedy"])
def test_a_shared_transition_counts_as_much_as_its_senders(select: Any) -> None:
    """Agents that share everything with all: each transition has one weight, for its agent and for all receivers."""
    credit = Credit("differ", select)
    net, share = Net("mlp", layers=0), Share("all", max_partners=0)
    algo = Q(mixer=Mixer("vdn"), net=net, credit=credit, share=share, agent_id=False, last_action=False)
    batch, now = batch_of(SPEC, 8, 6), algo.init(SPEC, KEY).learner
    loss, (found, metrics) = hasty_jit(lambda now: algo._loss(SPEC, now.online, now, sees(batch)))(now)
    assert found.shared is not None
    # Without an id, receivers find exactly the senders' errors: of the loss, two thirds are the receivers'.
    assert float(metrics["share_loss"].value) == pytest.approx(2 / 3, rel=1e-4)
    assert float(loss.value) == pytest.approx(float(metrics["own_loss"].value + metrics["loss"].value), rel=1e-4)


def test_own_values_of_dead_rows_are_trained_but_not_offered() -> None:
    """With the team's discount they are bootstrapped from, sharing or not."""
    alive = np.ones((6, 2, 3), bool)
    alive[2:, :, 1] = False
    batch = batch_of(SPEC, alive=alive)
    dead = batch.filled[..., None] & ~batch.step.alive[:-1]
    paid = replace(batch, step=replace(batch.step, reward=batch.step.reward.at[1:].add(jnp.where(dead, 50.0, 0.0))))
    algo = replace(SUPER, net=Net("mlp", width=4, weights="per_agent"), share=replace(SUPER.share, max_partners=0))
    now = algo.init(SPEC, KEY).learner

    def read(data: Sequence) -> Any:
        return algo._loss(SPEC, now.online, now, sees(data))[1][1]

    (plain, richer) = (hasty_jit(read)(data) for data in (batch, paid))
    assert float(richer["own_loss"].value) > float(plain["own_loss"].value) + 100
    assert float(plain["own_loss"].weight) == 27  # all real transitions of three agents
    living = 27 - int(jnp.sum(dead))
    assert float(plain["share_offered"].value) == living and float(plain["share_accepted"].value) == 2 * living


def test_what_is_learnt_from_others_helps_with_it() -> None:
    algo = replace(SUPER, net=Net("mlp", width=8, weights="per_agent"), optimiser=replace(SUPER.optimiser, lr=1e-2))
    now, data = algo.init(SPEC, KEY).learner, sees(batch_of(SPEC))
    after, metrics = hasty_jit(lambda now: algo._gradient_step(SPEC, now, data))(now)
    assert float(metrics["share_error_after"].value) < float(metrics["share_error_before"].value)
    alone = replace(algo, share=Share())
    plain, _ = hasty_jit(lambda now: alone._gradient_step(SPEC, now, data))(replace(now, recent=None))
    assert differs(after.online, plain.online)


def test_tokens_of_senders_are_heard_where_they_are_present() -> None:
    algo = Q(mixer=Mixer("none"), net=Net("transformer", width=8, layers=2, heads=2), last_action=False)
    batch, senders = batch_of(SPEC, hidden=8), jnp.array([[[1, 2, 0]], [[2, 0, 1]]])
    online = algo.init(SPEC, KEY).learner.online
    values = algo._values
    nets = values.nets(online, online, None)
    alone, _ = values.read(SPEC, nets, batch)
    nobody = jnp.zeros((5, 2, 1, 3), bool)
    np.testing.assert_allclose(values.hear(SPEC, nets, batch, senders, nobody), alone, atol=1e-5)
    # One token, to agent 1 of the first sequence in its third row: it is remembered from then on, by nobody else.
    heard = values.hear(SPEC, nets, batch, senders, nobody.at[2, 0, 0, 1].set(True))
    moved = np.abs(np.asarray(heard - alone)) > 1e-5
    assert moved[2, 0, 1] and not moved[:2].any() and not moved[:, 1].any() and not moved[:, 0, [0, 2]].any()


def test_a_token_is_the_senders_and_takes_no_gradient_back() -> None:
    algo = Q(mixer=Mixer("none"), net=Net("transformer", width=8, layers=1, heads=2, weights="per_agent"))
    batch, senders = batch_of(SPEC, hidden=8), jnp.array([[[1, 2, 0]], [[1, 2, 0]]])
    params, present = algo.init(SPEC, KEY).learner.online.agent, jnp.ones((5, 2, 1, 3), bool)

    def receiver(params: Any) -> jax.Array:
        heard = algo._values.hear(SPEC, Nets(params, params), batch, senders, present)
        return jnp.sum(heard[..., 0] ** 2)

    def other_sender(params: Any) -> jax.Array:
        return receiver(jax.tree.map(lambda w: w.at[1].multiply(1.5), params))

    grads = jax.grad(receiver)(params)
    assert all(not np.asarray(g[1:]).any() for g in jax.tree.leaves(grads))
    assert float(receiver(params)) != pytest.approx(float(other_sender(params)), rel=1e-6)


# --- what is refused


@pytest.mark.parametrize(
    ("change", "spec", "message"),
    [
        ({"mixer": Mixer("vdn")}, SPEC, "individual rewards"),
        ({}, spec_of(1), "at least two agents"),
        ({"net": Net("mlp")}, SPEC, "receivers are their senders"),
        ({"share": Share("all", "range")}, spec_of(3, position=()), "needs positions"),
        ({}, spec_of(3, obs_sizes=(4, 4, 2)), "see or do different things"),
        ({"share": Share("all", "team")}, spec_of(3, action_sizes=(3, 2, 3)), "see or do different things"),
        ({"share": Share("quantile", bandwidth=0.0)}, SPEC, "bandwidth"),
        ({"share": Share("all", schedule="entropy", floor=0.3, ceiling=0.2)}, SPEC, "floor"),
        ({"share": Share("all", form="embeddings")}, SPEC, "needs transformer agents"),
        ({"share": Share("learned", form="embeddings"), "net": Net("transformer")}, SPEC, "select 'learned'"),
        ({"share": Share("all", form="embeddings", drop=1.0), "net": Net("transformer")}, SPEC, "drop"),
    ],
)
def test_refusals(change: dict[str, Any], spec: Spec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SUPER, **change).check(spec)


def test_accepted_combinations() -> None:
    SUPER.check(SPEC)
    replace(SUPER, mixer=Mixer("vdn"), credit=Credit("differ")).check(SPEC)
    replace(SUPER, share=Share("all", "team")).check(spec_of(3, obs_sizes=(4, 4, 2), teams=("x", "x", "y")))
    replace(SUPER, share=Share(bandwidth=7.0), mixer=Mixer("vdn")).check(spec_of(1))  # off: nothing to refuse


def test_the_kth_smallest_is_the_one_a_sort_finds() -> None:
    x = jnp.abs(jax.random.normal(jax.random.PRNGKey(0), (4, 50))).at[:, ::7].set(0.0).at[1, 3:].set(jnp.inf)
    for k in ([1, 1, 1, 1], [50, 2, 25, 8], [8, 4, 9, 50]):
        found = measures.smallest(x, jnp.asarray(k))
        expected = [np.sort(np.asarray(row))[n - 1] for row, n in zip(x, k, strict=True)]
        np.testing.assert_array_equal(found, expected)
