"""`rookery compare`: what is pooled, what is held against what, what is warned of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rookery.app import cli
from rookery.app.study_cli import catalog_scales
from rookery.core.registry import PRESETS
from rookery.studies.compare import _middle, compare
from rookery.studies.tables import Table
from rookery.training.config import Evaluation, Sweep
from rookery.training.folder import RunFolder

RNG = np.random.default_rng(0)
Run = Callable[..., RunFolder]


@pytest.fixture
def run(make_run: Callable[..., RunFolder]) -> Run:
    """Writes the folder of a run with random scores around a level."""

    def make(preset: str = "vdn", seeds: Sequence[int] = (0, 1, 2), level: float = 0.0, **changes: Any) -> RunFolder:
        values = [len(sweep.values) for sweep in changes.get("sweep", ())]
        scores = level + RNG.normal(size=(len(seeds) * int(np.prod(values)), 4))
        return make_run(scores, preset, seeds=seeds, **changes)

    return make


def rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_seeds_of_equal_configs_are_pooled(run: Run) -> None:
    found = compare([run(seeds=(0, 1, 2)), run(seeds=(3, 4)), run("qmix", seeds=range(5))], catalog_scales())
    scores = rows(found.scores)
    assert [(row["algorithm"], row["seeds"]) for row in scores] == [("vdn", 5), ("qmix", 5)]
    assert rows(found.legend)[0]["seeds"] == "0 to 4" and rows(found.legend)[0]["runs"] == 2
    assert not [text for text in found.warnings if "Different" in text]


def test_a_seed_that_was_trained_twice_counts_once(run: Run) -> None:
    first, again = run(seeds=(0, 1, 2)), run(seeds=(2, 3))
    found = compare([first, again], catalog_scales())
    (row,) = rows(found.scores)
    assert row["seeds"] == 4
    scores = [folder.final().filter(which="best") for folder in (first, again)]
    kept = [*scores[0]["score"], *scores[1].filter(seed=3)["score"]]  # two episodes of each seed
    assert row["mean"] == pytest.approx(np.mean(kept))
    assert any(text.startswith("Trained twice: seed 2 of vdn") for text in found.warnings)


def test_different_budgets_and_seeds_are_warned_of_and_named(run: Run) -> None:
    found = compare([run(steps=1000), run("qmix", steps=2000, seeds=(0, 1))], catalog_scales())
    text = "\n".join(found.warnings)
    assert "Different budgets on matrix/climbing (steps of each seed): vdn 1,000, qmix 2,000" in text
    assert "Different seeds on matrix/climbing: vdn 0,1,2, qmix 0,1" in text
    same = compare([run(steps=3000), run(steps=4000)], catalog_scales())
    assert [row["algorithm"] for row in rows(same.scores)] == ["vdn steps=3000", "vdn steps=4000"]
    fair = compare([run(seeds=(5, 6)), run("qmix", seeds=(5, 6))], catalog_scales())
    assert not [text for text in fair.warnings if "Different" in text]


def test_each_task_has_a_baseline(run: Run) -> None:
    other = "matrix/penalty_25"
    runs = [run("vdn"), run("qmix", level=50), run("iql", task=other), run("qmix", task=other, level=-50)]
    found = rows(compare(runs, catalog_scales()).improvement)
    assert [(row["task"], row["X"], row["Y"], row["P(X > Y)"]) for row in found] == [
        ("matrix/climbing", "qmix", "vdn", 1.0),
        (other, "qmix", "iql", 0.0),
    ]


def test_a_swept_value_is_pooled_with_a_run_of_that_value(run: Run) -> None:
    sweep = (Sweep("algo.optimiser.lr", (1e-3, 1e-2)),)
    algo = replace(PRESETS["vdn"], optimiser=replace(PRESETS["vdn"].optimiser, lr=1e-2))
    found = compare([run(sweep=sweep, seeds=(0, 1)), run(algo=algo, seeds=(2, 3))], catalog_scales())
    seeds = {row["algorithm"]: row["seeds"] for row in rows(found.scores)}
    assert seeds == {"vdn optimiser.lr=0.001": 2, "vdn optimiser.lr=0.01": 4}


def test_names_stand_where_letters_and_hashes_did(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run("vdn"), run("qmix"), run("vdn", evaluation=Evaluation(final=7))]
    assert cli.main(["compare", *(str(folder.path) for folder in runs)]) == 0
    text = capsys.readouterr().out
    assert not any(folder.id in text for folder in runs)
    assert "o vdn evaluation.final=320" in text and "x qmix" in text
    assert "95% bootstrap interval of the IQM over seeds" in text


def test_a_single_seed_has_no_interval(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(seeds=(3,))
    assert cli.main(["compare", str(folder.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    heading = next(i for i, line in enumerate(lines) if "IQM" in line)
    assert lines[heading].split()[2:5] == ["IQM", "low", "high"] and lines[heading + 1].split()[3:5] == ["-", "-"]


def test_a_drawn_curve_ends_with_its_first_seed() -> None:
    """What is not a number sorts last: it would count as the best seed."""
    curves = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, np.nan]])
    np.testing.assert_array_equal(_middle(curves), [2.0, np.nan])
