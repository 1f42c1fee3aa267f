"""Training from Python: what a run leaves, and acting with its policies; several devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from small import small_config

import rookery
from rookery.core.config import to_json
from rookery.core.errors import ConfigError
from rookery.core.registry import PRESETS
from rookery.training import blocks, checkpoint
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Sweep
from rookery.training.progress import Silent
from rookery.training.train import Run, evaluate_fresh, evaluate_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A recurrent policy for one agent with two seeds, on a maze of 3 x 3 in which 4 steps are enough."""
    config = small_config("qmix_pymarl", "maze/static", seeds=(3, 4), steps=300)
    task = replace(config.task, obstacles=0, limit=6)
    evaluation = Evaluation(points=3, rows=2, episodes=4, final=10)
    return rookery.train(replace(config, task=task, evaluation=evaluation), tmp_path_factory.mktemp("out"))


def test_what_a_run_leaves(run: Run) -> None:
    metrics, evaluations, final = run.metrics(), run.evaluations(), run.final()
    assert run.folder.status().state == "complete"
    chunks = metrics["chunk"].unique().sort().to_list()
    assert chunks == list(range(1, len(chunks) + 1)) and len(chunks) >= 6
    assert metrics.group_by("chunk").len()["len"].unique().to_list() == [2]
    assert set(metrics["seed"]) == {3, 4} and metrics.filter(pl.col("member") == 0)["seed"].unique().to_list() == [3]
    last = metrics.filter(pl.col("chunk") == chunks[-1])
    assert last["steps"].min() >= 300 and metrics.filter(pl.col("chunk") == chunks[-2])["steps"].min() < 300
    # One evaluation before training, then three, evenly spaced but for half a chunk, the last one at the end.
    evaluated = evaluations["chunk"].unique().sort().to_list()
    assert len(evaluated) == 4 and evaluated[0] == 0 and evaluated[-1] == chunks[-1]
    assert max(abs(at - i * len(chunks) / 3) for i, at in enumerate(evaluated)) <= 1
    assert evaluations.group_by("chunk", "member").len()["len"].unique().to_list() == [4]
    assert final.group_by("which", "member").len().sort("which", "member")["len"].to_list() == [10] * 4
    assert set(final["which"]) == {"best", "last"}
    np.testing.assert_allclose(final["score"], final["success"])
    np.testing.assert_allclose(final["return_mean"], final["success"] * 200)
    assert run.timing()["steps"].sum() == last["steps"].sum()


def test_start_states_are_independent_between_seeds_and_paired_between_algorithms() -> None:
    """In an episode of one step the return is hardly more than where the agents began."""

    def returns(preset: str) -> np.ndarray:
        config = small_config(preset, "mpe/simple_spread", seeds=(0, 1), evaluation=Evaluation(episodes=32))
        frame = evaluate_fresh(replace(config, task=replace(config.task, limit=1)), 32)
        return frame["return_mean"].to_numpy().reshape(2, 32)

    (ours, other), (theirs, _) = returns("iql"), returns("vdn")
    assert np.corrcoef(ours, theirs)[0, 1] > 0.9
    assert abs(np.corrcoef(ours, other)[0, 1]) < 0.5


@pytest.mark.parametrize("which", ["best", "last"])
@pytest.mark.parametrize("member", [0, 1])
def test_a_policy_acts_as_it_was_evaluated(run: Run, which: str, member: int) -> None:
    """The maze and the greedy policy are deterministic: every episode must be the evaluated one."""
    policy, task = run.policy(which, member), run.config.task
    state, step = task.reset(jax.random.PRNGKey(5))
    total, length = 0.0, 0
    for _ in range(2):  # a second episode, without telling the policy: the step says that it is the first
        state, step = task.reset(jax.random.PRNGKey(5))
        total, length = 0.0, 0
        while not bool(step.last):
            state, step = task.step(state, policy.act(step), jax.random.PRNGKey(length))
            total, length = total + float(step.reward[0]), length + 1
        rows = run.final().filter((pl.col("which") == which) & (pl.col("member") == member))
        assert (total, length) == (rows["return_mean"][0], rows["length"][0])
        assert rows["return_mean"].n_unique() == 1


def test_the_best_policy_is_the_best_that_was_evaluated(run: Run) -> None:
    scores = run.evaluations().group_by("member", "chunk").agg(pl.col("score").mean())
    best = scores.group_by("member").agg(pl.col("score").max()).sort("member")["score"]
    final = run.final().filter(pl.col("which") == "best").group_by("member").agg(pl.col("score").mean())
    np.testing.assert_allclose(final.sort("member")["score"], best)


