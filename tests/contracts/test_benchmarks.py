"""The benchmarks run: each says what it needs, and one measurement is taken (what it comes to is not tested)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = ["host", "hyper", "maddpg", "maze", "mechanisms", "memory", "peers", "scaling", "scripted", "studies_scale"]
SCRIPTS += ["time_to_score", "torch_peers"]


def said(script: str, *arguments: str) -> str:
    command = [sys.executable, str(FOLDER / f"{script}.py"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_says_how_it_is_used(script: str) -> None:
    assert f"benchmarks/{script}.py" in said(script, "--help")


def test_all_benchmarks_are_known_here() -> None:
    sides = {"jaxmarl_side", "torch_side"}  # started by the others, in interpreters that are not ours
    assert {file.stem for file in FOLDER.glob("*.py")} == {*SCRIPTS, *sides}


def test_a_rate_is_measured_after_learning_has_begun() -> None:
    request = {"preset": "vdn", "task": "matrix/climbing", "seconds": 0.1, "iterations": 2, "algo.collect.envs": 32}
    found = json.loads(said("scaling", "--work", json.dumps(["rate", request])))
    assert found["steps_per_second"] > 0 and found["peak_mib"] > 0


def test_scripted_players_do_better_with_what_they_are_told() -> None:
    tasks = ("mpe/simple_spread", "mpe/simple_speaker_listener")
    lines = said("scripted", *tasks, "--episodes", "200").splitlines()
    score = {line.split(": ")[0].split(", ")[1]: float(line.split(": ")[1].split()[0]) for line in lines}
    assert score["each to a landmark"] > -10 and score["to the right landmark"] > -10 > score["to the middle"]
