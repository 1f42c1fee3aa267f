"""Training on real environments that is killed at random moments goes on bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from envs import CartPole

import rookery.algorithms  # noqa: F401  (fills the registry)
from rookery.core.config import to_json
from rookery.core.registry import PRESETS
from rookery.core.types import Collect
from rookery.nets.encoder import Encoder
from rookery.tasks.host.atari_task import Atari
from rookery.tasks.host.pettingzoo_task import PettingZoo
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Workers
from rookery.training.folder import RunFolder, read_json

# Imports once, then forks a process for each job, so that a kill costs no import.
NURSERY = """
import json, os, sys
sys.path.insert(0, sys.argv[3])
import envs, rookery, rookery.algorithms, rookery.tasks, rookery.training.train
import rookery.training.host.engine, gymnasium.envs.classic_control.cartpole, mpe2.simple_spread_v3
from rookery.core.config import from_json
from rookery.core.errors import RookeryError
from rookery.training.progress import Silent

class Log(Silent):
    def message(self, text):
        with open(sys.argv[2], "a") as file:
            file.write(text + "\\n")

for line in sys.stdin:
    out, file = line.split()
    config = from_json(rookery.RunConfig, json.load(open(file)))
    pid = os.fork()
    if pid == 0:
        try:
            rookery.train(config, out, Log())
        except RookeryError as error:
            Log().message(str(error))
            os._exit(error.code)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """Starts processes that train."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        command = [sys.executable, "-c", NURSERY, "-", str(self.log), str(Path(__file__).parent)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def start(self, config: RunConfig, out: Path) -> int:
        assert self.process.stdin and self.process.stdout
        file = self.folder / "config.json"
        file.write_text(json.dumps(to_json(config)))
        self.process.stdin.write(f"{out} {file}\n")
        return int(self.process.stdout.readline())

    def wait(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def messages(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


def config_of(preset: str, **changes: Any) -> RunConfig:
    algo = PRESETS[preset].small()
    algo = replace(algo, collect=replace(algo.collect, envs=4, length=16))
    evaluation, checkpoints = Evaluation(points=4, rows=5, episodes=2, final=2), Checkpoints(keep=2, seconds=0.0)
    config = RunConfig(preset, "test", algo, CartPole(), 2500, (0, 1), (), evaluation, checkpoints, Workers(count=0))
    return replace(config, **changes)


def run_of(config: RunConfig, out: Path) -> RunFolder:
    return RunFolder.locate(out, to_json(config), config.preset, config.task_name)


def assert_same_run(run: RunFolder, whole: RunFolder) -> None:
    assert run.status().state == whole.status().state == "complete"
    for kind in ("metrics", "evaluations", "final"):
        assert run.parts(kind) and [p.name for p in run.parts(kind)] == [p.name for p in whole.parts(kind)]
        for a, b in zip(run.parts(kind), whole.parts(kind), strict=True):
            assert a.read_bytes() == b.read_bytes(), a.name


# What learns at once, and what learns from a replay store.
KILLED = {"ippo": CartPole(), "vdn": PettingZoo(kwargs='{"N": 2}')}


@pytest.mark.parametrize("preset", KILLED)
def test_training_that_is_killed_ends_bit_for_bit_the_same(preset: str, nursery: Nursery, tmp_path: Path) -> None:
    """On CartPole, and on mpe2's simple_spread with several agents."""
    config, rng = config_of(preset, task=KILLED[preset]), random.Random(0)
    nursery.start(config, tmp_path / "whole")
    assert nursery.wait() == 0, nursery.messages()
    whole, run = run_of(config, tmp_path / "whole"), run_of(config, tmp_path / "killed")
    for _ in range(3):
        pid, before = nursery.start(config, tmp_path / "killed"), len(run.parts("metrics"))
        deadline = time.monotonic() + 120
        while len(run.parts("metrics")) <= before and time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        assert nursery.wait() == -signal.SIGKILL, nursery.messages()
    assert 0 < len(run.parts("metrics")) < len(whole.parts("metrics")), "the kills should fall into training"
    nursery.start(config, tmp_path / "killed")
    assert nursery.wait() == 0, nursery.messages()
    assert nursery.messages().count("resumed after") >= 2 and "Not resumed" not in nursery.messages()
    assert_same_run(run, whole)
    entries = read_json(run.path / "provenance.json")
    assert any(entry.get("environments_resumed", "").startswith("bit for bit: 8 environments") for entry in entries)


def test_pong_that_is_killed_ends_bit_for_bit_the_same(nursery: Nursery, tmp_path: Path) -> None:
    """With frames that are stored once, in a ring that wraps, and checkpoints that share what did not change."""
    pytest.importorskip("ale_py")
    algo = PRESETS["der"].small()
    algo = replace(algo, net=replace(algo.net, encoder=Encoder("data_efficient", width=0)), collect=Collect(2, 4))
    # As many frames as a block of a checkpoint has room for; 400 rows of each game go through a ring of 320.
    algo = replace(algo, replay=replace(algo.replay, capacity=160, start=8, steps_per_sequence=0.5))
    config = config_of("der", algo=algo, task=Atari(frames=120, life_loss=True), steps=800, seeds=(0,))
    nursery.start(config, tmp_path / "whole")
    assert nursery.wait() == 0, nursery.messages()
    whole, run = run_of(config, tmp_path / "whole"), run_of(config, tmp_path / "killed")
    pid, deadline = nursery.start(config, tmp_path / "killed"), time.monotonic() + 120
    while len(run.parts("metrics")) < 3 and time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    assert nursery.wait() == -signal.SIGKILL, nursery.messages()
    assert 0 < len(run.parts("metrics")) < len(whole.parts("metrics")), "the kill should fall into training"
    assert list((run.path / "checkpoints" / "blocks").iterdir()), "the store is checkpointed by what changed"
    nursery.start(config, tmp_path / "killed")
    assert nursery.wait() == 0, nursery.messages()
    assert_same_run(run, whole)
    entries = read_json(run.path / "provenance.json")
    assert any(entry.get("environments_resumed", "").startswith("bit for bit: 2 environments") for entry in entries)


def test_the_number_of_workers_is_not_part_of_what_a_run_is(nursery: Nursery, tmp_path: Path) -> None:
    """A run that is begun in one process goes on in workers, and ends as if nothing had happened."""
    config = config_of("ippo", steps=1200)
    nursery.start(config, tmp_path / "whole")
    assert nursery.wait() == 0, nursery.messages()
    run, pid = run_of(config, tmp_path / "moved"), nursery.start(config, tmp_path / "moved")
    while len(run.parts("metrics")) < 3 and Path(f"/proc/{pid}").exists():
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    assert nursery.wait() == -signal.SIGKILL
    moved = replace(config, workers=Workers(count=2, timeout=30.0))
    assert run_of(moved, tmp_path / "moved") == run
    nursery.start(moved, tmp_path / "moved")
    assert nursery.wait() == 0, nursery.messages()
    assert_same_run(run, run_of(config, tmp_path / "whole"))
    assert read_json(run.path / "provenance.json")[-1]["workers"]["count"] == 2


def test_what_changes_numbers_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    config = config_of("ippo")
    for workers in (Workers(overlap=True), Workers(on_failure="restart")):
        assert run_of(replace(config, workers=workers), tmp_path) != run_of(config, tmp_path)
    algo = replace(config.algo, collect=Collect(envs=8, length=16))
    assert run_of(replace(config, algo=algo), tmp_path) != run_of(config, tmp_path)
