"""The command line: what it parses, what it prints, how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import polars as pl
import pytest

from rookery.app import cli, options, text
from rookery.core.config import from_json, to_json
from rookery.core.errors import ConfigError, RunError, TrainingError
from rookery.core.registry import ABOUT, ALGORITHMS, PRESETS, TASK_FAMILIES, TASKS
from rookery.core.types import ActionSpec, Collect, Spec
from rookery.training import checkpoint
from rookery.training.config import Evaluation, RunConfig, Sweep
from rookery.training.folder import RunFolder


@dataclass(frozen=True)
class Optimiser:
    """How steps are made."""

    lr: float = 5e-4
    """Learning rate."""


class Methods:
    """What makes a config an algorithm, or a task, in the eyes of a type checker; never called here."""

    def init(self, *_: Any) -> Any:
        raise AssertionError

    policy = snapshot = stores = carry = carry_interval = act = update = shard = warmup = small = init
    reset = step = init


@dataclass(frozen=True)
class Toy(Methods):
    """A toy algorithm."""

    family: Literal["toy"] = "toy"
    collect: Collect = field(default_factory=Collect)
    optimiser: Optimiser = field(default_factory=Optimiser)
    width: int = 64
    """Units."""
    layers: tuple[int, ...] = (64,)
    """Units of each layer."""
    double: bool = True
    """Two estimates."""

    def check(self, spec: Spec) -> None:
        if not spec.cooperative:
            raise ConfigError(f"toy needs a cooperative task; {spec.name} is not.")


@dataclass(frozen=True)
class Maze(Methods):
    """A toy task."""

    family: Literal["toymaze"] = "toymaze"
    size: int = 5
    """Cells of a side."""
    rivals: bool = False
    """Whether agents compete."""

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ConfigError(f"size must be at least 2, got {self.size}.")

    @property
    def spec(self) -> Spec:
        return Spec("toymaze", ("a", "b"), (4,), ActionSpec("discrete", (2,)), self.size, cooperative=not self.rivals)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    options.load_registries()
    monkeypatch.setitem(ALGORITHMS, "toy", Toy)
    monkeypatch.setitem(TASK_FAMILIES, "toymaze", Maze)
    monkeypatch.setitem(PRESETS, "toy-wide", Toy(width=128))
    monkeypatch.setitem(PRESETS, "toy", Toy())
    monkeypatch.setitem(TASKS, "toymaze/5", Maze())
    monkeypatch.setitem(TASKS, "toymaze/9", Maze(size=9))
    yield


def parse(line: str) -> RunConfig:
    return options.parse_train(line.split())[1]


def fails(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of a command that must print nothing else."""
    try:
        code = cli.main(line.split())
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return code, " ".join(err.replace("│", " ").split())


# --- train: from words to a config


def test_defaults_come_from_the_preset_and_the_task() -> None:
    assert parse("toy-wide --task toymaze/9") == RunConfig("toy-wide", "toymaze/9", Toy(width=128), Maze(size=9))


def test_every_value_is_an_option() -> None:
    config = parse(
        "toy --task=toymaze/9 --steps 2e6 --seeds 3 --first-seed 10 --algo.optimiser.lr 1e-4 --algo.width 1e2 "
        "--algo.layers 8 4 --algo.no-double --task.size 7 --evaluation.points 3 --checkpoints.keep 5 "
        "--sweep algo.optimiser.lr=1e-4,5e-4 --sweep algo.optimiser.lr=1"
    )
    assert config.algo == Toy(optimiser=Optimiser(1e-4), width=100, layers=(8, 4), double=False)
    assert type(config.algo) is Toy and type(config.task) is Maze
    assert config.task == Maze(size=7) and config.task_name == "toymaze/9"
    assert (config.steps, config.seeds) == (2_000_000, (10, 11, 12)) and type(config.steps) is int
    assert (config.evaluation.points, config.checkpoints.keep) == (3, 5)
    assert config.sweep == (Sweep("algo.optimiser.lr", (1e-4, 5e-4)), Sweep("algo.optimiser.lr", (1.0,)))


