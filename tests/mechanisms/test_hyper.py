"""Hypernetworks of the actor: MAPPO at step 0, another policy later; what their losses couple and what not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_close, assert_same, differs, hasty_jit

from rookery.algorithms.ppo import PPO, PPOState
from rookery.core.errors import ConfigError
from rookery.core.ranges import check_ranges
from rookery.core.registry import TASKS
from rookery.core.types import ActionSpec, Clock, Collect, Rollout, Spec, Step
from rookery.mechanisms.actor import Actor, Distribution
from rookery.mechanisms.explore import Explore
from rookery.mechanisms.hyper import Hyper, HyperActor, HyperWeights, add_up, smoothness
from rookery.mechanisms.probe import Probe
from rookery.nets import hypernet, increments, recurrent
from rookery.nets.agent import Net
from rookery.nets.encoder import Encoder
from rookery.nets.increments import FullModes, Modes, RankOneModes
from rookery.ops import distributions
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.compiled.rollout import collect, open_worlds

TASK = Mpe(agents=3, limit=3)
SPEC = TASK.spec
CLOCK = Clock(jnp.int32(0), jnp.uint32(30), jnp.float32(100))
NET = Net("mlp", width=8, layers=2, activation="tanh")
PLAIN = PPO(actor=NET, critic=NET, collect=Collect(envs=4, length=6), epochs=2, minibatches=1)
SMALL: dict[str, Any] = {"width": 8, "heads": 2, "features": 3, "window": 3, "lr": 1e-2}
KEY = jax.random.PRNGKey(0)


def hyper(generate: Any = "all", **choice: Any) -> PPO:
    align = choice.pop("align", 0.05)
    return replace(PLAIN, hyper=Hyper(generate, **{**SMALL, **choice}), align=align)


@cache
def fresh(algo: PPO) -> PPOState:
    algo.check(SPEC)
    return hasty_jit(lambda: algo.init(SPEC, KEY))()


def played(algo: PPO, state: PPOState) -> Rollout:
    """The first rollout."""

    def play(state: PPOState) -> Rollout:
        worlds = open_worlds(algo, TASK, algo.collect.envs, KEY)
        return collect(algo, TASK, algo.policy(state), worlds, CLOCK, KEY)[1]

    return hasty_jit(play)(state)


@cache
def begun(algo: PPO) -> tuple[PPOState, Rollout]:
    """A fresh state and its first rollout."""
    return fresh(algo), played(algo, fresh(algo))


@cache
def updated(algo: PPO, begins_as: PPO | None = None) -> tuple[PPOState, dict[str, float]]:
    """After the first update; what acts alike begins as another one, whose programs are there already."""
    state, rollout = begun(begins_as or algo)
    after, metrics = hasty_jit(lambda s, r: algo.update(SPEC, s, r, CLOCK, KEY))(state, rollout)
    return after, {name: float(mean.value) for name, mean in metrics.items()}


@cache
def program(algo: PPO) -> str:
    state, rollout = jax.eval_shape(lambda: algo.init(SPEC, KEY)), begun(PLAIN)[1]
    return jax.jit(lambda s, r: algo.update(SPEC, s, r, CLOCK, KEY)).lower(state, rollout).as_text()


def gradient(algo: PPO, state: PPOState, rollout: Rollout, rows: int) -> Any:
    """The first gradients of all groups, from sequences of so many rows, and the values they were taken at."""

    def first(state: PPOState, rollout: Rollout) -> Any:
        batch, carries, state, _ = algo._prepare(SPEC, state, rollout, rows)
        return algo._gradients(SPEC, state.nets, batch, carries, tuple(state.opt))[0], batch.value

    return hasty_jit(first)(state, rollout)


# --- step 0


@pytest.mark.parametrize(
    "algo",
    [
        hyper("all", modes="full", align=0.0),
        hyper("last", history="gru", per_agent=False, critic=True, align=0.0),
        hyper("all", scope="local", increment="accumulate", history="window"),
    ],
)
def test_before_the_first_update_it_is_mappo(algo: PPO) -> None:
    """Exactly: increments of zero add zeros. KL(old || new) has a gradient of zero up to rounding."""
    plain, rollout = begun(PLAIN)
    state = fresh(algo)
    critic = state.nets["critic"]
    assert_close(state.nets["actor"], plain.nets["actor"], 1e-5)
    assert_close(critic, plain.nets["critic"], 1e-5)
    # Two programs may round differently when they orthogonalize: from here on the weights are the same bit for bit.
    state = replace(state, nets={**state.nets, "actor": plain.nets["actor"], "critic": plain.nets["critic"]})
    own = played(algo, state)
    assert_same((own.action, own.extra["log_prob"]), (rollout.action, rollout.extra["log_prob"]))
    # What the environment computes may round differently when it is compiled with another policy.
    assert_close(own.step, rollout.step, 1e-6)
    # Sums depend on the order of their terms, so both learn from the same sequences.
    rows = algo.carry_interval(SPEC)
    rollout = replace(rollout, step=own.step, carry=jax.tree.map(lambda x: x[::rows], rollout.carry))
    found, values = gradient(algo, state, own, rows)
    wanted, plain_values = gradient(PLAIN, plain, rollout, rows)
    assert_same(values, plain_values)
    assert_same(found["critic"], wanted["critic"])
    if algo.align:
        assert_close(found["actor"], wanted["actor"], 1e-7)
    else:
        assert_same(found["actor"], wanted["actor"])
    # The increments' head has a gradient already, so that it leaves zero with the first update.
    assert all(float(jnp.abs(x).max()) > 0 for m in found["hyper"].layers.values() for x in _made(m))


def _made(modes: Modes) -> tuple[jax.Array, jax.Array]:
    """The arrays that are zero at the start."""
    return (modes.weight if isinstance(modes, FullModes) else modes.right), modes.bias


OFF = {
    "hyper": replace(
        PLAIN,
        hyper=Hyper(
            "none",
            9,
            "full",
            5,
            3,
            "lstm",
            7,
            "kl",
            0.1,
            False,
            False,
            "accumulate",
            "local",
            9.0,
            "anchor",
            3,
            1.0,
            True,
            5,
        ),
    ),
    "weight": replace(PLAIN, hyper=Hyper(smooth=0.0)),
}


@pytest.mark.parametrize("name", list(OFF))
def test_what_is_off_leaves_no_trace(name: str) -> None:
    assert OFF[name] != PLAIN
    assert program(OFF[name]) == program(PLAIN)
    state = jax.eval_shape(lambda: OFF[name].init(SPEC, KEY))
    assert jax.tree.structure(state) == jax.tree.structure(begun(PLAIN)[0])


ON = {
    "last": hyper("last"),
    "all": hyper("all"),
    "anchor": hyper("all", target="anchor", critic=True),
    "window": hyper("last", history="window", fusion="kl"),
}


@pytest.mark.parametrize("name", list(ON))
def test_the_first_update_moves_the_increment_away_from_zero(name: str) -> None:
    before, (after, metrics) = begun(ON[name])[0], updated(ON[name])
    old, new = before.nets["hyper"], after.nets["hyper"]
    assert all(not np.any(x) for m in old.layers.values() for x in _made(m))
    assert all(np.any(x) for m in new.layers.values() for x in _made(m))
    assert set(new.layers) == ({"head"} if name in ("last", "window") else {"before0", "before1", "head"})
    assert all(np.any(x != 1) for x in new.scales.values()) and bool(new.scales) == (name in ("last", "window"))
    assert metrics["hyper/increment"] > 0 and metrics["align"] > 0 and metrics["hyper/smooth"] > 0
    assert all(metrics[f"hyper/increment/{agent}"] > 0 for agent in SPEC.agents)
    assert all(np.isfinite(x) for x in metrics.values())
    assert differs(after.nets["actor"], updated(PLAIN)[0].nets["actor"])
    assert ("critic_hyper" in after.nets) == ("hyper/critic_increment" in metrics) == (name == "anchor")
    if name == "anchor":
        assert all(np.any(x) for m in after.nets["critic_hyper"].layers.values() for x in _made(m))
        assert metrics["hyper/critic_increment"] > 0


def test_the_weights_of_both_terms_count() -> None:
    both = updated(ON["all"])[0].nets
    for off in ({"smooth": 0.0}, {"align": 0.0}):
        assert differs(both, updated(hyper("all", **off), ON["all"])[0].nets)


def test_the_hypernetwork_has_a_learning_rate_of_its_own() -> None:
    """And so has that of the critic."""
    still = updated(hyper("all", target="anchor", critic=True, lr=0.0), ON["anchor"])[0].nets
    for group, before in begun(ON["anchor"])[0].nets.items():
        assert differs(still[group], before) == (group in ("actor", "critic")), group


def test_the_target_is_refreshed_every_so_many_updates() -> None:
    actor = hyper("all", target="anchor", every=3)._actor
    weights = actor.init(SPEC, KEY)
    weights["hyper"] = jax.tree.map(lambda x: x + 1.0, weights["hyper"])
    for iteration in range(3):
        clock = replace(CLOCK, iteration=jnp.int32(iteration))
        after, _ = actor.updated(weights, clock)
        assert differs(after["hyper_target"], weights["hyper"]) == (iteration < 2)


# --- the bilinear form


@pytest.mark.parametrize(("n_in", "n_out"), [(3, 5), (5, 3)])
@pytest.mark.parametrize("full", [True, False])
def test_increments_act_as_their_matrices_would(n_in: int, n_out: int, full: bool) -> None:
    keys = jax.random.split(KEY, 5)
    bias = jax.random.normal(keys[1], (4, n_out))
    f, x = jax.random.normal(keys[2], (2, 6, 4)), jax.random.normal(keys[3], (2, 6, n_in))
    if full:
        weight = jax.random.normal(keys[0], (4, n_in, n_out))
        modes: Modes = FullModes(weight, bias)
    else:
        left, right = jax.random.normal(keys[0], (n_in, 4)), jax.random.normal(keys[4], (4, n_out))
        modes, weight = RankOneModes(left, right, bias), jnp.einsum("ik,ko->kio", left, right)
    matrices, biases = jnp.einsum("tbk,kio->tbio", f, weight), f @ bias
    naive = jnp.einsum("tbi,tbio->tbo", x, matrices) + biases
    np.testing.assert_allclose(modes.effect(f, x), naive, rtol=1e-4, atol=1e-5)
    norms = jnp.sum(matrices**2, axis=(2, 3)) + jnp.sum(biases**2, axis=2)
    np.testing.assert_allclose(increments.squared_norm(increments.gram({"head": modes}), f), norms, rtol=1e-4)
    assert increments.size({"head": modes}) == n_in * n_out + n_out


# --- smoothness: constructed rollouts


def _rows() -> tuple[FullModes, jax.Array, np.ndarray, np.ndarray]:
    keys = jax.random.split(KEY, 3)
    modes = FullModes(jax.random.normal(keys[0], (3, 4, 2)), jax.random.normal(keys[1], (3, 2)))
    f = jax.random.normal(keys[2], (6, 2, 2, 3))
    first = np.zeros((6, 2), bool)
    first[[0, 3], 0] = True  # the first environment: rows 0-2 and 3-5; the second: rows 0-3 go on, 4-5 are new
    first[4, 1] = True
    active = np.ones((6, 2, 2), bool)
    active[2, 0] = False  # the row that closes an episode
    active[1, 1, 1] = False  # an agent that is dead for one row
    return modes, f, first, active


def _smooth(modes: FullModes, f: jax.Array, first: np.ndarray, active: np.ndarray) -> float:
    products, size = increments.gram({"head": modes}), jnp.float32(increments.size({"head": modes}))
    return float(smoothness(products, size, f, jnp.asarray(first), jnp.asarray(active)).value)


def test_smoothness_is_the_mean_over_consecutive_increments_of_an_episode() -> None:
    modes, f, first, active = _rows()
    delta = np.concatenate(
        [np.einsum("tbak,kio->tbaio", f, modes.weight).reshape(6, 2, 2, -1), f @ modes.bias], axis=-1
    )
    squares = [
        np.mean((delta[t, b, a] - delta[t - 1, b, a]) ** 2)
        for t in range(1, 6)
        for b in range(2)
        for a in range(2)
        if not first[t, b] and active[t, b, a] and active[t - 1, b, a]
    ]
    assert len(squares) == 12 and _smooth(modes, f, first, active) == pytest.approx(np.mean(squares), rel=1e-4)


def test_smoothness_couples_no_episodes_no_environments_and_no_shuffled_rows() -> None:
    modes, f, first, active = _rows()
    there = _smooth(modes, f, first, active)
    # An offset of one episode of one environment, or of one agent, changes no difference within an episode.
    for rows, env, agent in ((slice(0, 3), 0, 0), (slice(3, 6), 0, 1), (slice(0, 4), 1, 0), (slice(4, 6), 1, 1)):
        assert _smooth(modes, f.at[rows, env, agent].add(5.0), first, active) == pytest.approx(there, rel=1e-3)
    # Sequences in another order.
    assert _smooth(modes, f[:, ::-1], first[:, ::-1], active[:, ::-1]) == pytest.approx(there, rel=1e-5)
    # Within an episode an offset does count.
    assert _smooth(modes, f.at[1, 0, 0].add(5.0), first, active) > 1.5 * there
    # Sequences of one row have no neighbours.
    assert _smooth(modes, f[:1], first[:1], active[:1]) == 0.0


# --- reading


def moved(actor: Actor, spec: Spec = SPEC, scale: float = 0.3) -> dict[str, Any]:
    """Weights whose increments are far from zero."""
    weights = actor.init(spec, KEY)
    weights["hyper"] = lively(weights["hyper"], scale)
    return weights


def lively(made: HyperWeights, scale: float = 0.3) -> HyperWeights:
    """The same with modes far from zero."""
    leaves, tree = jax.tree.flatten(made.layers)
    keys = jax.random.split(KEY, len(leaves))
    layers = tree.unflatten([scale * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])
    return eqx.tree_at(lambda h: h.layers, made, layers)


def rows(spec: Spec, time: int, batch: int, first: tuple[int, ...] = (0,), key: int = 1) -> Step:
    n, k = spec.n_agents, jax.random.PRNGKey(key)
    starts = jnp.zeros((time, batch), bool).at[jnp.array(first)].set(True)
    return Step(
        obs=jax.random.normal(k, (time, batch, n, *spec.obs_shape)),
        state=jnp.zeros((time, batch, *(spec.state_shape or (0,)))),
        legal=jnp.ones((time, batch, n, spec.action.width), bool),
        alive=jnp.ones((time, batch, n), bool),
        reward=jax.random.normal(k, (time, batch, n)),
        discount=jnp.ones((time, batch, n)),
        first=starts,
        last=jnp.zeros((time, batch), bool),
        success=jnp.zeros((time, batch)),
    )


def read(algo: PPO, step: Step, weights: Any = None, spec: Spec = SPEC, action: Any = None) -> Any:
    actor = algo._actor
    assert isinstance(actor, HyperActor)
    weights = moved(actor, spec) if weights is None else weights
    carry = actor.carry(spec, step.first.shape[1])
    if action is None:
        action = jnp.zeros((*step.alive.shape, *spec.action.shape), spec.action.dtype)
    return reader(algo, spec)(weights, carry, step, action)


@cache
def reader(algo: PPO, spec: Spec) -> Any:
    """A compiled reading of the actor, shared by all that read with it."""
    return hasty_jit(lambda w, c, s, a: algo._actor.read(spec, w, c, s, a))


NETS = {"mlp": NET, "gru": replace(NET, kind="gru", layers=1, layers_after=1)}


@pytest.mark.parametrize("generate", ["last", "all"])
@pytest.mark.parametrize("kind", list(NETS))
def test_increments_change_what_is_read(kind: str, generate: Any) -> None:
    """Of every kind of network that is accepted, by each of its layers' modes."""
    algo, step = replace(hyper(generate, critic=True), actor=NETS[kind], critic=NETS[kind]), rows(SPEC, 2, 2)
    algo.check(SPEC)
    actor, critic = algo._actor, algo._critic
    assert isinstance(actor, HyperActor)
    weights = actor.init(SPEC, KEY)
    assert set(weights["hyper"].layers) >= ({"head"} if generate == "last" else {"before0", "head"})
    base = read(algo, step, weights)[1].params
    value_of = hasty_jit(lambda p: critic.values(SPEC, p, critic.carry(SPEC, 2), step)[1])
    of_critic = critic.init(SPEC, KEY)
    values = value_of(of_critic)
    for name in weights["hyper"].layers:

        def only(made: HyperWeights, name: str = name) -> HyperWeights:
            return eqx.tree_at(lambda h: h.layers[name], made, lively(made).layers[name])

        changed = {**weights, "hyper": only(weights["hyper"])}
        assert differs(read(algo, step, changed)[1].params, base), name
        assert differs(value_of(replace(of_critic, hyper=only(of_critic.hyper))), values), name


