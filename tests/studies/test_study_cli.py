"""The commands, with real training of tiny runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rookery.app import cli
from rookery.core.errors import ConfigError
from rookery.studies import plan
from rookery.training.folder import RunFolder, find_runs

Write = Callable[[str], Path]
Make = Callable[..., RunFolder]
TINY = """
tasks = ["matrix/climbing"]
seeds = [[0], [1]]
steps = 100_000
algorithms = [{ preset = "vdn", net.kind = "mlp", net.width = 8, replay.capacity = 64 }]
[evaluation]
points = 10
rows = 5
episodes = 4
final = 8
[checkpoints]
seconds = 0
"""


def begin(file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rookery.app.cli", "study", "run", str(file), "--out", str(out), "--jobs", "1"]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def await_parts(process: subprocess.Popen[str], folder: RunFolder, count: int) -> None:
    """Wait until a run has so many chunks."""
    deadline = time.monotonic() + 300
    while len(folder.parts("metrics")) < count:
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_study_survives_ctrl_c_and_kill(study_file: Write, tmp_path: Path) -> None:
    file, out = study_file(TINY), tmp_path / "runs"
    first, second = (run.folder(out) for run in plan.load(file).runs)

    stopped = begin(file, out)
    await_parts(stopped, first, 3)
    stopped.send_signal(signal.SIGINT)
    text, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, text
    assert "Continue with: rookery study run" in text
    assert first.status().state == "interrupted"
    assert second.status().state == "new"

    killed = begin(file, out)
    await_parts(killed, second, 3)
    assert first.status().state == "complete"
    killed.kill()
    killed.wait()
    deadline = time.monotonic() + 30
    while second.holder():  # the run's own process notices that it was orphaned
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert second.status().state == "interrupted"

    last = begin(file, out, "--report", "--to", str(tmp_path / "reports"), "--log", "tensorboard")
    text, _ = last.communicate(timeout=200)
    assert last.returncode == 0, text
    assert "1 complete, 1 interrupted" in text
    assert "Only 2 seeds" in text
    assert (tmp_path / "reports" / "study" / "report-1" / "index.html").exists()
    assert list((second.path / "tensorboard" / "seed_1").glob("events.out.tfevents.*"))
    for folder in (first, second):
        assert folder.metrics()["chunk"].is_sorted()
        assert folder.status().state == "complete"

    again = begin(file, out)
    text, _ = again.communicate(timeout=60)
    assert again.returncode == 0
    assert "2 complete; nothing to do." in text


def test_status_says_where_runs_stand(
    study_file: Write, make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = study_file('tasks = ["matrix/climbing"]\nalgorithms = ["vdn", "qmix"]\nseeds = 2')
    assert cli.main(["study", "status", str(file), "--out", str(tmp_path / "runs"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["algorithm"], row["state"]) for row in rows] == [("vdn", "new"), ("qmix", "new")]


def test_dry_run_trains_nothing(study_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = study_file('tasks = ["matrix/climbing"]\nalgorithms = ["vdn", "qmix"]\nseeds = 2')
    assert cli.main(["study", "run", str(file), "--out", str(tmp_path / "runs"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "2 algorithms x 1 tasks x 2 seeds" in text
    assert "2 new" in text
    assert not (tmp_path / "runs").exists()


def test_add_seeds(study_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = study_file('tasks = ["matrix/climbing"]\nalgorithms = ["vdn", "qmix"]\nseeds = 2')
    assert cli.main(["study", "add-seeds", str(file), "5"]) == 0
    assert "seeds 2,3,4,5,6 added, as 2 more runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["study", "run", "none.toml"],
        ["study", "status", "none.toml"],
        ["study", "run", "FILE", "--jobs", "-1"],
        ["study", "add-seeds", "FILE", "0"],
        ["compare"],
        ["export"],
    ],
)
def test_mistakes_exit_with_2(argv: list[str], study_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = study_file('tasks = ["matrix/climbing"]\nalgorithms = ["vdn"]')
    try:
        code = cli.main([str(file) if word == "FILE" else word for word in argv])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert capsys.readouterr().err


def test_a_report_of_nothing_is_refused(study_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = study_file('tasks = ["matrix/climbing"]\nalgorithms = ["vdn"]')
    assert cli.main(["study", "report", str(file), "--out", str(tmp_path)]) == 1
    assert "no run of study study has an evaluation" in capsys.readouterr().err


@pytest.fixture
def pair(make_run: Make) -> list[str]:
    curves = np.cumsum(np.random.default_rng(0).normal(size=(4, 6)), axis=1)
    folders = [make_run(curves[:2], "vdn"), make_run(curves[2:], "qmix")]
    return [str(folder.path) for folder in folders]


def test_compare_shows_differences_scores_and_curves(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *pair]) == 0
    text = capsys.readouterr().out
    assert "algo.mixer.kind" in text
    assert "Absolute metric" in text
    assert "P(X > Y)" in text
    assert "1,000 steps" in text
    assert any(line.count("o") > 3 and "|" in line for line in text.splitlines())
    assert "fewer than 10" in text


def test_compare_refuses_the_same_run_twice(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", pair[0], pair[0]]) == 2


def test_export_csv(pair: list[str], tmp_path: Path) -> None:
    to = tmp_path / "made" / "csv"
    assert cli.main(["export", *pair, "--to", "csv", "--to-path", str(to)]) == 0
    frame = pl.read_csv(to / "evaluations.csv")
    assert frame.height == 2 * 2 * 6 * 2
    assert set(frame["label"]) == {"vdn", "qmix"}
    assert {path.stem for path in to.iterdir()} == {"evaluations", "final", "metrics", "timing"}
    assert cli.main(["export", *pair, "--to", "csv", "--to-path", str(to)]) == 2, "nothing is overwritten"


def test_export_xlsx(pair: list[str], tmp_path: Path) -> None:
    assert cli.main(["export", *pair, "--to", "xlsx", "--to-path", str(tmp_path / "e.xlsx")]) == 0
    assert (tmp_path / "e.xlsx").read_bytes()[:2] == b"PK"


def test_export_marl_eval(pair: list[str], tmp_path: Path) -> None:
    assert cli.main(["export", *pair, "--to", "marl-eval", "--to-path", str(tmp_path / "e.json")]) == 0
    data = json.loads((tmp_path / "e.json").read_text())
    run = data["matrix"]["climbing"]["vdn"]["seed_1"]
    assert run["step_2"]["step_count"] == 400
    assert run["step_2"]["elapsed_time"] == 2.0
    assert len(run["step_2"]["score"]) == 2
    assert len(run["absolute_metrics"]["score"]) == 2


def test_export_tensorboard(pair: list[str], tmp_path: Path) -> None:
    assert cli.main(["export", pair[0], "--to", "tensorboard", "--to-path", str(tmp_path / "tb")]) == 0
    logs = list((tmp_path / "tb").rglob("events.out.tfevents.*"))
    assert sorted(log.parent.name for log in logs) == ["seed_0", "seed_1"]
    assert b"evaluation/score" in logs[0].read_bytes()


def test_export_names_the_extra_it_needs(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert cli.main(["export", pair[0], "--to", "tensorboard", "--to-path", str(tmp_path / "tb")]) == 2
    assert "rookery[tensorboard]" in capsys.readouterr().err


def test_the_ready_studies_are_sound(tmp_path: Path) -> None:
    files = {file.stem: file for file in (Path(__file__).resolve().parents[2] / "studies").glob("*.toml")}
    # Its prey must be trained first, and it says so.
    with pytest.raises(ConfigError, match=r"team good=.* is neither a preset nor a run"):
        plan.load(files.pop("gumbel_tag"), tmp_path)
    for file in files.values():
        assert plan.load(file).runs


def test_reports_and_digests_are_not_taken_for_runs(pair: list[str]) -> None:
    out = Path(pair[0]).parent
    assert cli.main(["compare", *pair]) == 0
    assert (out / ".digest").exists()
    assert [run.path for run in find_runs(out)] == sorted(map(Path, pair))


def test_a_value_that_nothing_reads_is_refused_before_anything_starts(
    study_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = study_file('tasks = ["matrix/climbing"]\nalgorithms = ["qmix", { preset = "vdn", mixer.embed = 64 }]')
    assert cli.main(["study", "run", str(file), "--out", str(tmp_path / "runs")]) == 2
    assert "vdn mixer.embed=64 on matrix/climbing: algo.mixer.embed=64 has no effect" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
