"""Swept values train side by side as they would alone, and what cannot be swept or trained is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import assert_close, chunk_of, differs, init_of, rows_of, small_config

from rookery.core.config import with_values
from rookery.core.errors import ConfigError
from rookery.core.registry import PRESETS, TASKS
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.check import check
from rookery.training.config import RunConfig, Sweep

RATES = (1e-2, 1e-3)


@pytest.mark.parametrize("preset", ["qmix", "mappo"])
def test_members_of_a_sweep_equal_separate_runs(preset: str) -> None:
    swept = small_config(preset, sweep=(Sweep("algo.optimiser.lr", RATES),))
    check(swept)
    members, report = chunk_of(swept, 3)(init_of(swept))
    assert members.members.steps.shape == (2,)
    # The second member is not the one whose rate the preset has.
    alone = replace(small_config(preset), algo=with_values(swept.algo, {"optimiser.lr": RATES[1]}))
    state, alone_report = chunk_of(alone, 3)(init_of(alone))
    own = rows_of(members.members, slice(1, 2))
    assert_close(own.algo, state.members.algo, 1e-5)
    assert_close(rows_of(report.means, slice(1, 2)), alone_report.means, 1e-4)
    # Both began with the same weights; the rates led them apart.
    for tree, apart in ((members.members.best, False), (members.members.algo, True)):
        one, two = (rows_of(tree, i) for i in (0, 1))
        assert differs(one, two) == apart


def config_of(preset: str, task: Any, **values: Any) -> RunConfig:
    name = task if isinstance(task, str) else task.spec.name
    algo = with_values(PRESETS[preset].small(), values)
    return RunConfig(preset, name, algo, TASKS[task] if isinstance(task, str) else task)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of("qmix", "mpe/simple_tag"), "qmix.*needs a cooperative task; mpe/simple_tag.*adversary, good"),
        (config_of("vdn", "mpe/simple_tag"), "vdn.*needs a cooperative task"),
        (config_of("iql", Mpe(action_type="continuous")), "needs discrete actions; mpe/simple_spread has box.*mappo"),
        (config_of("mappo", "mpe/simple_tag"), "simple_tag rewards its agents differently.*value.sees both"),
        (config_of("mappo", "matrix/climbing", minibatches=7), "cannot be split into 7 equal minibatches"),
        (
            config_of("mappo", "matrix/climbing", **{"actor.kind": "gru", "bptt_length": 3}),
            r"algo.bptt_length \(3\) must divide the 8",
        ),
        (config_of("mappo", "matrix/climbing", **{"critic.kind": "transformer"}), "value.sees obs"),
        (config_of("mappo", "matrix/climbing", **{"collect.restart": True}), "restart is for replayed episodes"),
        (config_of("iql", "matrix/climbing", **{"replay.capacity": 9}), "must be a multiple of algo.collect.envs"),
        (config_of("iql", "matrix/climbing", **{"replay.batch": 99}), "must fit into algo.replay.capacity"),
        (config_of("iql", "matrix/climbing", **{"replay.steps_per_sequence": 0.1}), "whole number of gradient steps"),
    ],
)
def test_impossible_combinations_are_refused(config: RunConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config)


@pytest.mark.parametrize(
    ("preset", "path", "message"),
    [
        ("mappo", "algo.clip", "algo.clip decides what is compiled"),
        ("qmix", "algo.huber", "algo.huber decides what is compiled"),
        ("qmix", "algo.net.width", r"cannot sweep algo.net.width \(int\)"),
        ("qmix", "algo.nothing", "algo.nothing"),
    ],
)
def test_what_decides_the_program_cannot_be_swept(preset: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(small_config(preset, sweep=(Sweep(path, (0.5, 1.0)),)))


def test_a_team_of_a_mixed_task_may_be_mixed() -> None:
    check(config_of("qmix", Mpe(scenario="simple_tag", team="adversary")))