@pytest.mark.parametrize("per_agent", [True, False])
def test_a_dead_agent_contributes_nothing(per_agent: bool) -> None:
    algo, step = hyper("all", per_agent=per_agent), rows(SPEC, 4, 2)
    step = eqx.tree_at(lambda s: s.alive, step, step.alive.at[1:, :, 2].set(False))
    other = eqx.tree_at(lambda s: s.obs, step, step.obs.at[1:, :, 2].add(3.0))
    (_, now, aux), (_, again, aux_again) = read(algo, step), read(algo, other)
    np.testing.assert_array_equal(now.params[:, :, :2], again.params[:, :, :2])
    assert differs(now.params[1:, :, 2], again.params[1:, :, 2])
    # Nor to a loss or to what is logged of it.
    actor = algo._actor
    found = [actor.penalty(SPEC, a, s, s.alive) for a, s in ((aux, step), (aux_again, other))]
    for name, (_, mean) in found[0].items():
        np.testing.assert_allclose(mean.value, found[1][name][1].value, rtol=1e-6, err_msg=name)
    # While it lives, the others see it.
    living = eqx.tree_at(lambda s: s.alive, other, jnp.ones_like(step.alive))
    assert differs(read(algo, living)[1].params[1:, :, :2], now.params[1:, :, :2])


