"""`rookery train ... --profile`: every piece of an iteration is measured, and no run is written."""

from __future__ import annotations

import pytest
from small import small_config

from rookery.app.profile import lines
from rookery.training.compiled import profile
from rookery.training.config import Evaluation
from rookery.training.engine import Timing, open_engine


def test_every_piece_of_an_iteration_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SECONDS", 0.0)
    config = small_config("vdn", seeds=(0, 1))
    timings = open_engine(config).profile()
    assert [timing.name for timing in timings] == ["whole", "environment", "policy", "update", "evaluation"]
    assert all(timing.wall > 0 for timing in timings)
    assert lines(config, timings)[0].startswith("one iteration of 2 member(s)")


def test_the_table_has_shares_of_the_whole() -> None:
    seconds = {"whole": 1.0, "environment": 0.25, "policy": 0.125, "update": 0.5, "evaluation": 2.0}
    config = small_config("mappo", steps=32_000, evaluation=Evaluation(points=2, rows=5))
    shown = lines(config, [Timing(name, wall, wall) for name, wall in seconds.items()])
    table = {line.split()[0]: line.split()[1:] for line in shown if line[:2] == "  "}
    assert table["update"] == ["500.00", "ms", "50.0%"] and table["rest"] == ["125.00", "ms", "12.5%"]
    # One evaluation is shared by all iterations since the last one.
    assert float(table["evaluation"][0]) < 100
