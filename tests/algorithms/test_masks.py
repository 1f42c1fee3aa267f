"""What must not teach anything does not: transitions out of `last`, dead agents, padding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_same, differs, hasty_jit

from rookery.algorithms.ppo import PPO, Value
from rookery.algorithms.q import Q
from rookery.core.types import Clock, Rollout
from rookery.nets.agent import Net
from rookery.nets.mixers import Mixer
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.compiled.rollout import collect, open_worlds

CLOCK = Clock(jnp.int32(0), jnp.uint32(0), jnp.float32(100))
IQL = replace(Q().small(), replay=replace(Q().small().replay, start=2, batch=2))
MLP = Net("mlp", width=8)
RECURRENT = replace(MLP, kind="gru", layers=1)
ALGOS: dict[str, Any] = {
    "iql": IQL,
    "iql-lambda": replace(IQL, td_lambda=0.6),
    "qmix": replace(IQL, mixer=Mixer("qmix", embed=4, hyper=4)),
    "ippo": PPO(value=Value(sees="obs")).small(),
    "mappo-gru": replace(PPO().small(), actor=RECURRENT, critic=RECURRENT, bptt_length=4),
}
SPREAD = Mpe(agents=2, limit=3)
PADDED = Mpe(scenario="simple_speaker_listener", limit=3)


@cache
def experience(name: str, task: Any = SPREAD) -> tuple[Any, Rollout]:
    """A fresh learner and one rollout, over several episodes."""
    return _experience(ALGOS[name], task)


def _experience(algo: Any, task: Any) -> tuple[Any, Rollout]:
    def build(key: jax.Array) -> tuple[Any, Rollout]:
        state = algo.init(task.spec, key)
        worlds = open_worlds(algo, task, algo.collect.envs, key)
        return state, collect(algo, task, algo.policy(state), worlds, CLOCK, key)[1]

    return hasty_jit(build)(jax.random.PRNGKey(0))


@cache
def _update(algo: Any, task: Any) -> Any:
    def update(state: Any, rollout: Rollout) -> Any:
        state, metrics = algo.update(task.spec, state, rollout, CLOCK, jax.random.PRNGKey(1))
        return algo.policy(state), metrics

    return hasty_jit(update)


def learned(name: str, rollout: Rollout) -> Any:
    """Policy and metrics after one update from `rollout`."""
    return _update(ALGOS[name], SPREAD)(experience(name)[0], rollout)


def change(rollout: Rollout, **parts: Any) -> Rollout:
    """The rollout with other arrays in the named places (`step.obs` as step_obs)."""
    for name, value in parts.items():
        inside = name.removeprefix("step_")
        rollout = eqx.tree_at(lambda r, n=inside: getattr(r.step if hasattr(r.step, n) else r, n), rollout, value)
    return rollout


def other_actions(rollout: Rollout, where: jax.Array) -> jax.Array:
    return jnp.where(where, (rollout.action + 1) % 5, rollout.action)


@pytest.mark.parametrize("name", list(ALGOS))
def test_transitions_out_of_last_teach_nothing(name: str) -> None:
    rollout = experience(name)[1]
    void = ~rollout.filled[..., None]
    assert bool(jnp.any(void)) and bool(jnp.any(~void))
    reward = rollout.step.reward.at[1:].add(jnp.where(void, 50.0, 0.0))
    scrambled = change(rollout, action=other_actions(rollout, void), step_reward=reward)
    if isinstance(ALGOS[name], PPO):
        scrambled = change(scrambled, extra={"log_prob": jnp.where(void, -1.5, rollout.extra["log_prob"])})
    assert differs(scrambled, rollout)
    plain = learned(name, rollout)
    assert_same(learned(name, scrambled), plain)
    # The same changes of a transition that counts are noticed.
    noticed = change(rollout, step_reward=rollout.step.reward.at[1:].add(jnp.where(void, 0.0, 50.0 * rollout.action)))
    assert differs(learned(name, noticed)[0], plain[0])


def test_a_policy_learns_nothing_from_an_agent_that_is_dead_all_along() -> None:
    name = "ippo"
    rollout = experience(name)[1]
    rollout = change(rollout, step_alive=rollout.step.alive.at[:, :, 1].set(False))
    scrambled = change(
        rollout,
        action=other_actions(rollout, jnp.array([False, True])),
        step_obs=rollout.step.obs.at[:, :, 1].add(3.0),
        step_reward=rollout.step.reward.at[:, :, 1].add(50.0),
    )
    if isinstance(ALGOS[name], PPO):
        scrambled = change(scrambled, extra={"log_prob": rollout.extra["log_prob"].at[:, :, 1].set(-1.5)})
    assert_same(learned(name, scrambled)[0], learned(name, rollout)[0])
    alive = change(scrambled, step_alive=jnp.ones_like(rollout.step.alive))
    assert differs(learned(name, alive)[0], learned(name, rollout)[0])


@pytest.mark.parametrize("name", ["ippo", "mappo-gru"])
def test_what_a_dead_agent_does_teaches_nothing(name: str) -> None:
    """Agent 1 dies on the way: its later actions, which the task ignores, leave no trace."""
    rollout = experience(name)[1]
    alive = rollout.step.alive.at[2:, :, 1].set(False)
    assert bool(jnp.any(rollout.filled[..., None] & ~alive[:-1])), "it must be dead where transitions count"
    rollout = change(rollout, step_alive=alive)
    scrambled = change(rollout, action=other_actions(rollout, ~alive[:-1]))
    if isinstance(ALGOS[name], PPO):
        scrambled = change(scrambled, extra={"log_prob": jnp.where(alive[:-1], rollout.extra["log_prob"], -1.5)})
    assert differs(scrambled, rollout)
    assert_same(learned(name, scrambled), learned(name, rollout))


@pytest.mark.parametrize("name", ["iql", "iql-lambda", "ippo"])
def test_values_of_dead_rows_are_trained(name: str) -> None:
    """They are bootstrapped from with the team's discount, so their own targets must reach them."""
    rollout = experience(name)[1]
    rollout = change(rollout, step_alive=rollout.step.alive.at[2:, :, 1].set(False))
    dead = ~rollout.step.alive[1:, :, 1] & rollout.filled
    richer = change(rollout, step_reward=rollout.step.reward.at[1:, :, 1].add(jnp.where(dead, 50.0, 0.0)))
    metric = "value_loss" if isinstance(ALGOS[name], PPO) else "loss"
    (_, plain), (_, paid) = learned(name, rollout), learned(name, richer)
    assert float(plain[metric].value) != float(paid[metric].value)