@pytest.mark.parametrize("history", ["none", "lstm", "gru", "window"])
def test_local_increments_need_nobody_else(history: str) -> None:
    step = rows(SPEC, 4, 2)
    other = eqx.tree_at(
        lambda s: (s.obs, s.reward), step, (step.obs.at[:, :, 1:].add(1.0), step.reward.at[:, :, 1:].add(1.0))
    )
    local, joint = hyper("all", scope="local", history=history), hyper("all", scope="joint", history=history)
    assert_same(read(local, step)[1].params[:, :, 0], read(local, other)[1].params[:, :, 0])
    assert differs(read(joint, step)[1].params[:, :, 0], read(joint, other)[1].params[:, :, 0])


@pytest.mark.parametrize(
    "choice",
    [{"history": "lstm"}, {"history": "gru"}, {"history": "window"}, {"increment": "accumulate"}, {"fusion": "kl"}],
)
def test_the_past_counts_within_an_episode_only(choice: dict[str, Any]) -> None:
    """Rows 0-2 and 3-5 are episodes. Reading row by row, with the carry in between, is reading at once."""
    algo, step = hyper("all", **choice), rows(SPEC, 6, 2, (0, 3))
    action = jax.random.randint(KEY, (6, 2, 3), 0, SPEC.action.width)
    actor = algo._actor
    _, now, _ = read(algo, step, action=action)
    other = eqx.tree_at(lambda s: s.obs, step, step.obs.at[1].add(2.0))
    changed = np.any(np.asarray(read(algo, other, action=action)[1].params != now.params), axis=(1, 2, 3))
    np.testing.assert_array_equal(changed, [False, True, True, False, False, False])
    weights, carry, found = moved(actor), actor.carry(SPEC, 2), []
    for piece in (slice(t, t + 1) for t in range(6)):
        part = jax.tree.map(lambda x, piece=piece: x[piece], step)
        carry, out, _ = reader(algo, SPEC)(weights, carry, part, action[piece])
        found.append(out.params)
    np.testing.assert_allclose(jnp.concatenate(found), now.params, rtol=1e-4, atol=1e-5)


