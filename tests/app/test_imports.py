"""`--import FILE.py`: a file of one's own works from the shell, in studies, and when a run is taken up again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.app import cli
from rookery.app.study_cli import STUDY_COMMANDS
from rookery.core.errors import ConfigError
from rookery.core.imports import import_file
from rookery.training.folder import RunFolder, find_runs

ROOT = Path(__file__).resolve().parents[2]
OWN_TASK = """
from dataclasses import dataclass
from typing import Literal

from own_numbers import BONUS
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.tasks.compiled.matrix import Matrix


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class OwnGame(Matrix):
    \"\"\"Climbing, in a file of its own.\"\"\"

    family: Literal["own_game"] = "own_game"
    bonus: float = BONUS


TASKS["own/game"] = OwnGame()
"""
TINY = ["--steps", "64", "--evaluation.points", "1", "--evaluation.episodes", "4", "--evaluation.final", "4"]
SMALL = ["--algo.collect.envs", "4", "--algo.net.width", "8", "--algo.replay.capacity", "64"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file that registers a task, with one beside it that it imports."""
    (tmp_path / "own_numbers.py").write_text("BONUS = 0.0\n")
    (tmp_path / "own_game.py").write_text(OWN_TASK)
    return tmp_path / "own_game.py"


def rookery(*words: str, at: Path, code: int = 0) -> str:
    """What a command prints, in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rookery.app.cli", *words]
    done = subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_a_file_works_from_the_shell_and_is_remembered(own: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "own/game" in rookery("tasks", "own", "--import", str(own), at=elsewhere)
    train = ["train", "vdn", "--task", "own/game", *TINY, *SMALL, "--quiet"]
    assert "needs --import FILE.py" in rookery(*train, at=elsewhere, code=2)
    rookery(*train, "--import", "../own_game.py", at=elsewhere)
    (run,) = find_runs(elsewhere / "runs")
    noted = json.loads((run.path / "imports.json").read_text())
    assert [Path(entry["file"]).name for entry in noted] == ["own_game.py"]
    # Found again without being named.
    assert "return_mean" in rookery("eval", run.id, "--episodes", "4", at=elsewhere)
    assert "own/game" in rookery("show", run.id, at=elsewhere)
    # Moved: the error names what is missing and what to pass; passing it helps.
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in (own, tmp_path / "own_numbers.py"):
        file.rename(moved / file.name)
    said = rookery("eval", run.id, at=elsewhere, code=2)
    assert "unknown family" in said and str(own) in said and "--import" in said
    given = f"--import={moved / own.name}"
    assert "return_mean" in rookery("eval", run.id, "--episodes", "4", given, at=elsewhere)


def test_a_study_imports_what_its_file_names_in_its_processes_too(own: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'import = ["own_game.py"]\ntasks = ["own/game"]\nseeds = 1\nsteps = 64\n'
        'algorithms = [{ preset = "vdn", net.width = 8, replay.capacity = 64, collect.envs = 4 }]\n'
        "[evaluation]\npoints = 1\nepisodes = 4\nfinal = 4\n"
    )
    rookery("study", "run", str(study), "--jobs", "1", "--quiet", at=tmp_path)
    (run,) = find_runs(tmp_path / "runs")
    assert RunFolder(run.path).status().state == "complete"
    assert "own/game" in rookery("compare", run.id, at=tmp_path)


def test_a_changed_file_is_warned_of(own: Path, tmp_path: Path) -> None:
    train = ["train", "vdn", "--task", "own/game", *TINY, *SMALL, "--import", str(own)]
    rookery(*train, at=tmp_path)
    own.write_text(own.read_text() + "\n# changed\n")
    assert "has changed since the run was begun" in rookery(*train, at=tmp_path)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="that exists"):
        import_file(tmp_path / "none.py")
    (tmp_path / "json.py").write_text("")
    with pytest.raises(ConfigError, match="another module named 'json'"):
        import_file(tmp_path / "json.py")
    (tmp_path / "not-a-name.py").write_text("")
    with pytest.raises(ConfigError, match="cannot be the name of a module"):
        import_file(tmp_path / "not-a-name.py")
    (tmp_path / "broken_import.py").write_text("x = 1\nraise ValueError('no')\n")
    with pytest.raises(ConfigError, match=r"failed at .*broken_import.py:2: ValueError: no"):
        import_file(tmp_path / "broken_import.py")
    assert "broken_import" not in sys.modules


@pytest.mark.parametrize("command", [*cli.COMMANDS, *(f"study {name}" for name in STUDY_COMMANDS)])
def test_every_command_has_the_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command == "study":
        return  # a group of commands
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert "--import FILE.py" in " ".join(capsys.readouterr().out.split())
