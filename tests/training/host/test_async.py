"""Asynchronous learners: real processes that share weights and statistics, and every way in which one can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from small import assert_close

sys.path.insert(0, str(Path(__file__).parent))
from envs import CartPole
from test_workers import alive, compiled_task, wait_until

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.core.errors import ConfigError, TrainingError
from rookery.core.registry import PRESETS
from rookery.core.types import Collect
from rookery.training import checkpoint
from rookery.training.asynchronous.engine import AsyncEngine
from rookery.training.check import check
from rookery.training.config import Evaluation, RunConfig, Workers
from rookery.training.engine import open_engine
from rookery.training.state import score
from rookery.training.train import resume

EVALUATION = Evaluation(points=2, rows=2, episodes=8, final=3)


def config_of(learners: int, preset: str = "a3c", task: Any = None, steps: int = 60_000, **changes: Any) -> RunConfig:
    algo = replace(PRESETS[preset], collect=Collect(envs=8, length=8, learners=learners))
    workers = Workers(count=-1 if learners else 0)
    return RunConfig(preset, "test", algo, task or CartPole(), steps, workers=workers, evaluation=EVALUATION, **changes)


def test_one_learner_is_synchronous() -> None:
    """The same environments, keys and gradient steps; only the threads of the process differ."""
    found = []
    for learners in (0, 1):
        engine = open_engine(config_of(learners, seeds=(0, 1)))
        try:
            state, first = engine.chunk(engine.init(), 2)
            state, second = engine.chunk(state, 2)
            found.append(jax.tree.map(np.asarray, (state.members.algo, state.members.steps, first.means, second.means)))
        finally:
            engine.close()
    sync, lone = found
    stale = [means.pop("async/staleness") for means in lone[2:]]
    assert all(np.all(mean.total == 0) and np.all(mean.weight == 2) for mean in stale)
    assert_close(sync, lone, 1e-4)
    np.testing.assert_array_equal(sync[1], lone[1])


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    engine = AsyncEngine(config_of(2))
    engine.prepare(fresh=True)
    yield engine
    engine.close()


def test_two_learners_share_weights_and_statistics_and_learn(engine: AsyncEngine) -> None:
    start = engine.init()
    _, random = engine.evaluate(start)
    state, report = engine.chunk(start, 10)
    # An iteration is a gradient step of each: all were applied to one set, whoever took them.
    assert int(state.iteration) == 20 and np.all(report.means["grad_norm_actor"].weight == 20)
    stale = report.means["async/staleness"]
    assert np.all(stale.weight == 20) and 0 < stale.total[0] <= 20
    episodes = np.asarray(state.members.worlds.episodes)
    assert episodes.shape == (1, 2, 4) and np.all(episodes >= 1)
    memory = engine._pool.memory
    before = [x.copy() for x in memory.commons]
    for shared, kept in zip(memory.commons, jax.tree.leaves(_common(engine, state)), strict=True):
        np.testing.assert_array_equal(shared, np.asarray(kept))
    # What the processes read is this memory: with weights of 0 both act at random, with equal chances.
    blank = eqx.tree_at(
        lambda s: s.members.algo.nets, state, replace_fn=lambda nets: jax.tree.map(lambda x: x * 0, nets)
    )
    _, report = engine.chunk(blank, 1)
    np.testing.assert_allclose(report.means["entropy"].total / report.means["entropy"].weight, np.log(2), atol=0.05)
    assert any(not np.array_equal(x, y) for x, y in zip(before, memory.commons, strict=True))
    # CartPole: a policy that knows nothing falls after some 10 steps if it is greedy, 22 if it is random.
    for _ in range(4):
        state, report = engine.chunk(state, 120)
    _, episodes = engine.evaluate(state)
    learned, chance = (float(np.mean(score(engine.config.task.spec, x))) for x in (episodes, random))
    assert learned > max(60.0, 2 * chance)


def _common(engine: AsyncEngine, state: Any) -> Any:
    return engine._program.algo.common(state.members.algo)


def test_a_learner_that_dies_is_found_at_once(engine: AsyncEngine) -> None:
    state, pids = engine.init(), engine._pool.pids
    assert len(pids) == 2 and all(map(alive, pids))
    os.kill(pids[1], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(TrainingError, match=r"learner 1 of test/cartpole .* was killed by SIGKILL"):
        engine.chunk(state, 100_000)
    engine.close()
    assert time.monotonic() - start < 30
    assert not any(map(alive, pids))


TRAIN = ["train", "a3c", "--task", "gymnasium:CartPole-v1", "--steps", "30000", "--checkpoints.seconds", "0"]
TRAIN += ["--evaluation.episodes", "2", "--evaluation.final", "2", "--evaluation.points", "50"]


def test_a_killed_run_leaves_no_learner_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rookery.app.cli", *TRAIN, "--out", str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: any(checkpoint.manifests(path) for path in tmp_path.glob("*/checkpoints")), 240)
        learners = [pid for pid in _children(parent.pid) if alive(pid)]
    finally:
        parent.kill()
        parent.wait()
    assert len(learners) == 2
    assert wait_until(lambda: not any(map(alive, learners)))
    folder = next(path.parent for path in tmp_path.glob("*/config.json"))
    run = resume(folder)
    assert run.folder.status().state == "complete"
    record = json.loads((folder / "provenance.json").read_text())
    assert [entry["deterministic"] for entry in record] == [False, False]
    assert "environments_resumed" not in record[0] and record[1]["environments_resumed"].startswith("fresh episodes")
    steps = run.metrics()["steps"].to_numpy()
    assert np.all(np.diff(steps) > 0) and "async/staleness" in run.metrics().columns


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


REFUSED: dict[str, tuple[RunConfig, str]] = {
    "compiled": (config_of(2, task=compiled_task()), "is compiled"),
    "family": (
        replace(config_of(2), algo=replace(PRESETS["dqn"], collect=Collect(8, 8, learners=2))),
        "one gradient step",
    ),
    "epochs": (config_of(2, "ppo"), "set --algo.epochs 1 --algo.minibatches 1"),
    "envs": (config_of(3), "must divide algo.collect.envs"),
    "workers": (replace(config_of(2), workers=Workers(count=2)), "leave out --workers.count"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_asynchronous_is_refused(name: str) -> None:
    config, told = REFUSED[name]
    with pytest.raises(ConfigError, match=told):
        check(config)
