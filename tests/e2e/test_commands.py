"""Runs that are killed and interrupted, with real processes and tiny budgets; what runs to its end is in
test_readme_commands.py."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import polars as pl
import pytest
from processes import Shell, await_chunks, begin

from rookery.training.folder import RunFolder

TRAIN = ("train", "mappo", "--task", "matrix/climbing", "--steps", "8e3", "--seeds", "2")
SHORT = (
    "--evaluation.points",
    "4",
    "--evaluation.episodes",
    "4",
    "--evaluation.final",
    "8",
    "--checkpoints.seconds",
    "0",
)


def the_run(out: Path) -> RunFolder:
    (path,) = out.glob("*__*")
    return RunFolder(path)


def assert_equal_runs(a: RunFolder, b: RunFolder) -> None:
    """Bit for bit, but for the time it took."""
    for kind in ("metrics", "evaluations", "final"):
        mine, other = (pl.concat([pl.read_parquet(p) for p in run.parts(kind)]) for run in (a, b))
        assert mine.equals(other), kind
    mine, other = ((run.policies / "chunk-00000000" / "state.safetensors").read_bytes() for run in (a, b))
    assert mine == other


@pytest.mark.parametrize("shards", ["1", "2"])
def test_a_killed_run_resumes_bit_for_bit_on_the_same_devices(home: Path, shell: Shell, shards: str) -> None:
    options = (*TRAIN, *SHORT, "--algo.collect.shards", shards)
    whole, killed = home / f"whole{shards}", home / f"killed{shards}"
    shell(*options, "--out", str(whole))
    process = begin(home, *options, "--out", str(killed))
    run = await_chunks(process, killed, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert run.status().state == "interrupted"
    shell("resume", str(run.path))
    assert_equal_runs(the_run(whole), run)
    starts = json.loads((run.path / "provenance.json").read_text())
    assert [len(start["devices"]) for start in starts] == [int(shards)] * 2


def test_a_killed_run_on_a_host_task_resumes_bit_for_bit(home: Path, shell: Shell) -> None:
    pytest.importorskip("gymnasium")
    task = ("--task", "gymnasium:CartPole-v1", "--task.no-check-bounds", "--task.limit", "60", "--workers.count", "1")
    options = ("train", "a2c", *task, "--steps", "6e3", *SHORT)
    whole, killed = home / "whole-host", home / "killed-host"
    shell(*options, "--out", str(whole))
    process = begin(home, *options, "--out", str(killed))
    run = await_chunks(process, killed, 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert run.status().state == "interrupted"
    shell("resume", str(run.path))
    assert_equal_runs(the_run(whole), run)
    told = shell("show", str(run.path))
    assert "on gymnasium:CartPole-v1" in told and "limit=60 check_bounds=False" in told
    assert "environments resumed: bit for bit" in told


def test_ctrl_c_keeps_what_was_trained(home: Path, shell: Shell) -> None:
    """Checkpoints are an hour apart, so only the interruption itself can have written one."""
    options = (*TRAIN[:-4], "--steps", "3e5", *SHORT[:-2], "--checkpoints.seconds", "3600", "--out", "stopped")
    process = begin(home, *options)
    run = await_chunks(process, home / "stopped", 3)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130 and "is kept" in said, said
    assert list(run.checkpoints.glob("chunk-*")), "a checkpoint"
    before = len(run.parts("metrics"))
    again = begin(home, "resume", str(run.path))
    await_chunks(again, home / "stopped", before + 1)
    again.send_signal(signal.SIGTERM)
    assert again.wait(timeout=120) == 130
    assert len(run.parts("metrics")) > before, "it went on from there"


def test_profile_writes_nothing(home: Path, shell: Shell) -> None:
    said = shell(*TRAIN, "--profile", "--out", "nothing")
    assert all(name in said for name in ("environment", "policy", "update", "evaluation"))
    assert not (home / "nothing").exists()