def test_a_sampled_action_needs_a_key(run: Run) -> None:
    policy = run.policy()
    _, step = run.config.task.reset(jax.random.PRNGKey(0))
    greedy = {int(policy.act(step)[0]) for _ in range(5)}
    sampled = {int(policy.act(step, jax.random.PRNGKey(i))[0]) for i in range(20)}
    # So early in its schedule the run still explored nearly always.
    assert len(greedy) == 1 and len(sampled) > 1
    for which, member in (("newest", 0), ("best", 2), ("best", -1)):
        with pytest.raises(ConfigError, match=r"newest|members 0 to 1"):
            run.policy(which, member)


def test_fresh_episodes_of_a_finished_run(run: Run) -> None:
    frame = evaluate_run(run.folder.path, 6, "last")
    assert frame.group_by("member").len()["len"].to_list() == [6, 6]
    expected = run.final().filter(pl.col("which") == "last").group_by("member").agg(pl.col("score").mean())
    have = frame.group_by("member").agg(pl.col("score").mean())
    assert have.sort("member").equals(expected.sort("member"))


DEVICES = """
import json, sys
import jax
import rookery, rookery.training.train as t
from rookery.core.config import from_json
seen = []
save = t.checkpoint.save
def spy(folder, state, **kwargs):
    seen.append(max(len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state)))
    return save(folder, state, **kwargs)
t.checkpoint.save = spy
rookery.train(from_json(rookery.RunConfig, json.load(open(sys.argv[1]))), sys.argv[2])
print(json.dumps({"devices": len(jax.devices()), "spread": max(seen)}))
"""


def on_devices(config: RunConfig, count: int, folder: Path) -> tuple[dict[str, int], Run]:
    """Train in a process that has `count` devices."""
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    command = [sys.executable, "-c", DEVICES, str(folder / "config.json"), str(folder / f"out{count}")]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / f"out{count}").iterdir()
    return json.loads(done.stdout), Run(rookery.training.folder.RunFolder(path))


def test_members_spread_over_devices_learn_the_same(tmp_path: Path) -> None:
    sweep = (Sweep("algo.optimiser.lr", (1e-3, 1e-2)),)
    config = replace(small_config("vdn", steps=200, sweep=sweep), checkpoints=Checkpoints(seconds=0.0))
    (facts, one), (facts_two, two) = (on_devices(config, count, tmp_path) for count in (1, 2))
    assert facts == {"devices": 1, "spread": 1} and facts_two == {"devices": 2, "spread": 2}
    a, b = one.metrics(), two.metrics()
    assert a.columns == b.columns and len(a) == len(b) > 0
    for column in a.columns:
        np.testing.assert_allclose(a[column].to_numpy(), b[column].to_numpy(), rtol=1e-4, atol=1e-4, err_msg=column)
    for x, y in zip(jax.tree.leaves(one.policies), jax.tree.leaves(two.policies), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


class StoppedError(Exception):
    """Somebody ended the process."""


class StopAfter(Silent):
    """Ends training after so many chunks."""

    def __init__(self, chunks: int) -> None:
        self.left = chunks

    def update(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            raise StoppedError


def test_a_best_policy_that_stays_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best policy of a memory agent is as large as its memory: checkpoints share it, a resume brings it back."""
    monkeypatch.setattr(blocks, "SIZE", 256)  # the memory has 1,024 keys
    keep = Checkpoints(keep=4, seconds=0.0)
    evaluation = Evaluation(points=2, rows=5, episodes=4, final=4)
    config = small_config("q", steps=160, algo=PRESETS["q"], evaluation=evaluation, checkpoints=keep)
    whole = rookery.train(config, tmp_path / "whole")
    with pytest.raises(StoppedError):  # before the checkpoint of the fifth chunk, after which the policy is evaluated
        rookery.train(config, tmp_path / "stopped", StopAfter(5))
    (folder,) = (tmp_path / "stopped").iterdir()
    found = checkpoint.manifests(folder / "checkpoints")
    assert len(found) == 4
    parts = [{name: m.blocks[name] for name in m.blocks if name.startswith(".members.best")} for m in found]
    assert any("keys" in name for name in parts[0]), "large arrays of the best policy are kept in blocks"
    assert all(part == parts[0] for part in parts), "no evaluation came between, so nothing of it was written again"
    memory = [{name: m.blocks[name] for name in m.blocks if name.startswith(".members.algo")} for m in found]
    assert memory[0] != memory[-1]
    again = rookery.train(config, tmp_path / "stopped")
    assert again.metrics().equals(whole.metrics()) and again.final().equals(whole.final())
    for x, y in zip(jax.tree.leaves(again.policies), jax.tree.leaves(whole.policies), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_run_of_another_budget_is_another_run(run: Run, tmp_path: Path) -> None:
    config = run.config
    assert jnp.asarray(run.policies.budget) == config.steps
    other = rookery.training.folder.RunFolder.locate(
        tmp_path, to_json(replace(config, steps=301)), "qmix_pymarl", "maze/static"
    )
    assert other.id != run.folder.id