def test_the_preset_may_follow_options() -> None:
    assert parse("--task toymaze/5 --steps 5 toy-wide") == parse("toy-wide --task toymaze/5 --steps 5")


@pytest.mark.parametrize(
    ("words", "first", "seeds"),
    [("1", 0, (0,)), ("5", 0, (0, 1, 2, 3, 4)), ("2", 7, (7, 8)), ("3,7,11", 0, (3, 7, 11)), ("7,", 0, (7,))],
)
def test_seeds(words: str, first: int, seeds: tuple[int, ...]) -> None:
    assert options.parse_seeds(words, first) == seeds


@pytest.mark.parametrize(("words", "first"), [("0", 0), ("x", 0), ("", 0), ("1,1", 0), ("-1,2", 0), ("1,2", 3)])
def test_impossible_seeds(words: str, first: int) -> None:
    with pytest.raises(ConfigError, match="seed"):
        options.parse_seeds(words, first)


@pytest.mark.parametrize("seeds", ["--seeds 3", "--seeds 3,7,11", "--seeds 7,", "--seeds 2 --first-seed 4"])
def test_dry_run_and_config_are_inverse(seeds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        f"train iql --task matrix/climbing {seeds} --algo.net.width 3 --task.game x --sweep algo.gamma=0.9,1 --dry-run"
    )
    assert cli.main(line.split()) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "config.json"
    file.write_text(printed)
    assert cli.main(["train", "--config", str(file), "--dry-run"]) == 0
    assert capsys.readouterr().out == printed
    assert to_json(parse(f"--config {file}")) == json.loads(printed)


def test_options_override_a_config_file(tmp_path: Path) -> None:
    base = RunConfig(
        "toy", "toymaze/9", Toy(width=3), Maze(size=4), seeds=(3, 7), sweep=(Sweep("algo.optimiser.lr", (1.0,)),)
    )
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_json(base)))
    changed = parse(f"toy --config {file} --algo.double --task toymaze/9 --task.size 6 --steps 9")
    assert changed.algo == Toy(width=3) and changed.task == Maze(size=6)
    assert (changed.steps, changed.seeds, changed.sweep) == (9, (3, 7), base.sweep)
    other = parse(f"toy-wide --config {file} --task toymaze/5 --seeds 2 --sweep algo.optimiser.lr=2")
    assert (other.preset, other.algo, other.task_name, other.task) == ("toy-wide", Toy(width=128), "toymaze/5", Maze())
    assert (other.seeds, other.sweep) == ((0, 1), (Sweep("algo.optimiser.lr", (2.0,)),))


def test_a_list_of_seeds_replaces_counted_ones(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_json(RunConfig("toy", "toymaze/9", Toy(), Maze(), seeds=(7, 8)))))
    assert parse(f"--config {file}").seeds == (7, 8)
    assert parse(f"--config {file} --seeds 3").seeds == (7, 8, 9)
    assert parse(f"--config {file} --seeds 3,5").seeds == (3, 5)


def test_every_preset_parses_on_a_real_task() -> None:
    for preset, algo in list(PRESETS.items()):
        config = parse(f"{preset} --task mpe/simple_spread")
        assert (config.algo, config.task) == (algo, TASKS["mpe/simple_spread"])
        assert from_json(RunConfig, json.loads(json.dumps(to_json(config)))) == config


def test_every_task_round_trips() -> None:
    for name, task in TASKS.items():
        config = RunConfig("toy", name, Toy(), task)
        assert from_json(RunConfig, json.loads(json.dumps(to_json(config)))) == config


# --- help


