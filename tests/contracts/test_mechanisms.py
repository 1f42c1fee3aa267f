"""Switches of the Q family. Off: no trace in the program. On: another program, which trains and shows what it does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_close, differs, hasty_jit

from rookery.algorithms.q import Q, QState, Replay
from rookery.core.errors import ConfigError
from rookery.core.types import Clock, Collect, Rollout
from rookery.mechanisms.credit import Credit
from rookery.mechanisms.remember import Remember
from rookery.mechanisms.share import Share
from rookery.mechanisms.values import Values
from rookery.memory.learning import Minibatch
from rookery.memory.replay import Draw
from rookery.memory.sequences import by_env, time_major
from rookery.nets.agent import Net
from rookery.nets.mixers import Mixer
from rookery.nets.noisy import Noisy
from rookery.nets.optimiser import Optimiser, Schedule
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.compiled.rollout import collect, open_worlds

TASK = Mpe(agents=3, limit=3)
SPEC = TASK.spec
CLOCK = Clock(jnp.int32(0), jnp.uint32(30), jnp.float32(100))
NETS = {
    "mlp": Net("mlp", width=8, layers=1),
    "gru": Net("gru", width=8, layers=1),
    "transformer": Net("transformer", width=8, layers=1, heads=2),
}
PLAIN = Q(
    mixer=Mixer("qmix", embed=4, hyper=4),
    net=NETS["mlp"],
    collect=Collect(envs=4, length=6),
    replay=Replay(capacity=8, batch=4, start=4, steps_per_sequence=0.25),
)
ALONE = replace(PLAIN, mixer=Mixer("none"))
SINGLE = replace(PLAIN, replay=replace(PLAIN.replay, unit="transition"), last_action=False)
DIFFER = replace(PLAIN, credit=Credit("differ"))
SHARING = replace(DIFFER, share=Share("quantile", bandwidth=0.3, window=40))


@cache
def experience(net: str) -> Rollout:
    """One rollout of agents with such a network."""
    algo = replace(PLAIN, net=NETS[net], mixer=Mixer("none"))

    def build(key: jax.Array) -> Rollout:
        policy = algo.policy(algo.init(SPEC, key))
        return collect(algo, TASK, policy, open_worlds(algo, TASK, algo.collect.envs, key), CLOCK, key)[1]

    return hasty_jit(build)(jax.random.PRNGKey(0))


@cache
def updated(algo: Q) -> tuple[QState, QState, dict[str, float]]:
    """State before and after one update of one gradient step, and its metrics."""
    algo.check(SPEC)
    before = hasty_jit(lambda: algo.init(SPEC, jax.random.PRNGKey(1)))()
    update = hasty_jit(lambda state, rollout: algo.update(SPEC, state, rollout, CLOCK, jax.random.PRNGKey(2)))
    after, metrics = update(before, experience(algo.net.kind))
    return before, after, {name: float(mean.value) for name, mean in metrics.items()}


@cache
def program(algo: Q) -> str:
    """An update, as it goes to the compiler, constants and all."""
    algo.check(SPEC)
    state, key = jax.eval_shape(lambda: algo.init(SPEC, jax.random.PRNGKey(0))), jax.random.PRNGKey(0)
    return jax.jit(lambda s, r: algo.update(SPEC, s, r, CLOCK, key)).lower(state, experience(algo.net.kind)).as_text()


def finite(*trees: Any) -> bool:
    return all(np.all(np.isfinite(x)) for x in jax.tree.leaves(trees))


# --- off

OTHER_CREDIT = Credit(
    select="greedy", fraction=Schedule(0.1, 0.2), alpha=0.1, eps=1.0, beta=Schedule(0, 1), clip=0.0,
    mixer_optimiser=Optimiser("radam"),
)  # fmt: skip
OTHER_SHARE = Share(
    partners="role", accept="closer", schedule="entropy", bandwidth=0.5, floor=0.3, ceiling=0.4, max_partners=2,
    window=7, radius=9.0, metric="l1", alone="widen", form="embeddings", drop=0.1,
)  # fmt: skip
NEUTRAL: dict[str, Q] = {
    "share": replace(PLAIN, share=OTHER_SHARE),
    "share on differ": replace(DIFFER, share=OTHER_SHARE),
    "credit": replace(PLAIN, credit=OTHER_CREDIT),
    "priority": replace(PLAIN, replay=replace(PLAIN.replay, importance=0.9)),
    "remember": replace(PLAIN, remember=Remember(weight=0.5, capacity=7, dim=3, length=5)),
    "heads": replace(PLAIN, net=replace(PLAIN.net, heads=1)),
    "atoms": replace(PLAIN, values=Values(low=-1.0, high=3.0)),
}


@pytest.mark.parametrize("name", list(NEUTRAL))
def test_what_is_off_leaves_no_trace(name: str) -> None:
    bare = DIFFER if name.endswith("differ") else PLAIN
    assert NEUTRAL[name] != bare
    assert program(NEUTRAL[name]) == program(bare)
    state = jax.eval_shape(lambda: NEUTRAL[name].init(SPEC, jax.random.PRNGKey(0)))
    assert jax.tree.structure(state) == jax.tree.structure(
        jax.eval_shape(lambda: bare.init(SPEC, jax.random.PRNGKey(0)))
    )


# --- on


def sharing(**choice: Any) -> Q:
    algo = replace(SHARING, share=replace(SHARING.share, **choice))
    return replace(algo, net=NETS["transformer"]) if "form" in choice else algo


CHOICES = {key: get_args(get_type_hints(Share)[key]) for key in ("select", "partners", "accept", "schedule", "form")}
ACTIVE: dict[str, tuple[Q, Q]] = {
    "differ": (PLAIN, DIFFER),
    **{
        f"select {select}": (DIFFER, replace(DIFFER, credit=replace(DIFFER.credit, select=select)))
        for select in ("all", "greedy", "greedy_weight", "per")
    },
    "fraction": (DIFFER, replace(DIFFER, credit=replace(DIFFER.credit, fraction=Schedule(0.5, 0.5)))),
    "alpha": (DIFFER, replace(DIFFER, credit=replace(DIFFER.credit, alpha=0.3))),
    "eps": (DIFFER, replace(DIFFER, credit=replace(DIFFER.credit, eps=0.3))),
    "beta": (DIFFER, replace(DIFFER, credit=replace(DIFFER.credit, beta=Schedule(0, 0)))),
    "clip": (DIFFER, replace(DIFFER, credit=replace(DIFFER.credit, clip=0.01))),
    "mixer_optimiser": (DIFFER, replace(DIFFER, credit=replace(DIFFER.credit, mixer_optimiser=Optimiser(lr=0.1)))),
    "priority": (PLAIN, replace(PLAIN, replay=replace(PLAIN.replay, priority=0.6))),
    "heads": tuple(replace(PLAIN, net=replace(NETS["transformer"], heads=heads)) for heads in (1, 2)),
    "n_step": (PLAIN, replace(PLAIN, n_step=3)),
    "n_step of transitions": tuple(replace(SINGLE, n_step=n) for n in (1, 3)),
    "priority of transitions": (SINGLE, replace(SINGLE, replay=replace(SINGLE.replay, priority=0.6))),
    "huber": (PLAIN, replace(PLAIN, huber=0.1)),
    "values.dueling": (PLAIN, replace(PLAIN, values=Values(dueling=True))),
    "values.noisy": (PLAIN, replace(PLAIN, values=Values(noisy=0.5))),
    "values.atoms": (ALONE, replace(ALONE, values=Values(atoms=5))),
    "values.low": tuple(replace(ALONE, values=Values(atoms=5, low=low)) for low in (-10.0, -9.0)),
    "values.high": tuple(replace(ALONE, values=Values(atoms=5, high=high)) for high in (10.0, 9.0)),
    "share": (DIFFER, SHARING),
    **{
        f"share.{key} {value}": (sharing(**base), sharing(**{**base, key: value}))
        for key, value, base in (
            ("select", "gaussian", {}),
            ("select", "gaussian_upper", {}),
            ("select", "stochastic", {}),
            ("select", "learned", {}),
            ("select", "all", {}),
            ("partners", "range", {}),
            ("partners", "similar", {}),
            ("partners", "role", {}),
            ("partners", "attention", {}),
            ("accept", "novel", {}),
            ("accept", "closer", {}),
            ("schedule", "entropy", {}),
            ("schedule", "mutual_information", {}),
            ("form", "embeddings", {"form": "transitions"}),
            ("drop", 0.2, {"form": "embeddings"}),
            ("bandwidth", 0.2, {}),
            ("floor", 0.03, {"schedule": "entropy"}),
            ("ceiling", 0.3, {"schedule": "entropy"}),
            ("max_partners", 2, {}),
            ("window", 30, {}),
            ("radius", 0.7, {"partners": "range"}),
            ("radius", 0.7, {"partners": "role"}),
            ("metric", "l1", {"partners": "range"}),
            ("metric", "l1", {"partners": "similar"}),
            ("alone", "widen", {"partners": "range"}),
            ("alone", "widen", {"partners": "role"}),
        )
    },
}


@pytest.mark.parametrize("name", list(ACTIVE))
def test_what_is_on_changes_the_program(name: str) -> None:
    off, on = ACTIVE[name]
    assert program(off) != program(on)


def test_every_choice_of_sharing_is_covered() -> None:
    """A value added to `Share` fails here until the tests above and below know it."""
    assert {key.split(".")[1].split()[0] for key in ACTIVE if key.startswith("share.")} == set(CHOICES) | {
        "drop", "bandwidth", "floor", "ceiling", "max_partners", "window", "radius", "metric", "alone",
    } == {*Share.__dataclass_fields__}  # fmt: skip
    for key in CHOICES:
        named = {name.split()[1] for name in ACTIVE if name.startswith(f"share.{key} ")}
        # `team` is `everyone` where there is one team (tests/mechanisms/test_share.py has two).
        assert named | {"none", "quantile", "everyone", "team", "everything", "constant", "transitions"} >= set(
            CHOICES[key]
        )


SELECTS = get_args(get_type_hints(Credit)["select"])


@pytest.mark.parametrize(
    ("net", "mixer", "select"),
    [*itertools.product(NETS, ["vdn", "qmix"], ["per_weight"]), *itertools.product(["mlp"], ["qmix"], SELECTS[:-1])],
)
def test_individual_credit_trains_every_network_through_every_mixer(net: str, mixer: str, select: str) -> None:
    credit = replace(DIFFER.credit, select=select)
    before, after, metrics = updated(
        replace(DIFFER, net=NETS[net], mixer=replace(PLAIN.mixer, kind=mixer), credit=credit)
    )
    old, new = before.learner, after.learner
    assert finite(after, metrics) and metrics["gradient_steps"] == 1
    assert differs(new.online.agent, old.online.agent)
    assert mixer == "vdn" or differs(new.online.mixer, old.online.mixer)
    assert 0 < metrics["credit_used"] <= 1 and 0 < metrics["credit_ess"] <= 1 + 1e-6
    assert (metrics["credit_used"] == 1) == (select == "all")
    assert metrics["credit_error"] > 0 and metrics["own_loss"] > 0 and metrics["credit_reward"] != 0
    # 30 of 100 steps: half of the warm-up.
    assert metrics["credit_fraction"] == pytest.approx(0.9)


def test_priorities_are_kept_and_used() -> None:
    algo = replace(PLAIN, replay=replace(PLAIN.replay, priority=0.6))
    before, after, metrics = updated(algo)
    assert np.array_equal(before.learner.priorities, np.zeros(8))
    priorities = np.asarray(after.learner.priorities)
    # Four sequences were added with priority 1; those that were drawn have their mean TD error now.
    assert np.all(priorities[:4] > 0) and np.all(priorities[4:] == 0) and np.any(priorities[:4] != 1)
    assert metrics["priority_spread"] >= 1 and finite(after, metrics)


SHOWS = {
    "n_step": "",
    "n_step of transitions": "n_step",
    "priority of transitions": "priority_spread",
    "huber": "huber_linear",
    "values.dueling": "advantage",
    "values.noisy": "noise",
    "values.atoms": "return_spread",
}


@pytest.mark.parametrize("name", list(SHOWS))
def test_extensions_of_values_train_and_show_what_they_do(name: str) -> None:
    _, algo = ACTIVE[name]
    before, after, metrics = updated(algo)
    assert finite(after, metrics) and metrics["gradient_steps"] == 1 and metrics["loss"] > 0
    assert all(differs(x, y) for x, y in zip(_layers(after), _layers(before), strict=True)), "every layer learns"
    assert not SHOWS[name] or metrics[SHOWS[name]] > 0


def _layers(state: QState) -> list[Any]:
    agent = state.learner.online.agent
    return [*agent.spread, agent.mean.head] if isinstance(agent, Noisy) else [agent.head, *agent.aside]


@pytest.mark.parametrize("double", [True, False])
def test_a_transition_is_learned_from_as_a_sequence_of_one_is(double: bool) -> None:
    """Though each network reads only the rows that it has to."""
    sequence = replace(ALONE, double=double, last_action=False)
    single = replace(SINGLE, mixer=ALONE.mixer, double=double)
    both = experience("mlp")
    cut = replace(both, step=jax.tree.map(lambda x: x[:2], both.step), action=both.action[:1], filled=both.filled[:1])
    sees = Minibatch(time_major(by_env(cut)), Draw(jnp.arange(4), None), CLOCK, jax.random.PRNGKey(0), jnp.int32(0))
    one, two = (hasty_jit(lambda k=k: sequence.init(SPEC, jax.random.PRNGKey(k)))().learner for k in (1, 2))
    now = replace(one, target=two.online)

    def gradient(algo: Q) -> Any:
        return hasty_jit(jax.grad(lambda online: algo._loss(SPEC, online, now, sees)[0].value))(now.online)

    assert differs(gradient(single), jax.tree.map(jnp.zeros_like, now.online))
    assert_close(gradient(single), gradient(sequence), 1e-5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"values": Values(atoms=51)}, "distribution of an agent's own return"),
        ({"values": Values(atoms=1), "mixer": Mixer("none")}, "at least 2 atoms"),
        ({"values": Values(dueling=True), "net": NETS["transformer"]}, "use mlp or gru"),
        ({"shift": 4}, "algo.shift moves images"),
        ({"n_step": 3, "td_lambda": 0.5}, "algo.n_step needs"),
        ({"n_step": 3, "replay": SINGLE.replay}, "--algo.no-last-action"),
        ({"huber": 1.0, "credit": Credit("differ")}, "algo.huber"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        replace(PLAIN, **change).check(SPEC)


# --- sharing


def test_combinations_of_choices_have_a_program() -> None:
    """Every third pair of what and with whom, so that each value meets several others; the other choices take turns."""
    turns = itertools.cycle(itertools.product(CHOICES["accept"], CHOICES["schedule"]))
    pairs = [*itertools.product(CHOICES["select"][1:], CHOICES["partners"])]
    pairs = [pair for i, pair in enumerate(pairs) if (i + i // 6) % 3 == 0]
    assert {x for pair in pairs for x in pair} == {*CHOICES["select"][1:], *CHOICES["partners"]}
    for (select, partners), (accept, schedule) in zip(pairs, turns, strict=False):
        algo = sharing(select=select, partners=partners, accept=accept, schedule=schedule)
        algo.check(SPEC)
        state = jax.eval_shape(lambda a=algo: a.init(SPEC, jax.random.PRNGKey(0)))
        update = lambda s, r, a=algo: a.update(SPEC, s, r, CLOCK, jax.random.PRNGKey(0))  # noqa: E731
        after, metrics = jax.eval_shape(update, state, experience("mlp"))
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert "share_accepted" in metrics and ("share_roles" in metrics) == (partners == "role")


@pytest.mark.parametrize(
    ("net", "weights", "credit", "choice"),
    [
        ("mlp", "shared", True, {"select": "quantile", "partners": "range", "alone": "widen", "schedule": "entropy"}),
        ("gru", "per_agent", True, {"select": "gaussian", "partners": "role", "alone": "widen", "accept": "closer"}),
        ("mlp", "per_agent", False, {"select": "learned", "partners": "attention", "schedule": "mutual_information"}),
        ("transformer", "per_agent", False, {"select": "all", "partners": "everyone", "form": "embeddings"}),
        ("transformer", "shared", True, {"select": "stochastic", "partners": "similar", "accept": "novel"}),
        ("gru", "shared", False, {"select": "all", "partners": "everyone", "max_partners": 2}),
    ],
)
def test_sharing_is_alive(net: str, weights: str, credit: bool, choice: dict[str, Any]) -> None:
    algo = replace(sharing(**choice), net=replace(NETS[net], weights=weights))
    if not credit:
        algo = replace(algo, credit=Credit(), mixer=Mixer("none"))
    before, after, metrics = updated(algo)
    assert finite(after, metrics) and metrics["gradient_steps"] == 1
    assert differs(after.learner.online.agent, before.learner.online.agent)
    assert metrics["share_offered"] > 0 and 0 < metrics["share_bandwidth"] <= 1 and metrics["share_rate"] > 0
    assert metrics["share_accepted"] > 0 and 0 < metrics["share_acceptance"] <= 1
    received = [metrics[f"share_accepted/{name}"] for name in SPEC.agents]
    assert sum(received) == pytest.approx(metrics["share_accepted"])
    seen = {"share_error"} if "form" in choice else {"share_error_before", "share_error_after"}
    assert all(metrics[name] > 0 for name in seen)
    if choice["partners"] == "role":
        assert 1 <= metrics["share_roles"] <= 3
    if choice["partners"] == "attention":
        assert metrics["share_judge_transitions"] > 0 and 0.5 <= metrics["share_attention"] <= 1
    # What was learnt from others moved the weights elsewhere than one's own experience would have.
    _, alone, _ = updated(replace(algo, share=Share()))
    assert differs(after.learner.online.agent, alone.learner.online.agent)
