"""Members that diverge: the others decide when a run ends, and what is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from small import small_config

from rookery.core.config import to_json
from rookery.core.types import Packed
from rookery.training import checkpoint, train
from rookery.training.config import Evaluation, RunConfig
from rookery.training.engine import Engine, Layout
from rookery.training.failures import Failures, told
from rookery.training.folder import RunFolder, write_json
from rookery.training.progress import Silent
from rookery.training.state import ChunkReport, Episodes, Member, RunState

PACES = np.array([10, 25], np.uint32)


class Uneven(Engine):
    """An engine whose members take different steps in a chunk. The slow one fails in the second chunk."""

    layout = Layout("compiled", "cpu", 1, 1)

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def state(self, steps: np.ndarray) -> RunState:
        keys, scores = jnp.zeros((2, 2), jnp.uint32), jnp.zeros(2)
        member = Member(keys, {}, (), (), jnp.asarray(steps, jnp.uint32), (), scores)
        return RunState(member, jnp.int32(0), jnp.float32(100))

    def chunk(self, state: RunState, iterations: int = 0) -> tuple[RunState, ChunkReport]:
        steps = np.asarray(state.members.steps) + PACES
        broken = np.array([[20 if steps[0] == 20 else -1], [-1]])
        totals = np.array([[[1000.0], [1.0]], [[3.0], [1.0]]], np.float32)  # [member, total and weight, metric]
        return self.state(steps), ChunkReport(Packed(totals, ("loss",)), broken, steps)

    def evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        agents = self.config.task.spec.n_agents
        played = {"returns": jnp.ones((2, 4, agents)), "length": jnp.ones((2, 4)), "success": jnp.zeros((2, 4))}
        return state, played


class Seen(Silent):
    def __init__(self) -> None:
        self.updates: list[tuple[int, Mapping[str, float]]] = []

    def update(self, steps: int, total_steps: int, steps_per_second: float, metrics: Mapping[str, float]) -> None:
        self.updates.append((steps, metrics))


def test_a_failed_member_neither_prolongs_a_run_nor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("iql", seeds=(5, 6), steps=100, evaluation=Evaluation(points=2, rows=1, episodes=4, final=4))
    folder = RunFolder.open_or_create(tmp_path, to_json(config), config.preset, config.task_name)
    monkeypatch.setattr(checkpoint, "save", lambda *_, **__: None)
    monkeypatch.setattr(type(config.algo), "stores", lambda *_: ())
    engine, seen, parts = Uneven(config), Seen(), {}

    def write(kind: Any, chunk: int, frame: pl.DataFrame) -> None:
        parts.update(folder.write_part(kind, chunk, frame))

    failures = Failures(folder, config, [0, 0])
    state = train._loop(engine, folder, write, parts, failures, engine.state(0 * PACES), -1, seen)
    # The other one has its 100 steps after four chunks; the slow one would have needed ten.
    assert state.members.steps.tolist() == [40, 100]
    means = {"loss": 501.5}, {"loss": 3.0}
    assert seen.updates == [(10, means[0]), (50, means[1]), (75, means[1]), (100, means[1])]
    assert folder.evaluations().filter(seed=5)["steps"].unique().to_list() == [0]
    status = folder.status()
    assert status.facts["steps"] == 100 and told(folder) == ["seed 5 failed: loss is not finite at step 20."]
    assert status.message == told(folder)[0]


def test_a_failure_after_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    """It comes again, or, where training is not deterministic, perhaps not."""
    config = small_config("iql", seeds=(5, 6))
    folder = RunFolder.open_or_create(tmp_path, to_json(config), config.preset, config.task_name)
    report = Uneven(config).chunk(Uneven(config).state(PACES))[1]
    Failures(folder, config, [0, 0]).take_in(report)
    assert list(Failures(folder, config, [20, 50]).of) == [0]
    # At that checkpoint the other member had already taken more steps than those at which this one failed.
    assert not Failures(folder, config, [10, 25]).of
    assert told(folder) == []


def test_episodes_of_failed_members_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("iql", seeds=(5, 6))
    folder = RunFolder.open_or_create(tmp_path, to_json(config), config.preset, config.task_name)
    write_json(folder.path / "failures.json", [{"member": 0, "step": 20, "metric": "loss"}])
    played = pl.DataFrame({"member": [0, 0, 1, 1], "which": ["best", "last"] * 2})
    monkeypatch.setattr(train, "Run", lambda folder: SimpleNamespace(folder=folder, config=config, policies=()))
    monkeypatch.setattr(train, "open_engine", Uneven)
    monkeypatch.setattr(train, "_absolute", lambda *_: played)
    assert train.evaluate_run(folder.path, 2)["member"].to_list() == [1]
