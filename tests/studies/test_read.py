"""Run folders as tables, and the digest that makes them quick."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small import small_config

import rookery
from rookery.core.errors import RunError
from rookery.core.registry import PRESETS
from rookery.studies import read
from rookery.training import digest
from rookery.training.config import Sweep
from rookery.training.folder import RunFolder

Make = Callable[..., RunFolder]

SCORES = np.array([[0.0, 1.0, 2.0], [1.0, 3.0, 5.0]])


def test_digest_says_what_the_folder_says(make_run: Make) -> None:
    runs = read.open_runs([make_run(SCORES, metrics={"shared": 0.25})])
    curves = {member["seed"]: curve for member, curve in runs.curves()}
    assert curves[1]["score"].to_list() == [1.0, 3.0, 5.0]
    assert curves[1]["steps"].to_list() == [0, 500, 1000]
    assert curves[1]["seconds"].to_list() == [0.0, 1.0, 2.0]
    assert curves[1]["episodes"].to_list() == [2, 2, 2]
    assert runs.finals.filter(pl.col("which") == "best")["score"].to_list() == [2.0, 5.0]
    assert runs.spent.select("seconds", "steps").row(0) == (2.0, 200)
    loss = runs.metrics.filter((pl.col("metric") == "loss") & (pl.col("seed") == 1))
    assert loss.select("mean", "low", "high", "last").row(0) == (17.0, 9.0, 25.0, 25.0)
    assert runs.members["label"].to_list() == ["vdn", "vdn"]


def test_complete_runs_are_digested_once(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(SCORES)
    first = read.open_runs([folder]).finals
    shutil.rmtree(folder.path / "evaluations")
    assert read.open_runs([folder]).finals.equals(first)
    shutil.rmtree(tmp_path / "runs" / ".digest")
    assert not list(read.open_runs([folder]).curves())


def test_a_run_that_goes_on_is_read_anew(make_run: Make) -> None:
    folder = make_run(SCORES, state="running")
    assert len(read.open_runs([folder]).finals) == 0
    folder.write_part("final", 0, folder.evaluations().drop("chunk").with_columns(which=pl.lit("best")))
    folder.set_status("complete", progress=1.0)
    assert len(read.open_runs([folder]).finals) == 2


def test_runs_of_several_shards_come_once_each(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_SHARD", 2)
    folders = [make_run(SCORES, seeds=(2 * i, 2 * i + 1)) for i in range(5)]
    read.open_runs(folders[:3])
    runs = read.open_runs(folders)
    assert sorted(member["seed"] for member, _ in runs.curves()) == list(range(10))
    assert runs.scan("curves").collect().height == 30
    assert [member["run"] for member, _ in read.open_runs(folders[:1]).curves()] == [folders[0].name] * 2


def test_a_broken_shard_is_made_again(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(SCORES)
    read.open_runs([folder])
    (shard,) = (tmp_path / "runs" / ".digest").iterdir()
    (shard / "runs.parquet").write_bytes(b"no parquet")
    assert len(list(read.open_runs([folder]).curves())) == 2


def test_labels_are_made_of_preset_and_overrides(make_run: Make) -> None:
    algo = replace(PRESETS["vdn"], gamma=0.5)
    sweep = (Sweep("algo.optimiser.lr", (0.01, 0.02)),)
    folder = make_run(np.repeat(SCORES, 2, axis=0), algo=algo, sweep=sweep)
    labels = read.open_runs([folder]).members["label"].to_list()
    assert sorted(labels) == labels
    assert {frozenset(label.split()) for label in labels} == {
        frozenset(("vdn", "gamma=0.5", "optimiser.lr=0.01")),
        frozenset(("vdn", "gamma=0.5", "optimiser.lr=0.02")),
    }


def test_a_run_of_unknown_code_keeps_a_label_of_its_own(make_run: Make) -> None:
    folder = make_run(SCORES)
    config = folder.path / "config.json"
    config.write_text(config.read_text().replace('"gamma"', '"gamma_of_old"'))
    assert read.open_runs([folder]).members["label"].to_list() == [f"vdn [{folder.id}]"] * 2


def test_what_is_no_run_is_refused(tmp_path: Path, make_run: Make) -> None:
    folder = make_run(SCORES)
    (folder.path / "config.json").write_text("{}")
    with pytest.raises(RunError, match="is not the config of a run"):
        read.open_runs([folder])


def test_the_digest_in_a_folder_stands_for_its_parts(make_run: Make) -> None:
    """Also when the folder was renamed; without it, or if it is broken, the parts are read."""
    folders = [make_run(SCORES), make_run(SCORES, preset="qmix"), make_run(SCORES, preset="iql")]
    from_parts = read.open_runs(folders)
    tables = {name: from_parts.scan(name).drop("fingerprint", strict=False).collect() for name in read.TABLES}
    for folder in folders[:2]:
        digest.write(folder)
        shutil.rmtree(folder.path / "metrics")  # the digest is what is read
    for broken in (False, True):
        shutil.rmtree(folders[0].path.parent / ".digest")
        if broken:
            digest.file_of(folders[1], "curves").write_bytes(b"")
            digest.write(folders[0])
            tables.pop("metrics")  # are gone
        runs = read.open_runs(folders)
        for name, expected in tables.items():
            found = runs.scan(name).drop("fingerprint", strict=False).collect()
            assert found.sort(found.columns).equals(expected.sort(expected.columns)), name


def test_training_leaves_a_digest(tmp_path: Path) -> None:
    run = rookery.train(small_config("vdn", seeds=(0, 1)), tmp_path)
    for table, expected in digest.make(run.folder).items():
        assert pl.read_parquet(digest.file_of(run.folder, table)).equals(expected)
    assert digest.make(run.folder)["finals"].height == 4