@pytest.mark.parametrize("family", ["iql", "qmix", "ippo"])
def test_padding_gets_no_gradient(family: str) -> None:
    """Speaker and listener see and do different numbers of things. With weights of their own, what is padding for one
    of them must stay as it was; with Adam, a weight stays exactly if its gradient is exactly 0."""
    spec = PADDED.spec
    assert len(set(spec.obs_sizes)) > 1 and len(set(spec.action_sizes)) > 1
    algo = ALGOS[family]
    own = replace(MLP, weights="per_agent")
    algo = replace(algo, net=own) if isinstance(algo, Q) else replace(algo, actor=own)
    state, rollout = _experience(algo, PADDED)
    before = algo.policy(state)
    after, _ = _update(algo, PADDED)(state, rollout)
    nets = [p if isinstance(algo, Q) else p["actor"].net for p in (before, after)]
    for agent, (seen, actions) in enumerate(zip(spec.obs_sizes, spec.action_sizes, strict=True)):
        entry, exit_w, exit_b = (
            np.asarray(f(nets[1])[agent] != f(nets[0])[agent])
            for f in (lambda n: n.before[0].weight, lambda n: n.head.weight, lambda n: n.head.bias)
        )
        assert not entry[seen : spec.obs_size].any(), "padded observations"
        assert not exit_w[:, actions:].any() and not exit_b[actions:].any(), "padded actions"
        assert entry[:seen].any() and exit_b[:actions].any()
