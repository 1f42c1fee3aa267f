"""The commands of the README, in order, for real: only budgets are small and tasks are quick to compile. Then those
that the README leaves out, on what the others have left."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from processes import Shell

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))
from codeblocks import ROOT, blocks, commands

SHORT = ["--evaluation.points", "2", "--evaluation.episodes", "4", "--evaluation.final", "8"]
STUDY = """
tasks = ["matrix/climbing"]
algorithms = ["mappo", "vdn"]
seeds = 2
steps = 2_000
[evaluation]
points = 2
episodes = 4
final = 8
"""


def quick(words: list[str], home: Path) -> list[str]:
    """A command with a small budget; a run's name in it becomes that of a run that is there."""
    words = [re.sub(r"^(mpe|smax)/\w+$", "matrix/climbing", word) for word in words]
    words = ["400" if before == "--steps" else word for before, word in zip(["", *words], words, strict=False)]
    words = [word.replace("__mpe", "__matrix") for word in words]
    if words[0] == "train":
        assert "--steps" in words, f"a training command of the README needs a budget: {words}"
        return [*words, *SHORT]
    named = re.compile(r"runs/(\w+?)__\S+")
    return [
        str(next(iter(sorted((home / "runs").glob(f"{found[1]}__*"))))) if (found := named.match(word)) else word
        for word in words
    ]


@pytest.fixture(scope="module")
def said(home: Path, shell: Shell) -> dict[str, str]:
    """What each command of the README printed, by its first words."""
    (home / "studies").mkdir()
    (home / "studies" / "quickstart.toml").write_text(STUDY)
    lines = [words for b in blocks(ROOT / "README.md") if b.language == "console" for words in commands(b.text)]
    ours = [words[1:] for words in lines if words[0] == "rookery"]
    assert {"train", "ls", "show", "eval", "resume", "compare", "study"} <= {words[0] for words in ours}
    said: dict[str, str] = {}
    for words in ours:
        command = quick(words, home)
        if words[0] == "show" or words[0] == "eval":  # two runs of one beginning may be there by now
            command[1] = sorted(path.name for path in (home / "runs").glob(f"{command[1].split('__')[0]}__*"))[0]
        name = " ".join(words[:2]) if words[0] in ("study", "train") else words[0]
        said[name] = shell(*command)
    return said


def test_the_commands_of_the_readme_work(said: dict[str, str], home: Path, shell: Shell) -> None:
    rows = json.loads(shell("ls", "--json"))
    assert {row["state"] for row in rows} == {"complete"}
    assert {row["run"].split("__")[0] for row in rows} >= {"qmix", "mappo", "ppo", "gbmr_frontier", "vdn"}
    assert "qmix__" in said["ls"] and "complete" in said["ls"]
    assert "matrix/climbing" in said["show"] and "return_mean" in said["eval"]
    assert "mappo" in said["compare"] and "qmix" in said["compare"]
    assert "complete" in said["study status"]
    assert list(home.rglob("index.html")), "a report"


def test_a_run_that_is_complete_is_not_trained_again(said: dict[str, str], home: Path, shell: Shell) -> None:
    run = one(home, "qmix")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert "complete" in shell("resume", str(run))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def one(home: Path, preset: str) -> Path:
    """The first run of a preset."""
    return sorted((home / "runs").glob(f"{preset}__*"))[0]


def test_scores_are_exact_and_exported(said: dict[str, str], home: Path, shell: Shell) -> None:
    run = one(home, "qmix")
    scores = json.loads(shell("eval", run.name, "--episodes", "6", "--json"))
    assert len(scores["members"]) == 4
    shell("export", run.name, "--to", "csv", "--to-path", "out.csv")
    assert list(home.glob("out.csv*"))


def test_a_study_is_reported_again(said: dict[str, str], home: Path, shell: Shell) -> None:
    before = set(home.rglob("index.html"))
    shell("study", "report", "studies/quickstart.toml")
    assert set(home.rglob("index.html")) > before


def test_a_mistake_exits_with_2(shell: Shell) -> None:
    assert "mappo" in shell("train", "mapo", "--task", "matrix/climbing", code=2)
