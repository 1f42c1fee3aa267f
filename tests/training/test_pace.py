"""Evaluations: as many as asked for, evenly spaced; what is announced before a run starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import small_config

import rookery
from rookery.core.config import set_path, to_json, with_values
from rookery.core.registry import PRESETS
from rookery.core.types import Collect
from rookery.studies.teams import with_teams
from rookery.training import pace
from rookery.training.config import Evaluation, RunConfig
from rookery.training.folder import RunFolder
from rookery.training.progress import Silent
from rookery.training.state import iterations_per_chunk, steps_per_iteration


def config_of(steps: int, points: int, rows: int, envs: int = 4) -> RunConfig:
    """A run whose iterations take `envs` steps: a matrix game is over after one."""
    epsilon = replace(PRESETS["iql"].epsilon, steps=0)
    algo = replace(PRESETS["iql"].small(), collect=Collect(envs=envs, restart=True), epsilon=epsilon)
    return replace(small_config("iql", algo=algo, steps=steps), evaluation=Evaluation(points, rows, 4, 4))


def evaluated(config: RunConfig, pace_of: float = 1.0) -> list[int]:
    """Steps at which a run would be evaluated whose chunks take `pace_of` times the nominal steps."""
    per_chunk = round(pace_of * iterations_per_chunk(config) * steps_per_iteration(config))
    steps, chunk, found = 0, 0, [0]
    while steps < config.steps:
        steps, chunk = steps + per_chunk, chunk + 1
        if steps >= config.steps or len(found) - 1 < pace.evaluations_due(config, chunk, steps):
            found.append(steps)
    return found


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("points", [1, 7, 20])
@pytest.mark.parametrize("pace_of", [1.0, 0.53])  # episodes that end early make iterations shorter
def test_as_many_evaluations_as_asked_for_evenly_spaced(points: int, rows: int, pace_of: float) -> None:
    for steps in (400, 404, 600, 996, 1364, 2000, 7777, 40_000, 600_000):
        config = config_of(steps, points, rows)
        at = evaluated(config, pace_of)
        if math.ceil(steps / steps_per_iteration(config)) < points:
            continue
        assert len(at) == points + 1, (steps, at)
        per_chunk = pace_of * iterations_per_chunk(config) * steps_per_iteration(config)
        wanted = np.linspace(0, at[-1], points + 1)
        assert np.abs(np.asarray(at) - wanted).max() <= per_chunk, (steps, at)
        assert steps <= at[-1] < steps + per_chunk
        spacing = np.diff(at)
        assert spacing.max() - spacing.min() <= per_chunk + 1, (steps, at)
        if pace_of == 1:  # as planned: exactly even, or even but for chunks that are short
            iteration = steps_per_iteration(config)
            assert spacing.max() - spacing.min() <= max(0.25 * spacing.mean(), iteration), (steps, at)
            assert at[-1] <= max(1.01 * steps, steps + per_chunk - 1)


def test_too_few_iterations_are_all_evaluated_and_announced() -> None:
    config = config_of(40, 20, 5)
    assert evaluated(config) == [4 * i for i in range(11)]
    (note,) = pace.notes(config)
    assert "about 10 evaluations instead of 20" in note and "an iteration takes 4 steps" in note


def test_the_end_is_announced() -> None:
    exact, beyond = config_of(2000, 5, 2), config_of(2006, 5, 2)
    assert pace.notes(exact) == []
    (note,) = pace.notes(beyond)
    end = evaluated(beyond)[-1]
    assert f"about {end:,} steps instead of 2,006" in note


def test_a_schedule_that_outlives_the_budget_is_announced() -> None:
    config = rookery.config("vdn", "matrix/climbing", steps=40_000)
    (note,) = [note for note in pace.notes(config) if note.startswith("warning")]
    # From 1 to 0.05 in 50,000 steps: 0.24 after 40,000.
    assert "algo.epsilon needs 50,000 steps" in note and "it will end at 0.24" in note
    assert not [note for note in pace.notes(replace(config, steps=50_000)) if note.startswith("warning")]


def test_a_schedule_of_a_team_is_announced_too(tmp_path: Path) -> None:
    config = with_teams(rookery.config("mappo", "mpe/simple_tag", steps=20_000), ["good=qmix"], tmp_path)
    (note,) = [note for note in pace.notes(config) if note.startswith("warning")]
    assert "algo.teams.0.algo.epsilon needs 50,000 steps" in note


def test_a_temperature_that_outlives_the_budget_is_announced() -> None:
    config = set_path(rookery.config("maddpg", "mpe/simple_spread", steps=20_000), "algo.gumbel.kind", "tags")
    assert [note for note in pace.notes(config) if "algo.gumbel needs 2,000,000 steps" in note and "period" in note]
    assert not [n for n in pace.notes(set_path(config, "algo.gumbel.kind", "st")) if "gumbel" in n]


class Messages(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.updates: list[tuple[int, int]] = []

    def message(self, text: str) -> None:
        self.texts.append(text)

    def update(self, steps: int, total_steps: int, steps_per_second: float, metrics: Mapping[str, float]) -> None:
        self.updates.append((steps, total_steps))


def test_a_run_is_evaluated_as_planned_and_counts_steps_per_seed(tmp_path: Path) -> None:
    config = replace(config_of(102, 5, 1), seeds=(0, 1, 2))
    seen = Messages()
    run = rookery.train(config, tmp_path, seen)
    at = run.evaluations()["steps"].unique().sort().to_list()
    assert at == evaluated(config) and len(at) == 6
    assert seen.updates[-1] == (104, 102) and "about 104 steps instead of 102" in "".join(seen.texts)
    assert run.folder.status().facts["steps"] == 104


def test_steps_as_a_float_are_the_same_run(tmp_path: Path) -> None:
    plain = rookery.config("vdn", "matrix/climbing", steps=20_000)
    assert rookery.config("vdn", "matrix/climbing", steps=2e4) == plain
    assert type(rookery.config("vdn", "matrix/climbing", steps=2e4).steps) is int
    small = config_of(64, 1, 1)
    loose = with_values(small, {"steps": 64.0, "algo.gamma": 1})  # as a caller may build it
    assert to_json(loose) != to_json(small)
    first = rookery.train(set_path(small, "algo.gamma", 1.0), tmp_path)
    seen = Messages()
    assert rookery.train(loose, tmp_path, seen).folder == first.folder
    assert "nothing to do" in seen.texts[-1]
    assert [path.name for path in tmp_path.iterdir()] == [RunFolder(first.folder.path).name]