def test_the_last_action_is_read() -> None:
    step, action = rows(SPEC, 4, 2, (0, 2)), jnp.zeros((4, 2, 3), jnp.int32)
    algo = hyper("all", history="gru")
    other = action.at[:, 0, 0].set(1)
    before, after = (np.asarray(read(algo, step, action=a)[1].params) for a in (action, other))
    # In the row after the action, of that environment; not across an episode's end.
    np.testing.assert_array_equal(np.any(before != after, axis=(2, 3)), [[0, 0], [1, 0], [0, 0], [1, 0]])
    # While acting the last action comes with the carry.
    actor = algo._actor
    weights, carry, found = moved(actor), actor.carry(SPEC, 2), []
    for t in range(4):
        carry, now, _ = actor.read(SPEC, weights, carry, jax.tree.map(lambda x, t=t: x[t : t + 1], step))
        carry = actor.took(SPEC, carry, other[t])
        found.append(now.params[0])
    np.testing.assert_allclose(jnp.stack(found), after, rtol=1e-4, atol=1e-5)


def test_accumulated_increments_restart_with_each_episode() -> None:
    x = jnp.arange(1.0, 7.0).reshape(6, 1, 1, 1)
    first = jnp.array([[False], [False], [True], [False], [False], [True]])
    end, sums = add_up(jnp.full((1, 1, 1), 10.0), x, first)
    np.testing.assert_array_equal(sums[:, 0, 0, 0], [11, 13, 3, 7, 12, 6])
    assert float(end[0, 0, 0]) == 6
    _, _, aux = read(hyper("all", increment="accumulate"), rows(SPEC, 6, 2, (0, 3)))
    # The constant feature counts the rows of the episode.
    np.testing.assert_array_equal(aux["applied"][:, 0, 0, -1], [1, 2, 3, 1, 2, 3])
    np.testing.assert_allclose(aux["applied"][2], jnp.sum(aux["features"][:3], axis=0), rtol=1e-5)
    np.testing.assert_allclose(aux["applied"][3], aux["features"][3], rtol=1e-6)


