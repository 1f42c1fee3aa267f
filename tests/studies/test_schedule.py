"""Runs side by side: with stand-ins for training, which end as they are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rookery.core.config import to_json
from rookery.studies import plan, schedule
from rookery.training.folder import RunFolder

Write = Callable[[str], Path]
Make = Callable[..., RunFolder]
STUDY = """
tasks = ["matrix/climbing"]
algorithms = ["vdn", "qmix", "iql"]
seeds = 2
steps = 1000
"""
# argv: the folder, then what to do.
CHILD = """
import sys, time
from pathlib import Path
from rookery.training.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
with folder.lock():
    folder.set_status("running")
    if sys.argv[2] == "sleep":
        time.sleep(60)
    if sys.argv[2] == "say":
        print("the cause")
        sys.exit(3)
    if sys.argv[2] == "die":
        import os
        os.kill(os.getpid(), 9)
    folder.set_status("complete", "done", 1.0)
"""


@dataclass
class Watched:
    messages: list[str] = field(default_factory=list)
    most: int = 0

    def show(self, entries: Sequence[schedule.Entry], slots: int) -> None:
        self.most = max(self.most, sum(entry.state == "running" for entry in entries))

    def message(self, text: str) -> None:
        self.messages.append(text)


def acting(tmp_path: Path, **actions: str) -> Callable[[Path], list[str]]:
    """A command that does what its preset is told, by default to complete."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)

    def command(folder: Path) -> list[str]:
        return [sys.executable, str(script), str(folder), actions.get(folder.name.split("__")[0], "complete")]

    return command


def states(entries: Sequence[schedule.Entry]) -> dict[str, str]:
    return {entry.planned.label: entry.state for entry in entries}


def test_one_bad_run_does_not_stop_the_rest(study_file: Write, tmp_path: Path) -> None:
    study, out, watched = plan.load(study_file(STUDY)), tmp_path / "runs", Watched()
    limits = schedule.Limits(2, 1)
    ended = schedule.run(study, out, acting(tmp_path, vdn="say", qmix="die"), limits, watched)
    assert states(ended) == {"vdn": "failed", "qmix": "failed", "iql": "complete"}
    assert watched.most <= 2
    assert "the cause (exit code 3" in ended[0].message
    assert "killed by SIGKILL" in ended[1].message
    assert states(schedule.survey(study, out)) == states(ended)
    assert "the cause" in (ended[0].folder.path / schedule.LOG).read_text()
    again = schedule.run(study, out, acting(tmp_path), limits, Watched())
    assert states(again) == states(ended), "failed runs are left alone"
    retried = schedule.run(study, out, acting(tmp_path), limits, Watched(), retry_failed=True)
    assert set(states(retried).values()) == {"complete"}


def test_a_run_that_cannot_begin_is_a_failure_of_its_own(study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    path = study.runs[0].folder(out).path
    (path / "metrics").mkdir(parents=True)  # without a config
    ended = schedule.run(study, out, acting(tmp_path), schedule.Limits(3, 1), Watched())
    assert states(ended) == {"vdn": "failed", "qmix": "complete", "iql": "complete"}
    assert "config.json is missing" in ended[0].message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_stops_every_child(study_file: Write, tmp_path: Path, number: signal.Signals) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"

    def interrupt() -> None:
        while sum(run.folder(out).status().state == "running" for run in study.runs) < 2:
            time.sleep(0.1)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    command = acting(tmp_path, vdn="sleep", qmix="sleep")
    with pytest.raises(KeyboardInterrupt):
        schedule.run(study, out, command, schedule.Limits(2, 1), Watched())
    assert states(schedule.survey(study, out)) == {"vdn": "interrupted", "qmix": "interrupted", "iql": "new"}
    ended = schedule.run(study, out, acting(tmp_path), schedule.Limits(2, 1), Watched())
    assert set(states(ended).values()) == {"complete"}


def test_a_run_that_another_process_trains_is_waited_for(study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    planned = study.runs[0]
    folder = planned.folder(out)
    RunFolder.open_or_create(out, to_json(planned.config), planned.config.preset, planned.config.task_name)
    other = subprocess.Popen(acting(tmp_path, vdn="sleep")(folder.path))
    while folder.status().state != "running":
        time.sleep(0.1)
    threading.Timer(1.0, other.kill).start()
    ended = schedule.run(study, out, acting(tmp_path), schedule.Limits(3, 1), Watched())
    other.wait()
    assert set(states(ended).values()) == {"complete"}


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(schedule, "free_memory", lambda: 3 * schedule.BYTES_PER_RUN)
    assert schedule.limits(0, 100) == schedule.Limits(3, 2)
    assert schedule.limits(0, 2) == schedule.Limits(2, 4)
    assert schedule.limits(8, 100) == schedule.Limits(8, 1)
    monkeypatch.setattr(schedule, "free_memory", lambda: 0)
    assert schedule.limits(0, 100) == schedule.Limits(1, 8)


def test_free_memory_is_a_number() -> None:
    assert schedule.free_memory() > 1 << 20


def test_time_is_estimated_from_runs_alike(make_run: Make, study_file: Write, tmp_path: Path) -> None:
    make_run([[0.0, 1.0, 2.0]] * 2, preset="vdn", seeds=(7, 8))  # 100 steps a second
    entries = schedule.survey(plan.load(study_file(STUDY)), tmp_path / "runs")
    assert schedule.estimate(entries, tmp_path / "runs", 2) == (10.0, 2)


def test_progress_is_that_of_the_newest_chunk(make_run: Make, study_file: Write) -> None:
    study = plan.load(study_file(STUDY))
    folder = make_run([[0.0, 1.0, 2.0, 3.0]] * 2, state="running")
    (folder.path / "metrics" / "part-00000003.parquet").unlink()
    entry = schedule.look(study.runs[0], folder)
    assert entry.state == "interrupted"
    assert entry.progress == pytest.approx(0.666)
    assert entry.rate == 100
