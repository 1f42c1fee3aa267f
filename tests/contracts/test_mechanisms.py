"""Switches of the Q family. Off: no trace in the program. On: another program, which trains and shows what it does."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import differs, hasty_jit

from rookery.algorithms.q import Q, QState, Replay
from rookery.core.types import Clock, Collect, Rollout
from rookery.mechanisms.credit import Credit
from rookery.nets.agent import Net
from rookery.nets.mixers import Mixer
from rookery.nets.optimiser import Optimiser, Schedule
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.rollout import collect, open_worlds

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
DIFFER = replace(PLAIN, credit=Credit("differ"))


@cache
def experience(net: str) -> Rollout:
    """One rollout of agents with such a network."""
    algo = replace(PLAIN, net=NETS[net], mixer=Mixer("none"))

    def build(key: jax.Array) -> Rollout:
        policy = algo.policy(algo.init(SPEC, key))
        return collect(algo, TASK, policy, open_worlds(algo, TASK, algo.collect.envs, key), CLOCK, key)[1]

    return hasty_jit(build)(jax.random.PRNGKey(0))


def updated(algo: Q) -> tuple[QState, QState, dict[str, float]]:
    """State before and after one update of one gradient step, and its metrics."""
    algo.check(SPEC)
    before = hasty_jit(lambda: algo.init(SPEC, jax.random.PRNGKey(1)))()
    update = hasty_jit(lambda state, rollout: algo.update(SPEC, state, rollout, CLOCK, jax.random.PRNGKey(2)))
    after, metrics = update(before, experience(algo.net.kind))
    return before, after, {name: float(mean.value) for name, mean in metrics.items()}


@cache
def program(algo: Q) -> str:
    """An update, as it goes to the compiler."""
    algo.check(SPEC)
    state, key = jax.eval_shape(lambda: algo.init(SPEC, jax.random.PRNGKey(0))), jax.random.PRNGKey(0)
    text = str(jax.make_jaxpr(lambda s, r: algo.update(SPEC, s, r, CLOCK, key))(state, experience("mlp")))
    return re.sub("0x[0-9a-f]+", "", text)


def finite(*trees: Any) -> bool:
    return all(np.all(np.isfinite(x)) for x in jax.tree.leaves(trees))


# --- off

OTHER_CREDIT = Credit(
    select="greedy", fraction=Schedule(0.1, 0.2), alpha=0.1, eps=1.0, beta=Schedule(0, 1), clip=0.0,
    mixer_optimiser=Optimiser("radam"),
)  # fmt: skip
NEUTRAL: dict[str, Q] = {
    "credit": replace(PLAIN, credit=OTHER_CREDIT),
    "priority": replace(PLAIN, replay=replace(PLAIN.replay, importance=0.9)),
    "heads": replace(PLAIN, net=replace(PLAIN.net, heads=1)),
}


@pytest.mark.parametrize("name", list(NEUTRAL))
def test_what_is_off_leaves_no_trace(name: str) -> None:
    assert NEUTRAL[name] != PLAIN
    assert program(NEUTRAL[name]) == program(PLAIN)
    state = jax.eval_shape(lambda: NEUTRAL[name].init(SPEC, jax.random.PRNGKey(0)))
    assert jax.tree.structure(state) == jax.tree.structure(
        jax.eval_shape(lambda: PLAIN.init(SPEC, jax.random.PRNGKey(0)))
    )


# --- on

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
}


@pytest.mark.parametrize("name", list(ACTIVE))
def test_what_is_on_changes_the_program(name: str) -> None:
    off, on = ACTIVE[name]
    if off.net.kind != "mlp":
        text = {str(jax.make_jaxpr(lambda r, a=a: a.net.unroll(*r))(_unrolled(a))) for a in (off, on)}
        assert len(text) == 2
        return
    assert program(off) != program(on)


def _unrolled(algo: Q) -> tuple[Any, ...]:
    net = algo.net
    x = jnp.zeros((2, 1, 3, 4))
    return net.init(jax.random.PRNGKey(0), 3, 4, 2, 1.0), net.carry(1, 3), x, jnp.zeros((2, 1), bool)


@pytest.mark.parametrize("net", list(NETS))
@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
@pytest.mark.parametrize("select", ["all", "greedy", "greedy_weight", "per", "per_weight"])
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
