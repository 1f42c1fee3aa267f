"""A value that nothing reads is refused, and only such a value."""

from __future__ import annotations

import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import pytest
from small import small_config

import rookery
from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.registry import PRESETS, TASKS, find_task
from rookery.tasks.compiled.matrix import Matrix
from rookery.tasks.host.atari_task import Atari
from rookery.tasks.host.factory_task import Factory
from rookery.tasks.host.gymnasium_task import Gymnasium
from rookery.tasks.host.pettingzoo_task import PettingZoo
from rookery.tasks.host.pymarl_task import PyMarl
from rookery.training.check import check
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig, Sweep
from rookery.training.reads import reads, refuse_unread, unread


def run_of(preset: str, task: str = "matrix/climbing", **values: Any) -> RunConfig:
    run = RunConfig(preset, task, PRESETS[preset], TASKS[task])
    for path, value in values.items():
        run = configs.set_path(run, path, value)
    return run


def other_value(run: RunConfig, path: str) -> Any:
    """Another value of an entry, of its type."""
    kind, now = configs.type_of(run, path), configs.get_path(run, path)
    if typing.get_origin(kind) is Literal:
        return next((choice for choice in typing.get_args(kind) if choice != now), now)
    if isinstance(now, bool):
        return not now
    return now * 2 if now else type(now)(1)


def program_text(run: RunConfig) -> str:
    """Everything that is compiled for a run, as text."""
    program = Program(run)
    return jax.jit(lambda: program.evaluate(program.chunk(program.init(), 1)[0])).lower().as_text()


# Of every family, and with each mechanism off and on.
@pytest.mark.parametrize("preset", ["vdn", "differ_transformer", "inspire_qmix", "mappo", "mappo_jaxmarl"])
def test_what_is_not_read_changes_nothing(preset: str) -> None:
    run = small_config(preset)
    paths = [f"algo.{path}" for path in configs.leaves(run.algo) if path != "family"]
    silent = [path for path in paths if path not in reads(run)]
    assert 0 < len(silent) < len(paths)
    changed = run
    for path in silent:
        changed = configs.set_path(changed, path, other_value(run, path))
        assert configs.get_path(changed, path) != configs.get_path(run, path)
    assert program_text(changed) == program_text(run), silent


def test_what_is_read_and_matters_changes_the_program() -> None:
    """The text tells programs apart, so that the test above means something."""
    run = small_config("qmix")
    assert program_text(configs.set_path(run, "algo.gamma", 0.5)) != program_text(run)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            run_of("vdn", **{"algo.mixer.embed": 64}),
            "algo.mixer.embed=64 has no effect: nothing reads it with algo.mixer.kind=vdn. "
            "Remove it, or set algo.mixer.kind=qmix.",
        ),
        (run_of("qmix", **{"algo.optimiser.rms_decay": 0.9}), "Remove it, or set algo.optimiser.kind=rmsprop."),
        (run_of("qmix", **{"algo.epsilon.share": 0.5}), "with algo.epsilon.steps=50000. Remove it, or set"),
        (run_of("mappo", **{"algo.bptt_length": 8}), "Remove it, or set algo.actor.kind=gru."),
        (run_of("mappo", **{"algo.value.loss": "mse", "algo.value.huber": 1.0}), "algo.value.huber=1 has no effect"),
        (
            replace(run_of("vdn"), sweep=(Sweep("algo.mixer.gain", (0.5, 2.0)),)),
            "algo.mixer.gain=1 has no effect: nothing reads it with algo.mixer.kind=vdn.",
        ),
    ],
)
def test_a_dead_value_is_refused_with_the_switch_that_would_use_it(run: RunConfig, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        refuse_unread(run)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "run",
    [
        run_of("vdn"),
        run_of("qmix", **{"algo.mixer.embed": 64}),
        run_of("vdn", **{"algo.mixer.kind": "qmix", "algo.mixer.embed": 64}),
        run_of("qmix", **{"algo.optimiser.kind": "rmsprop", "algo.optimiser.rms_decay": 0.9}),
        run_of("mappo", **{"algo.actor.kind": "gru", "algo.critic.kind": "gru", "algo.bptt_length": 8}),
        run_of("qmix", **{"task.payoff": ((1.0, 2.0), (3.0, 4.0))}),
        replace(run_of("qmix"), sweep=(Sweep("algo.optimiser.lr", (1e-3, 1e-4)),)),
        replace(run_of("qmix"), preset="of another package", algo=replace(PRESETS["vdn"], gamma=0.5)),
    ],
)
def test_a_value_with_an_effect_is_not_refused(run: RunConfig) -> None:
    check(run)
    refuse_unread(run)


def test_a_trace_goes_on_only_until_all_that_is_wanted_was_read() -> None:
    run = small_config("mappo")
    some = reads(run, ["algo.collect.envs"])
    more = reads(run, ["algo.collect.envs", "algo.gamma"])
    assert "algo.collect.envs" in some < more < reads(run)
    assert "algo.gamma" in more - some
    assert reads(run, ["algo.gamma", "algo.nothing"]) == reads(run)


@dataclass(frozen=True)
class Spare(Matrix):
    """A game with an entry that it forgot about."""

    spare: int = 0


def test_values_of_a_task_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "matrix/spare", Spare())
    run = RunConfig("vdn", "matrix/spare", PRESETS["vdn"], Spare(game="mine", spare=3))
    assert unread(run) == ["task.spare"]
    with pytest.raises(ConfigError, match=r"task.spare=3 has no effect: nothing reads it with this config. Remove it."):
        refuse_unread(run)


def test_an_environment_that_is_built_already_hides_no_reads() -> None:
    run = run_of("vdn", "mpe/simple_spread", **{"task.agents": 2, "task.limit": 7})
    assert run.task.spec.n_agents == 2  # builds it
    refuse_unread(run)


def test_nothing_is_written_before_the_refusal(tmp_path: Path) -> None:
    run = small_config("vdn")
    run = configs.set_path(run, "algo.mixer.embed", 64)
    with pytest.raises(ConfigError, match="no effect"):
        rookery.train(run, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


HOST_TASKS = {
    "gymnasium": Gymnasium(),
    "pettingzoo": PettingZoo(cooperative=False, teams=("a", "b", "c")),
    "pymarl": PyMarl(path="host_toys:Corridor"),
    "atari": Atari(),
    "host": Factory("host", "host_toys:cart_pole"),
    "host, of several agents": Factory("host", "host_toys:tic_tac_toe", cooperative=False),
}
UNREAD = {
    # What a factory returns may have no use for them.
    "host": {"task.teams", "task.state"},
    "host, of several agents": {"task.clip_rewards"},
}


@pytest.mark.parametrize("name", HOST_TASKS)
def test_all_that_stepping_a_host_task_reads_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether when it is made, opened or stepped; without a step."""
    for package in ("gymnasium", "pettingzoo", "mpe2", "ale_py"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tasks" / "host")
    task = HOST_TASKS[name]
    wanted = {f"task.{path}" for path in configs.leaves(task) if path != "family"} - UNREAD.get(name, set())
    assert wanted <= reads(RunConfig("dqn", name, PRESETS["dqn"].small(), task), wanted)


def test_what_only_stepping_reads_is_not_refused() -> None:
    """Of a Gymnasium environment whose frames are skipped, too."""
    pytest.importorskip("gymnasium")
    name = "gymnasium:CartPole-v1"
    changes = {"check_bounds": False, "limit_is_truncation": True, "frame_skip": 2, "sticky": 0.25}
    refuse_unread(RunConfig("dqn", name, PRESETS["dqn"], replace(find_task(name), **changes)))