def test_fusion_averages_what_past_policies_agree_with() -> None:
    step, alone = rows(SPEC, 4, 2), hyper("last")
    fused = replace(alone, hyper=replace(alone.hyper, fusion="kl"))
    weights = moved(alone._actor)
    own = read(alone, step, weights)[2]["features"]
    found = read(fused, step, weights)[2]["features"]
    np.testing.assert_allclose(found[0], own[0], rtol=1e-6)
    # By hand, for the last row of one agent: its window has rows 3, 2 and 1.
    actor = weights["actor"]
    h = jnp.tanh(actor.net.before[1](jnp.tanh(actor.net.before[0](_view(step)[3, 0, 1]))))
    head: RankOneModes = weights["hyper"].layers["head"]
    matrices = jnp.einsum("ik,ko->kio", head.left, head.right)
    logits = [
        actor.net.head(h) + h @ jnp.einsum("k,kio->io", own[t, 0, 1], matrices) + own[t, 0, 1] @ head.bias
        for t in (3, 2, 1)
    ]
    p = jax.nn.softmax(jnp.stack(logits))
    kl = jnp.sum(p * (jnp.log(p) - jnp.log(p[0])), axis=1)
    w = jax.nn.softmax(-kl)
    assert float(w[0]) > float(w[1]) and float(w[0]) > float(w[2])
    np.testing.assert_allclose(found[3, 0, 1], w @ own[jnp.array([3, 2, 1]), 0, 1], rtol=1e-4)


