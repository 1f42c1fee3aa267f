"""`rookery train ... --profile`: every part is measured, and no run is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import small_config

from rookery.app import cli, profile

PARTS = ["environment", "policy", "update", "buffer", "evaluation"]


def test_every_part_of_an_iteration_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SECONDS", 0.0)
    config = small_config("vdn", seeds=(0, 1))
    parts = profile.profile(config)
    assert [part.name for part in parts] == ["whole", *PARTS]
    assert all(part.wall > 0 for part in parts)
    assert profile.lines(config, parts)[0].startswith("one iteration of 2 member(s)")


def test_the_command_prints_a_table_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {"whole": 1.0, "environment": 0.25, "policy": 0.125, "update": 0.5, "evaluation": 2.0}
    monkeypatch.setattr(profile, "profile", lambda _: [profile.Part(n, wall, wall) for n, wall in seconds.items()])
    steps = ["--steps", "1e6", "--evaluation.points", "20"]
    assert cli.main(["train", "mappo", "--task", "matrix/climbing", *steps, "--out", str(tmp_path), "--profile"]) == 0
    table = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "}
    assert table["update"] == ["500.00", "ms", "50.0%"] and table["rest"] == ["125.00", "ms", "12.5%"]
    # One evaluation is shared by all iterations since the last one.
    assert float(table["evaluation"][0]) < 100
    assert not list(tmp_path.iterdir())
