"""Logs for other programs: what is in them is what the run's folder holds, once, also after a kill."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small import small_config

import rookery
from rookery.core.errors import ConfigError
from rookery.training import logs
from rookery.training import train as trainer
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Sweep
from rookery.training.folder import RunFolder
from rookery.training.train import Run


def config_of(**values: Any) -> RunConfig:
    evaluation = Evaluation(points=4, rows=2, episodes=4, final=4)
    return replace(small_config("vdn", steps=400, seeds=(3, 5), evaluation=evaluation), **values)


def events(file: Path) -> Iterator[tuple[str, int, float]]:
    """The scalars in an event file: records of (length, checksum, event, checksum)."""
    from tensorboardX.proto.event_pb2 import Event

    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            if value.HasField("simple_value"):
                yield value.tag, event.step, value.simple_value


def logged(run: Run, seed: int, tag: str) -> list[tuple[int, float]]:
    (file,) = (run.folder.path / "tensorboard" / f"seed_{seed}").glob("events.out.tfevents.*")
    return [(step, value) for name, step, value in events(file) if name == tag]


def assert_log_is_whole(run: Run) -> None:
    for member, seed in enumerate((3, 5)):
        own = run.metrics().filter(pl.col("member") == member).drop_nans("loss")
        points = logged(run, seed, "loss")
        assert [steps for steps, _ in points] == own["steps"].to_list()
        np.testing.assert_allclose([value for _, value in points], own["loss"], rtol=1e-6)
        scores = run.evaluations().filter(pl.col("member") == member).group_by("steps", maintain_order=True)
        means = scores.agg(pl.col("score").mean())
        points = logged(run, seed, "evaluation/score")
        assert [steps for steps, _ in points] == means["steps"].to_list()
        np.testing.assert_allclose([value for _, value in points], means["score"], rtol=1e-6)


def test_tensorboard_has_every_point_once(tmp_path: Path) -> None:
    run = rookery.train(config_of(), tmp_path, log=["tensorboard"])
    assert_log_is_whole(run)
    assert len(logged(run, 3, "evaluation/score")) == 5


def test_a_resumed_run_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted two chunks after its last checkpoint: these chunks were logged, and come again."""
    config = config_of(checkpoints=Checkpoints(seconds=0.0))
    save = trainer.checkpoint.save

    def until_third(folder: Path, state: Any, *, chunk: int, **facts: Any) -> Any:
        return save(folder, state, chunk=chunk, **facts) if chunk <= 3 else None

    means, calls = trainer._means, []

    def sixth_fails(report: Any) -> Any:
        calls.append(report)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return means(report)

    monkeypatch.setattr(trainer.checkpoint, "save", until_third)
    monkeypatch.setattr(trainer, "_means", sixth_fails)
    with pytest.raises(KeyboardInterrupt):
        rookery.train(config, tmp_path, log=["tensorboard"])
    monkeypatch.undo()
    (path,) = tmp_path.iterdir()
    folder = RunFolder(path)
    assert folder.metrics()["chunk"].max() == 5
    assert len(logged(Run(folder), 3, "train/return_mean")) == 5
    run = rookery.resume(path, log=["tensorboard"])
    assert_log_is_whole(run)


def test_swept_members_have_logs_of_their_own(tmp_path: Path) -> None:
    config = config_of(seeds=(3,), sweep=(Sweep("algo.optimiser.lr", (1e-3, 1e-2)),))
    run = rookery.train(config, tmp_path, log=["tensorboard"])
    assert {path.name for path in (run.folder.path / "tensorboard").iterdir()} == {"seed_3_member_0", "seed_3_member_1"}


def wandb_losses(file: Path) -> list[tuple[int, str]]:
    """Step and loss of every row of history in a transaction log: after a heading, (checksum, length, kind, record)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, found = file.read_bytes()[7:], []
    while data:
        _, length, kind = struct.unpack("<IHB", data[:7])
        assert kind == 1, "a record in one piece"
        history = Record.FromString(data[7 : 7 + length]).history
        found += [
            (history.step.num, item.value_json) for item in history.item if "loss" in (item.key, *item.nested_key)
        ]
        data = data[7 + length :]
    return found


def test_wandb_is_offline_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = config_of(seeds=(3,))
    folder = RunFolder.open_or_create(tmp_path, rookery.core.config.to_json(config), "vdn", "matrix/climbing")
    frame = pl.DataFrame({"member": [0], "seed": [3], "chunk": [1], "steps": [64], "loss": [0.125]})
    folder.write_part("metrics", 1, frame)
    for _ in range(2):  # the second time it is made anew
        with logs.logging(["wandb"], config, folder) as write:
            write("metrics", frame.with_columns(chunk=pl.lit(2), steps=pl.lit(128), loss=pl.lit(0.25)))
        (kept,) = (folder.path / "wandb").glob("offline-run-*/*.wandb")
        assert folder.id in kept.name
        expected = [(64, "0.125"), (128, "0.25")]
        deadline = time.monotonic() + 60
        while wandb_losses(kept) != expected and time.monotonic() < deadline:
            time.sleep(0.1)  # another process writes it
        assert wandb_losses(kept) == expected


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_extra_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"rookery\[{name}\]"):
        rookery.train(config_of(), tmp_path / "runs", log=[name])
    assert not (tmp_path / "runs").exists()


def test_an_unknown_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected tensorboard or wandb, got 'tensorbord'"):
        rookery.train(config_of(), tmp_path, log=["tensorbord"])