def _view(step: Step) -> jax.Array:
    eye = jnp.broadcast_to(jnp.eye(3), (*step.alive.shape, 3))
    return jnp.concatenate([step.obs.reshape(*step.alive.shape, -1), eye], axis=-1)


def test_a_window_holds_the_last_rows_of_the_episode() -> None:
    window = jnp.array([7.0, 8.0]).reshape(2, 1, 1, 1)
    x, first = jnp.arange(1.0, 5.0).reshape(4, 1, 1, 1), jnp.array([[False], [False], [True], [False]])
    after, seen = hypernet.look_back(window, x, first)
    np.testing.assert_array_equal(seen[..., 0, 0, 0], [[1, 8, 7], [2, 1, 8], [3, 0, 0], [4, 3, 0]])
    np.testing.assert_array_equal(after[..., 0, 0, 0], [3, 4])


def test_the_lstm_is_an_lstm() -> None:
    p = recurrent.lstm(KEY, 3, 2)
    x, start = jax.random.normal(KEY, (4, 1, 3)), jnp.full((1, 4), 0.5)
    reset = jnp.array([[False], [False], [True], [False]])
    end, states = recurrent.unroll_lstm(p, start, x, reset)
    sigmoid = lambda y: 1 / (1 + np.exp(-y))  # noqa: E731
    h, c = np.full(2, 0.5), np.full(2, 0.5)
    for t in range(4):
        h, c = (np.zeros(2), np.zeros(2)) if reset[t, 0] else (h, c)
        i, f, g, o = np.split(np.asarray(x[t, 0] @ p.w_in + p.bias + h @ p.w_hidden), 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(states[t, 0], h, rtol=1e-5)
    np.testing.assert_allclose(end[0], np.concatenate([h, c]), rtol=1e-5)


# --- alignment


ACTIONS = {
    "discrete": ActionSpec("discrete", (4,)),
    "multi_discrete": ActionSpec("multi_discrete", (2, 3)),
    "multi_binary": ActionSpec("multi_binary", (3,)),
    "box": ActionSpec("box", (2,)),
}


@pytest.mark.parametrize("kind", list(ACTIONS))
@pytest.mark.parametrize("anchor", [False, True])
def test_alignment_is_the_exact_divergence_from_the_policy_that_acted(kind: str, anchor: bool) -> None:
    """For all kinds of actions, with a mask and a dead agent; reading works for all of them."""
    spec = Spec("t", ("a", "b"), (3,), ACTIONS[kind], limit=5)
    step = rows(spec, 3, 2)
    if kind != "box":
        step = eqx.tree_at(lambda s: s.legal, step, step.legal.at[..., 0].set(False))
    step = eqx.tree_at(lambda s: s.alive, step, step.alive.at[:, 1, 0].set(False))
    algo = hyper("all", history="gru", target="anchor" if anchor else "none")
    actor = algo._actor
    assert isinstance(actor, HyperActor)
    weights = moved(actor, spec)
    _, now, aux = read(algo, step, weights, spec)
    objective = algo._objective
    old = objective.remember(Distribution(now.params + 0.5 * jnp.arange(now.params.shape[-1]), now.log_std - 0.3))
    action = jnp.zeros((*step.alive.shape, *spec.action.shape), spec.action.dtype)
    zeros = jnp.zeros(step.alive.shape)
    given = (spec.action, now, step.legal, action, {**old, "log_prob": zeros}, zeros, step.alive, aux.get("anchor"))
    loss, metrics = objective.loss(*given)
    without, _ = replace(objective, align=0.0).loss(*given)
    align = metrics["align"]
    assert float(loss.value - without.value) == pytest.approx(0.05 * float(align.value), abs=1e-5)
    p, p_std = (aux["anchor"], now.log_std) if anchor else (old["params"], now.log_std - 0.3)
    exact = distributions.kl(spec.action, p, p_std, now.params, now.log_std, step.legal)
    assert float(align.value) == pytest.approx(float(jnp.sum(exact * step.alive) / jnp.sum(step.alive)), rel=1e-5)
    assert float(align.value) > 1e-3
    if anchor:
        # The target hypernetwork still has increments of zero: the anchor is the base actor.
        plain = actor.base.read(spec, weights, actor.base.carry(spec, 2), step)[1]
        np.testing.assert_allclose(aux["anchor"], plain.params, rtol=1e-5, atol=1e-6)


def test_any_actor_can_be_aligned() -> None:
    """Without a hypernetwork; a strong term holds the policy where it was."""
    algo = replace(PLAIN, align=100.0)
    assert set(begun(PLAIN)[1].extra) == {"log_prob"} and "align" not in updated(PLAIN)[1]
    rollout = begun(algo)[1]
    assert_same(rollout.action, begun(PLAIN)[1].action)
    assert {name: x.shape for name, x in rollout.extra.items()} == {
        "log_prob": (6, 4, 3), "params": (6, 4, 3, 5), "log_std": (6, 4, 3, 5)
    }  # fmt: skip
    after, metrics = updated(algo)
    assert metrics["align"] > 0 and differs(after.nets["actor"], updated(PLAIN)[0].nets["actor"])
    # Its first gradient is zero: of two epochs only the second is held back.
    assert_same(after.nets["critic"], updated(PLAIN)[0].nets["critic"])


# --- weights from embeddings


@pytest.mark.parametrize("generate", ["embedding", "embedding_after"])
def test_generated_matrices_are_orthogonal_at_the_start(generate: Any) -> None:
    net = Net("gru", width=8, layers=1, layers_after=1, activation="tanh")
    made = Hyper(generate, width=16, embed=4).embedded(net)
    params = made.init(KEY, 3, 10, 5, 0.01)
    weights = made.generate(params)
    for agent in range(3):
        for layer, gain in ((weights.before[0], 5 / 3), (weights.after[0], 5 / 3), (weights.head, 0.01)):
            w = np.asarray(layer.weight[agent]) / gain
            small = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
            np.testing.assert_allclose(small, np.eye(len(small)), atol=2e-3)
            np.testing.assert_allclose(layer.bias[agent], 0.0, atol=1e-6)
    apart = [differs(layer.weight[0], layer.weight[1]) for layer in (weights.before[0], weights.after[0], weights.head)]
    assert apart == [generate == "embedding", True, True]
    assert (not jax.tree.leaves(params.shared)) == (generate == "embedding")


@pytest.mark.parametrize("generate", ["embedding", "embedding_after"])
@pytest.mark.parametrize("kind", ["image", "transformer"])
def test_weights_of_all_parts_of_a_network_are_generated(kind: str, generate: Any) -> None:
    """Image encoders, and what reads actions out of the tokens of a transformer. Nothing is computed."""
    spec = TASKS["smax/3m"].spec if kind == "transformer" else replace(SPEC, obs_shape=(4, 4, 3))
    nets = {"image": replace(NET, encoder=Encoder("small")), "transformer": Net("transformer", width=8, layers=1)}
    made, n = Hyper(generate, width=8, embed=4).embedded(nets[kind]), spec.n_agents
    sizes = (n, int(np.prod(spec.obs_shape)), 12, 0.01, spec.entities, spec.obs_shape)
    found = jax.eval_shape(lambda: made.generate(made.init(KEY, *sizes)))
    assert found == jax.eval_shape(lambda: replace(nets[kind], weights="per_agent").init(KEY, *sizes))


def test_embeddings_generate_actor_and_critic() -> None:
    algo = replace(PLAIN, hyper=Hyper("embedding", width=8, embed=4))
    before, (after, metrics) = begun(algo)[0], updated(algo)
    for group in ("actor", "critic"):
        old, new = before.nets[group], after.nets[group]
        old, new = (old.net, new.net) if group == "actor" else (old, new)
        assert differs(old.embedding, new.embedding) and differs(old.bank, new.bank)
    assert all(np.isfinite(x) for x in metrics.values())


# --- what is refused


@pytest.mark.parametrize(
    ("algo", "says"),
    [
        (hyper("all", scope="local", per_agent=False), "per_agent"),
        (hyper("all", heads=3), "heads"),
        (replace(hyper("all"), actor=replace(NET, kind="transformer")), "algo.actor.kind mlp or gru"),
        (replace(hyper("all", critic=True), critic=replace(NET, kind="transformer")), "algo.critic.kind mlp or gru"),
        (hyper("all", target="anchor", align=0.0), "algo.align above 0"),
        (hyper("last", fusion="kl", increment="accumulate"), "increment base"),
        (replace(hyper("all", fusion="kl"), actor=replace(NET, weights="per_agent")), "fusion"),
        (replace(PLAIN, order="sequential"), "per_agent"),
        (replace(PLAIN, explore=Explore(noise=0.1)), "continuous"),
        (replace(PLAIN, probe=Probe(1000)), "probe.states"),
    ],
)
def test_what_does_not_fit_is_refused(algo: PPO, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        algo.check(SPEC)


@pytest.mark.parametrize(
    ("choice", "says"),
    [({"features": 1}, "features must be at least 2"), ({"temperature": 0.0}, "temperature must be above 0")],
)
def test_what_is_out_of_range_is_refused(choice: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_ranges(hyper("all", **choice), "algo")


def test_images_are_refused() -> None:
    spec, net = replace(SPEC, obs_shape=(8, 8, 3)), replace(NET, encoder=Encoder("small"))
    with pytest.raises(ConfigError, match="no encoder for images"):
        replace(hyper("all"), actor=net).check(spec)