def help_of(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(line.split())
    assert stop.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    general = help_of("--help", capsys)
    assert all(command in general for command in cli.COMMANDS)
    assert help_of("", capsys) == general
    assert "toy-wide" in help_of("train --help", capsys)
    algo = help_of("train toy --help", capsys)
    assert "--algo.optimiser.lr FLOAT" in algo and "Learning rate." in algo and "--task NAME" in algo
    assert "--algo.family" not in algo and "--task.size" not in algo
    task = help_of("train toy --task toymaze/9 --help", capsys)
    assert "--task.size INT" in task and "Cells of a side. (default: 9)" in task and "--task.family" not in task


# --- failures


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("train toi --task toymaze/5", ["unknown preset 'toi'", "Did you mean 'toy'"]),
        ("train toy --task toymaze/6", ["unknown task 'toymaze/6'", "Did you mean 'toymaze/"]),
        ("train toy", ["--task is missing", "toymaze/5"]),
        ("train toy --task", ["--task"]),
        ("train --task toymaze/5", ["needs a preset", "toy-wide"]),
        ("train toy --tsk toymaze/5", ["--tsk", "--task NAME"]),
        ("train toy --task toymaze/5 --algo.optimizer.lr 1", ["--algo.optimizer.lr", "--algo.optimiser.lr"]),
        ("train toy --task toymaze/5 --task.sise 1", ["--task.sise", "--task.size"]),
        ("train toy --task toymaze/5 --algo.family q", ["--algo.family"]),
        ("train toy --task toymaze/5 --algo.width wide", ["--algo.width", "wide"]),
        ("train toy --task toymaze/5 --algo.width 2.5", ["--algo.width", "expected an integer, got 2.5"]),
        ("train toy --task toymaze/5 --steps 0", ["steps must be at least 1, got 0"]),
        ("train toy --task toymaze/5 --seeds none", ["--seeds", "got 'none'"]),
        ("train toy --task toymaze/5 --task.rivals", ["toy needs a cooperative task"]),
        ("train toy --task toymaze/5 --task.size 1", ["size must be at least 2, got 1"]),
        ("train toy --task toymaze/5 --sweep algo.lr=1", ["algo.lr", "Did you mean 'algo.optimiser.lr'?"]),
        ("train toy --task toymaze/5 --sweep algo.width=1", ["cannot sweep algo.width (int)", "algo.optimiser.lr"]),
        ("train toy --task toymaze/5 --sweep algo.optimiser.lr=x", ["expected PATH=NUMBER", "algo.optimiser.lr=x"]),
        ("train toy --task toymaze/5 --sweep algo.optimiser.lr", ["expected PATH=NUMBER"]),
        (
            "train toy --task toymaze/5 --sweep algo.optimiser.lr=1 --sweep algo.optimiser.lr=2",
            ["give every entry once"],
        ),
        ("train --config /does/not/exist", ["/does/not/exist", "No such file"]),
        ("tasks zzz", ["no task's name begins with 'zzz'"]),
        ("eval x --episodes 0", ["--episodes must be at least 1"]),
        ("eval x --checkpoint newest", ["newest", "best"]),
        ("ls --jsn", ["--jsn", "--json"]),
        ("lss", ["lss", "ls"]),
    ],
)
def test_mistakes_are_explained_and_exit_with_2(
    line: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = fails(line, capsys)
    assert code == 2
    for part in parts:
        assert part in err


def test_mistakes_in_a_config_file_name_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    data = to_json(RunConfig("toy", "toymaze/5", Toy(), Maze()))
    data["algo"]["optimiser"]["lrr"] = 1
    file.write_text(json.dumps(data))
    code, err = fails(f"train --config {file}", capsys)
    assert (code, err) == (2, "rookery: algo.optimiser.lrr: there is no such entry. Did you mean 'lr'?")
    file.write_text('{"steps": }')
    code, err = fails(f"train --config {file}", capsys)
    assert code == 2 and "is not JSON: Expecting value: line 1 column 11" in err


def test_unknown_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = fails(f"show nothing --out {tmp_path}", capsys)
    assert code == RunError.code and "no run 'nothing'" in err


# --- commands that train, against a stand-in


class Training(ModuleType):
    """Stands in for rookery.training.train: keeps what it was called with, then raises `error` or makes a folder."""

    def __init__(self) -> None:
        super().__init__("rookery.training.train")
        self.calls: list[tuple[Any, ...]] = []
        self.error: BaseException | None = None
        self.log: Sequence[str] = ()

    def train(self, config: RunConfig, out: Path, progress: Any = None, log: Sequence[str] = ()) -> None:
        self.calls.append(("train", config, out))
        self.log = log
        RunFolder.open_or_create(out, to_json(config), config.preset, config.task_name)
        progress.update(5, 10, 2.0, {"train/return_mean": 1.0})
        if self.error:
            raise self.error

    def resume(self, path: Path, progress: Any = None, log: Sequence[str] = ()) -> None:
        self.calls.append(("resume", path))
        self.log = log
        if self.error:
            raise self.error

    def evaluate_run(self, path: Path, episodes: int, which: str, actions: str) -> pl.DataFrame:
        self.calls.append(("eval", path, episodes, which, actions))
        return episodes_frame()


def test_logs_are_passed_on_and_checked_first(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"train toy --task toymaze/5 --out {tmp_path} --log"
    assert cli.main([*command.split(), "tensorbord"]) == 2
    assert "expected tensorboard or wandb" in capsys.readouterr().err
    assert training.calls == []
    assert cli.main([*command.split(), "tensorboard"]) == 0
    assert training.log == ("tensorboard",)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    module = Training()
    monkeypatch.setitem(sys.modules, "rookery.training.train", module)
    return module


def episodes_frame(chunk: int = 0, success: float = 0.0) -> pl.DataFrame:
    """Two members, two episodes each; the members' mean returns are 1 and 3."""
    return pl.DataFrame(
        {
            "chunk": [chunk] * 4,
            "member": [0, 0, 1, 1],
            "seed": [4, 4, 5, 5],
            "episode": [0, 1, 0, 1],
            "return_mean": [0.0, 2.0, 2.0, 4.0],
            "return_sum": [0.0, 4.0, 4.0, 8.0],
            "length": [5, 5, 5, 5],
            "success": [success] * 4,
        }
    )


def only_run(out: Path) -> Path:
    (path,) = out.iterdir()
    return path


def test_train_and_resume(training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(f"train toy --task toymaze/5 --out {tmp_path}".split()) == 0
    assert training.calls == [("train", RunConfig("toy", "toymaze/5", Toy(), Maze()), tmp_path)]
    path = only_run(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "step 5 of 10 (50%), 2 steps/s per seed, 0:02 left, return_mean 1",
        str(path),
    ]
    assert cli.main(f"resume toy__ --out {tmp_path} --quiet".split()) == 0
    assert training.calls[1:] == [("resume", path)]
    assert capsys.readouterr().out == f"{path}\n"


def test_an_interrupt_tells_how_to_go_on(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.error = KeyboardInterrupt()
    assert cli.main(f"train toy --task toymaze/5 --out {tmp_path} --quiet".split()) == 130
    command = f"rookery resume {only_run(tmp_path)}"
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"rookery: interrupted; nothing is saved yet. Continue: {command}\n")
    checkpoint.save(only_run(tmp_path) / "checkpoints", {}, chunk=1, steps=[1], score=0.0, keep=1)
    assert cli.main(command.split()[1:]) == 130
    kept = "what the last checkpoint has is kept"
    assert capsys.readouterr().err == f"rookery: interrupted; {kept}. Continue: {command}\n"


def test_errors_of_training_give_their_text_and_code(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.error = TrainingError("the loss is not finite from step 7 on.")
    assert fails(f"train toy --task toymaze/5 --out {tmp_path} --quiet", capsys) == (
        TrainingError.code,
        "rookery: the loss is not finite from step 7 on.",
    )


def test_a_sweep_of_what_decides_the_program_is_refused(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"train mappo --task matrix/climbing --algo.collect.envs 2 --out {tmp_path} --quiet"
    code, err = fails(f"{line} --sweep algo.clip=0,0.2 --dry-run", capsys)
    assert code == 2 and "algo.clip decides what is compiled" in err
    assert training.calls == [] and list(tmp_path.iterdir()) == []
    assert cli.main(f"{line} --sweep algo.entropy=0,0.2".split()) == 0
    assert [call[0] for call in training.calls] == ["train"]


def test_eval(training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    assert cli.main(f"eval {run.id} --episodes 2 --checkpoint last --actions sampled --out {tmp_path}".split()) == 0
    assert training.calls == [("eval", run.path, 2, "last", "sampled")]
    shown = " ".join(capsys.readouterr().out.split())
    assert "score IQM low high seeds episodes return_mean 2 1 3 2 4" in shown
    assert "95% bootstrap interval of the IQM over seeds" in shown
    assert cli.main(f"eval {run.id} --out {tmp_path} --json".split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["members"][1] == {"member": 1, "seed": 5, "return_mean": 3.0, "return_sum": 6.0, "length": 5.0}
    first = {"score": "return_mean", "IQM": 2.0, "low": 1.0, "high": 3.0, "seeds": 2, "episodes": 4}
    assert printed["scores"][0] == first


# --- commands that read


def make_run(out: Path) -> RunFolder:
    config = RunConfig("toy", "toymaze/5", Toy(width=3), Maze(size=7), seeds=(4, 5), evaluation=Evaluation(points=2))
    run = RunFolder.open_or_create(out, to_json(config), "toy", "toymaze/5")
    for chunk in (0, 1):
        columns = {"chunk": [chunk] * 2, "member": [0, 1], "seed": [4, 5], "train/return_mean": [chunk + 1.0] * 2}
        run.write_part("metrics", chunk, pl.DataFrame(columns | {"grad_norm": [0.5, 1.5]}))
        run.write_part("evaluations", chunk, episodes_frame(chunk))
    run.write_part("final", 0, episodes_frame(success=1.0).with_columns(which=pl.lit("best")))
    run.set_status("complete", progress=1.0, score=0.25)
    entry = {"started": "2026-01-01", "source": {"commit": "abcdef0123456789", "dirty": True}, "host": "box"}
    (run.path / "provenance.json").write_text(json.dumps([entry | {"packages": {"rookery": "0.1", "jax": "0.10"}}]))
    return run


def test_ls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(f"ls --out {tmp_path / 'none'}".split()) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path / 'none'}\n"
    run = make_run(tmp_path)
    (tmp_path / "toy__toymaze-5__0123456789").mkdir()
    assert cli.main(f"ls --out {tmp_path}".split()) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "complete" in lines[run.name] and "100%" in lines[run.name] and "0.25" in lines[run.name]
    assert "broken" in lines["toy__toymaze-5__0123456789"]
    assert cli.main(f"ls --json --out {tmp_path}".split()) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[run.name]["steps"] == 1_000_000 and rows[run.name]["task"] == "toymaze/5"


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    assert cli.main(["show", str(run.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        run.name,
        "toy width=3 on toymaze/5 size=7",
        "seeds 4,5; 1,000,000 steps each",
        "status complete, 100%",
        "commit abcdef0123 (changed), rookery 0.1, jax 0.10, box",
        "training return_mean 2 liveness grad_norm 1",
        "evaluation newest score IQM low high seeds episodes return_mean 2 1 3 2 4",
        "final best",
        "success 1 1 1 2 4",
        "95% bootstrap interval of the IQM over seeds",
        "config.json",
        "metrics/",
    ):
        assert part in shown


def test_show_of_a_run_that_has_just_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig("toy", "toymaze/5", Toy(), Maze())
    run = RunFolder.open_or_create(tmp_path, to_json(config), "toy", "toymaze/5")
    assert cli.main(["show", str(run.path)]) == 0
    assert "metrics     none yet" in capsys.readouterr().out


def test_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["algorithms", "--json"]) == 0
    rows = {row["preset"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["toy-wide"] == {
        "preset": "toy-wide",
        "family": "toy",
        "needs": "any actions, a cooperative task",
        "description": "A toy algorithm.",
        "settings": "width=128",
    }
    needs = {name: row["needs"] for name, row in rows.items()}
    assert needs["qmix"] == "discrete actions, a cooperative task"
    assert needs["inspire_qmix"] == "discrete actions, a cooperative task, positions, two agents"
    assert needs["ippo"] == "any actions, any rewards"
    assert needs["nec"] == "discrete actions, one agent"
    assert needs["nec_atari"] == "discrete actions, images, one agent"
    assert "unknown" not in needs.values()
    assert cli.main(["algorithms"]) == 0
    listed = capsys.readouterr().out
    assert ["toy-wide", "toy"] in [line.split()[:2] for line in listed.splitlines()]
    assert "width=128" not in listed
    assert cli.main(["algorithms", "toy-w"]) == 0
    assert "width=128" in capsys.readouterr().out
    assert cli.main(["algorithms", "qmicks"]) == 2
    assert "no preset's name begins with 'qmicks'" in capsys.readouterr().err


def test_every_preset_is_described() -> None:
    shipped = {name for name, algo in PRESETS.items() if type(algo).__module__.startswith("rookery.")}
    assert set(ABOUT) == shipped


def test_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["name", "agents", "teams", "obs"]
    assert any(line.startswith("mpe/simple_spread ") for line in lines)
    assert cli.main(["tasks", "matrix/climbing"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert dict(zip(heading.split(), row.split(), strict=False))["name"] == "matrix/climbing"
    assert cli.main(["tasks", "matrix/climbing", "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    assert (facts["agents"], facts["action"], facts["reference"]) == (2, "discrete", 11.0)


def test_what_is_not_known_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    text.print_rows([{"name": "a", "score": float("nan")}], as_json=False)
    assert capsys.readouterr().out == "name  score\na     -\n"
    text.print_rows([{"name": "a", "score": float("nan")}], as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"name": "a", "score": None}]


def test_a_single_seed_has_no_interval() -> None:
    frame = episodes_frame().filter(pl.col("member") == 0)
    assert text.score_lines(frame)[1].split() == ["return_mean", "1", "-", "-", "1", "2"]


# --- as a process of its own


def rookery(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rookery.app.cli", *words], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_help_does_not_wait_for_jax() -> None:
    code = "import sys; from rookery.app import cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert rookery("--help").returncode == 0


@pytest.mark.slow
def test_a_process_fails_without_a_traceback() -> None:
    done = rookery("train", "qmx", "--task", "mpe/simple_spread")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rookery: unknown preset 'qmx'. Did you mean 'qmix' or 'q'?\n"


@pytest.mark.slow
def test_a_process_whose_reader_leaves_is_quiet() -> None:
    command = [sys.executable, "-m", "rookery.app.cli", "algorithms"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(timeout=60), err) == (141, "")


@pytest.mark.slow
def test_an_interrupted_process_exits_with_130(tmp_path: Path) -> None:
    # A process that is started in the background of a shell ignores SIGINT, and so do its children.
    stand_in = (
        "import signal, sys, time, types\n"
        "from pathlib import Path\n"
        "from rookery.app import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "module = types.ModuleType('rookery.training.train')\n"
        "def resume(path, progress, log):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "module.resume = resume\n"
        "sys.modules[module.__name__] = module\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    run = make_run(tmp_path)
    command = [sys.executable, "-c", stand_in, "resume", str(run.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.startswith("rookery: interrupted; ") and err.endswith(f"Continue: rookery resume {run.path}\n")
