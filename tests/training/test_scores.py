"""Scores by swept value, and learning curves, of a real run and by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small import small_config

import rookery
from rookery.app import cli
from rookery.app.progress import Lines
from rookery.core.errors import ConfigError, RunError
from rookery.core.stats import INTERVAL, over_seeds, show
from rookery.training.config import Evaluation, Sweep
from rookery.training.folder import RunFolder, write_json
from rookery.training.run import Run
from rookery.training.scores import best, by_value, lines


def episodes(values: list[float]) -> pl.DataFrame:
    """Two swept values, two seeds each, two episodes each, with these means."""
    rows = [
        {"member": m, "seed": m % 2, "algo.gamma": (0.9, 0.5)[m // 2], "score": mean + wobble}
        for m, mean in enumerate(values)
        for wobble in (-1.0, 1.0)
    ]
    return pl.DataFrame(rows)


def test_values_are_never_pooled() -> None:
    low, high = by_value(episodes([1.0, 3.0, 10.0, 20.0]))
    assert (low.value, low.iqm, low.seeds, low.episodes) == ("gamma=0.9", 2.0, 2, 4)
    assert (high.value, high.iqm) == ("gamma=0.5", 15.0)
    assert best([low, high]) is high
    assert lines([low, high])[-1] == "best: gamma=0.5"


def test_one_definition_of_intervals() -> None:
    scores = [1.0, 2.0, 3.0, 4.0, 100.0]
    value, low, high = over_seeds(scores).floats()
    assert value == 3.0  # the mean of the middle half: 100 does not count
    draws = np.random.default_rng(0).integers(0, 5, size=(2000, 5))
    middle = np.sort(np.asarray(scores)[draws], axis=1)[:, 1:4].mean(axis=1)
    assert (low, high) == pytest.approx(tuple(np.quantile(middle, [0.025, 0.975])))
    assert show(over_seeds([2.5])) == "2.5 [-]"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A sweep of two learning rates, and what was printed while it trained."""
    out = tmp_path_factory.mktemp("sweep")
    config = small_config(
        "vdn",
        seeds=(3, 4),
        steps=200,
        sweep=(Sweep("algo.optimiser.lr", (0.0, 0.5)),),
        evaluation=Evaluation(points=2, rows=1, episodes=4, final=8),
    )
    with (out / "log").open("w") as file:
        run = rookery.train(config, out / "runs", Lines(file, every=0.0))
    return run, (out / "log").read_text()


def test_live_output_has_a_row_for_each_value(swept: tuple[Run, str]) -> None:
    _, text = swept
    assert INTERVAL in text
    evaluations = text.count(": evaluation: ")
    finals = 2  # of the best and of the last policy
    assert evaluations == 3
    for value in ("optimiser.lr=0 ", "optimiser.lr=0.5 "):
        assert text.count(f"\n  {value}") == evaluations + finals
    assert text.count("\n  best: optimiser.lr=") == evaluations + finals
    assert "return_mean" not in text  # a mean over all members


def test_commands_have_a_row_for_each_value(swept: tuple[Run, str], capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = swept
    out = str(run.folder.path.parent)
    assert cli.main(["ls", "--json", "--out", out]) == 0
    rows = json.loads(capsys.readouterr().out)
    final = run.final().filter(pl.col("which") == "best")
    assert [row["label"].split()[-1] for row in rows] == ["optimiser.lr=0", "optimiser.lr=0.5"]
    for row, value in zip(rows, (0.0, 0.5), strict=True):
        seeds = final.filter(pl.col("algo.optimiser.lr") == value).group_by("seed").agg(pl.col("score").mean())
        assert row["score"] == pytest.approx(float(over_seeds(seeds["score"].to_numpy()).value))
    assert {row["best"] for row in rows if row["score"] == max(row["score"] for row in rows)} == {"best"}
    assert cli.main(["eval", str(run.folder.path), "--episodes", "4", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert [(row["sweep"], row["seeds"]) for row in scores if row["score"] == "return_mean"] == [
        ("optimiser.lr=0", 2),
        ("optimiser.lr=0.5", 2),
    ]
    assert cli.main(["show", str(run.folder.path)]) == 0
    shown = capsys.readouterr().out
    assert "algo.optimiser.lr 0.25" not in shown, "the hyperparameter was averaged"
    assert shown.count("optimiser.lr=0.5") >= 8 and INTERVAL in shown


def test_curves_of_each_value(swept: tuple[Run, str]) -> None:
    run, _ = swept
    curve, seeds = run.curve(), run.curve("score", per_seed=True)
    assert curve.columns == ["algo.optimiser.lr", "steps", "iqm", "low", "high", "seeds"]
    assert curve.height == 2 * 3 and seeds.height == 4 * 3
    last = seeds.filter(pl.col("algo.optimiser.lr") == 0.5, pl.col("steps") == pl.col("steps").max())
    assert curve["iqm"][-1] == pytest.approx(last["score"].mean())
    assert run.curve("train/return_mean")["steps"][0] > 0
    with pytest.raises(ConfigError, match=r"no metric 'scor'. Did you mean 'score'"):
        run.curve("scor")


def test_seeds_at_different_steps_meet_on_a_common_grid(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for chunk, steps, scores in ((0, (0, 0), (0.0, 0.0)), (1, (100, 120), (10.0, 12.0)), (2, (200, 240), (20.0, 24.0))):
        rows = {"member": [0, 1], "seed": [0, 1], "chunk": [chunk] * 2, "steps": steps, "score": scores}
        folder.write_part("evaluations", chunk, pl.DataFrame(rows))
    curve = Run(folder).curve("score")
    # Both seeds score a tenth of their steps, so they are one line, up to where the slower one ends.
    assert curve["steps"].to_list() == [0, 100, 200] and curve["iqm"].to_list() == pytest.approx([0, 10, 20])
    assert curve["low"].to_list() == pytest.approx([0, 10, 20]) and set(curve["seeds"]) == {2}


def test_a_failed_seed_does_not_end_the_curve_of_the_others(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for chunk, members in enumerate(([0, 1, 2], [0, 1, 2], [0, 2], [0, 2])):
        same = {"chunk": chunk, "steps": 100 * chunk, "score": float(chunk)}
        folder.write_part("evaluations", chunk, pl.DataFrame([{"member": m, "seed": m, **same} for m in members]))
    write_json(tmp_path / "failures.json", [{"member": 1, "step": 200, "metric": "loss"}])
    curve = Run(folder).curve("score")
    assert curve["steps"].to_list() == [0, 100, 200, 300] and set(curve["seeds"]) == {2}
    assert Run(folder).curve("score", per_seed=True).filter(seed=1)["steps"].to_list() == [0, 100]
    write_json(tmp_path / "failures.json", [{"member": m, "step": 400, "metric": "loss"} for m in range(3)])
    with pytest.raises(RunError, match=r"every seed of .* failed"):
        Run(folder).curve("score")
