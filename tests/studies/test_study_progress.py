"""How a study looks while it is trained."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rookery.app.study_progress import StudyLines, StudyLive, summary, watcher_for
from rookery.studies import plan, schedule

Write = Callable[[str], Path]


def entries(study_file: Write, tmp_path: Path) -> list[schedule.Entry]:
    file = study_file('tasks = ["matrix/climbing"]\nalgorithms = ["vdn", "qmix", "iql", "mappo"]\nsteps = 1000')
    done, half, bad, new = schedule.survey(plan.load(file), tmp_path / "runs")
    return [
        replace(done, state="complete"),
        replace(half, state="running", progress=0.5, rate=2500.0),
        replace(bad, state="failed"),
        new,
    ]


def test_summary_counts_runs_and_steps(study_file: Write, tmp_path: Path) -> None:
    several = entries(study_file, tmp_path)
    assert summary(several, 2) == "1 of 4 complete, 1 running, 1 failed, 38% of all steps"
    # 5 seeds of 1000 steps, one half done at 2500 steps a second, one to come at 50.
    several[3] = replace(several[3], rate=50.0)
    assert summary(several, 2).endswith("38% of all steps, about 0:50 left")


def test_lines_come_now_and_then(study_file: Write, tmp_path: Path) -> None:
    stream, now = io.StringIO(), [0.0]
    lines = StudyLines(stream, every=10, clock=lambda: now[0])
    for now[0] in (1.0, 9.0, 11.0, 12.0):
        lines.show(entries(study_file, tmp_path), 2)
    lines.message("failed: vdn")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("| qmix on matrix/climbing 50%")
    assert second == "failed: vdn"


def test_a_run_that_has_no_speed_yet_is_compiling(study_file: Write, tmp_path: Path) -> None:
    stream = io.StringIO()
    several = entries(study_file, tmp_path)
    StudyLines(stream, every=0).show([replace(several[1], rate=0.0)], 1)
    assert stream.getvalue().endswith("qmix on matrix/climbing compiling\n")


def test_a_terminal_gets_a_table(study_file: Write, tmp_path: Path) -> None:
    stream = io.StringIO()
    live = StudyLive(stream)
    live.show(entries(study_file, tmp_path), 2)
    live.message("complete: [vdn]")
    live.close()
    text = stream.getvalue()
    assert "1 of 4 complete" in text
    assert "2.5k" in text
    assert "complete: [vdn]" in text


def test_quiet_shows_messages_only(study_file: Write, tmp_path: Path) -> None:
    stream = io.StringIO()
    quiet = watcher_for(stream, quiet=True)
    quiet.show(entries(study_file, tmp_path), 2)
    quiet.message("failed: vdn")
    assert stream.getvalue() == "failed: vdn\n"
