"""A run in shards learns as one: against the whole, with the shards as a batch axis, and on devices of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_close, assert_same, chunk_of, hasty_jit, init_of, small_config

import rookery
from rookery.algorithms.ppo import PPO
from rookery.algorithms.q import Q
from rookery.core import shards
from rookery.core.config import to_json
from rookery.core.errors import ConfigError
from rookery.core.types import Clock, Mean
from rookery.memory.learning import Minibatch
from rookery.memory.replay import Draw
from rookery.memory.sequences import by_env, time_major
from rookery.training.check import check
from rookery.training.compiled.program import Program
from rookery.training.compiled.rollout import collect, open_worlds
from rookery.training.config import Checkpoints, RunConfig
from rookery.training.folder import RunFolder
from rookery.training.train import Run

CLOCK = Clock(jnp.int32(0), jnp.uint32(40), jnp.float32(64))
KEY = jax.random.PRNGKey(3)


def in_parts(preset: str, count: int = 2, envs: int = 0, **kwargs: Any) -> RunConfig:
    config = small_config(preset, **kwargs)
    wanted = replace(config.algo.collect, envs=envs or max(2, config.algo.collect.envs), shards=count)
    return replace(config, algo=replace(config.algo, collect=wanted))


def halves(tree: Any, axis: int) -> Any:
    """[..., n, ...] -> [2, ..., n / 2, ...]."""
    return jax.tree.map(lambda x: jnp.stack(jnp.split(x, 2, axis)), tree)


def begun(algo: Any, task: Any, envs: int) -> tuple[Any, Any]:
    """A fresh state and its first rollout."""

    def build(key: jax.Array) -> tuple[Any, Any]:
        state = algo.init(task.spec, key)
        worlds = open_worlds(algo, task, envs, key)
        return state, collect(algo, task, algo.policy(state), worlds, CLOCK, key)[1]

    return hasty_jit(build)(KEY)


@pytest.mark.parametrize("preset", ["mappo", "mappo_jaxmarl"])
def test_two_halves_of_a_rollout_teach_what_the_whole_does(preset: str) -> None:
    config = in_parts(preset)
    algo: PPO = replace(config.algo, epochs=2, minibatches=1)
    spec = config.task.spec
    whole = replace(algo, collect=replace(algo.collect, shards=1))
    state, rollout = begun(whole, config.task, whole.collect.envs)
    expected, metrics = jax.jit(lambda s, r: whole.update(spec, s, r, CLOCK, KEY))(state, rollout)

    both = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    both = eqx.tree_at(lambda s: s.critic_carry, both, halves(state.critic_carry, 0))
    learn = jax.vmap(lambda s, r: algo.shard().update(spec, s, r, CLOCK, KEY), axis_name=shards.AXIS)
    learned, measured = jax.jit(learn)(both, halves(rollout, 1))
    for shard in (0, 1):
        one = jax.tree.map(lambda x, i=shard: x[i], (learned.nets, learned.opt, learned.returns))
        assert_close(one, (expected.nets, expected.opt, expected.returns), 2e-5)
    joint = jax.tree.map(lambda x: jnp.sum(x, axis=0), measured)
    np.testing.assert_allclose(joint["value_loss"].value, metrics["value_loss"].value, rtol=1e-4)


@pytest.mark.parametrize("preset", ["qmix", "iql", "qmix_pymarl"])
def test_two_halves_of_a_batch_teach_what_the_whole_does(preset: str) -> None:
    config = in_parts(preset)
    algo: Q = config.algo
    spec, envs = config.task.spec, 4
    state, rollout = begun(replace(algo, collect=replace(algo.collect, envs=envs, shards=1)), config.task, envs)
    learner = state.learner
    batch = time_major(by_env(rollout))

    def step(batch: Any, index: Any) -> Any:
        return algo._gradient_step(spec, learner, Minibatch(batch, Draw(index, None), CLOCK, KEY, jnp.int32(0)))

    expected, metrics = jax.jit(step)(batch, jnp.arange(envs))
    learn = jax.jit(jax.vmap(step, axis_name=shards.AXIS))
    learned, measured = learn(halves_of_columns(batch), jnp.arange(envs).reshape(2, -1))
    for shard in (0, 1):
        assert_close(jax.tree.map(lambda x, i=shard: x[i], learned.online), expected.online, 2e-5)
    joint = jax.tree.map(lambda x: jnp.sum(x, axis=0), measured["loss"])
    np.testing.assert_allclose(joint.value, metrics["loss"].value, rtol=1e-4)


def halves_of_columns(batch: Any) -> Any:
    """A batch [time, column, ...], its memory [column, ...]."""
    return jax.tree.map(lambda x, axis: jnp.stack(jnp.split(x, 2, axis)), batch, _columns(batch))


def _columns(batch: Any) -> Any:
    ones = jax.tree.map(lambda _: 1, batch)
    return eqx.tree_at(lambda b: b.memory, ones, jax.tree.map(lambda _: 0, batch.memory))


def test_parts_agree_in_what_they_learn() -> None:
    config = in_parts("mappo")
    state = init_of(config)
    assert all(leaf.shape[:2] == (1, 2) for leaf in jax.tree.leaves(state.members.worlds))
    state, report = chunk_of(config, 2)(state)
    for x in jax.tree.leaves(state.members.algo.nets):
        np.testing.assert_array_equal(x[:, 0], x[:, 1])
    whole = replace(config, algo=replace(config.algo, collect=replace(config.algo.collect, shards=1)))
    assert int(report.steps[0]) == int(chunk_of(whole, 2)(init_of(whole))[1].steps[0]), "all environments count"


def test_parts_have_environments_of_their_own() -> None:
    state = init_of(in_parts("mappo", task="mpe/simple_spread"))
    obs = np.asarray(state.members.worlds.step.obs)
    assert not np.array_equal(obs[:, 0], obs[:, 1])


def test_an_only_environment_is_played_by_all_parts_alike() -> None:
    config = in_parts("qmix_pymarl", envs=1, task="mpe/simple_spread")
    state = init_of(config)
    state, report = chunk_of(config, 6)(state)
    algo, worlds = state.members.algo, state.members.worlds
    for x in jax.tree.leaves((worlds, algo.store, algo.learner)):
        np.testing.assert_array_equal(x[:, 0], x[:, 1])
    assert int(algo.learner.updates[0, 0]) > 0, "it has learned"
    whole = replace(config, algo=replace(config.algo, collect=replace(config.algo.collect, shards=1)))
    state, expected = chunk_of(whole, 6)(init_of(whole))
    assert int(report.steps[0]) == int(expected.steps[0]), "the environment counts once"
    assert report.means["gradient_steps"].value == expected.means["gradient_steps"].value
    # Until there are weights that differ, all is as in one shard: the same episodes are stored, whole, by each.
    first = config.algo.replay.start
    for ours, theirs in zip(jax.tree.leaves(algo.store), jax.tree.leaves(state.members.algo.store), strict=True):
        assert ours.shape[2:] == theirs.shape[1:], "each shard has all of it"
        np.testing.assert_allclose(ours[0, 0, :first], theirs[0, :first], rtol=1e-5, atol=1e-6)


def test_evaluation_plays_as_many_episodes_as_asked_for() -> None:
    config = in_parts("mappo")
    config = replace(config, evaluation=replace(config.evaluation, episodes=5))
    state, episodes = jax.jit(Program(config).evaluate)(init_of(config))
    assert episodes["returns"].shape[:2] == (1, 5)
    assert np.isfinite(np.asarray(state.members.best_score)).all()


def test_one_shard_leaves_no_trace() -> None:
    config = small_config("mappo")
    text = str(jax.make_jaxpr(lambda s: Program(config).chunk(s, 1))(init_of(config)))
    assert "psum" not in text and "axis_index" not in text


def test_parts_find_the_mean_of_all_and_its_gradient() -> None:
    x, where = jnp.arange(6.0).reshape(2, 3), jnp.array([[True, False, False], [True, True, True]])
    at = {"w": jnp.float32(0.7)}

    def loss(at: Any, x: Any, where: Any) -> tuple[Mean, Any]:
        return Mean.of((at["w"] * x - 1.0) ** 2, where), jnp.sum(x)

    def shard(x: Any, where: Any) -> Any:
        return (
            *shards.mean_gradient(lambda at: loss(at, x, where), at),
            shards.mean(Mean.of(x, where)),
            shards.joined(x),
        )

    grads, sums, means, joined = jax.vmap(shard, axis_name=shards.AXIS)(x, where)
    expected = jax.grad(lambda at: loss(at, x, where)[0].value)(at)["w"]
    np.testing.assert_allclose(grads["w"], [expected, expected], rtol=1e-6)
    np.testing.assert_array_equal(sums, [3.0, 12.0])
    np.testing.assert_allclose(means, jnp.mean(x, where=where), rtol=1e-6)
    np.testing.assert_array_equal(joined[0], np.arange(6.0))
    alone, _ = shards.mean_gradient(lambda at: loss(at, x, where), at)
    np.testing.assert_allclose(alone["w"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("preset", "values", "told"),
    [
        ("mappo", {"algo.collect.shards": 3}, "divide algo.collect.envs"),
        ("mappo", {"algo.collect.shards": 0}, "at least 1"),
        ("qmix", {"algo.collect.shards": 2, "algo.replay.batch": 33}, "must divide algo.replay.batch"),
        ("qmix", {"algo.collect.shards": 2, "algo.replay.priority": 0.6}, "priority .* must be 0"),
        ("differ_qmix", {"algo.collect.shards": 2}, "shards 1"),
        ("inspire_qmix", {"algo.collect.shards": 2}, "shards 1"),
        ("qmix_pymarl", {"algo.collect.shards": 2, "algo.replay.batch": 33}, "must divide algo.replay.batch"),
        ("mappo", {"algo.collect.shards": 2, "algo.collect.envs": 1, "algo.minibatches": 1}, "several environments"),
        ("mappo_jaxmarl", {"algo.collect.shards": 8}, "change algo.minibatches or algo.collect.shards"),
    ],
)
def test_what_cannot_be_divided_is_refused(preset: str, values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check(rookery.config(preset, "mpe/simple_spread", **values))


TRAIN = """
import json, sys, jax, rookery
from rookery.core.config import from_json
run = rookery.train(from_json(rookery.RunConfig, json.load(open(sys.argv[1]))), sys.argv[2])
print(len(jax.devices()))
"""


def begin(cores: int, config: RunConfig, folder: Path) -> subprocess.Popen[str]:
    """Train in a process that may use so many cores: its shards are on devices of their own."""
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    command = [sys.executable, "-c", TRAIN, str(folder / "config.json"), str(folder / f"out{cores}")]
    env = {**os.environ, "NPROC": str(cores)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train_apart(cores: int, config: RunConfig, folder: Path) -> Run:
    process = begin(cores, config, folder)
    said, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert int(said) == 2, "devices"
    return Run(folder_of(config, folder / f"out{cores}"))


def folder_of(config: RunConfig, out: Path) -> RunFolder:
    return RunFolder.locate(out, to_json(config), config.preset, config.task_name)


@pytest.mark.parametrize(("preset", "envs"), [("mappo", 0), ("qmix", 0), ("qmix_pymarl", 1)])
def test_parts_on_devices_of_their_own_learn_the_same(tmp_path: Path, preset: str, envs: int) -> None:
    assert len(jax.devices()) == 1, "in this process shards are a batch axis"
    config = replace(in_parts(preset, envs=envs, steps=200), checkpoints=Checkpoints(seconds=0.0))
    two = train_apart(2, config, tmp_path)
    if preset == "mappo":  # devices are made of however many cores
        assert_same(train_apart(1, config, tmp_path).policies, two.policies)
    here = rookery.train(config, tmp_path / "here")
    a, b = here.metrics(), two.metrics()
    assert a.columns == b.columns and len(a) == len(b) > 0
    for column in a.columns:
        np.testing.assert_allclose(a[column].to_numpy(), b[column].to_numpy(), rtol=1e-3, atol=1e-3, err_msg=column)
    assert_close(here.policies, two.policies, 1e-3)


def test_no_parts_are_refused_before_devices_are_claimed(tmp_path: Path) -> None:
    _, complaint = begin(1, in_parts("mappo", 0), tmp_path).communicate()
    assert "ConfigError: algo.collect.shards must be at least 1" in complaint
