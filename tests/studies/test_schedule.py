"""Runs side by side: with stand-ins for training, which end as they are told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from stand_in import tell

from rookery.core.config import to_json
from rookery.studies import plan, schedule
from rookery.studies.executors import LOG, Processes, spawn
from rookery.training.folder import RunFolder

Write = Callable[[str], Path]
Make = Callable[..., RunFolder]
STUDY = """
tasks = ["matrix/climbing"]
algorithms = ["vdn", "qmix", "iql"]
seeds = 2
steps = 1000
"""


@dataclass
class Watched:
    messages: list[str] = field(default_factory=list)
    most: int = 0

    def show(self, entries: Sequence[schedule.Entry], slots: int) -> None:
        self.most = max(self.most, sum(entry.state == "running" for entry in entries))

    def message(self, text: str) -> None:
        self.messages.append(text)


def acting(tmp_path: Path, slots: int = 2, **actions: str) -> Processes:
    """Processes that do what their preset is told, by default to complete."""
    return Processes([tell(tmp_path, **actions)], slots, 1)


def states(entries: Sequence[schedule.Entry]) -> dict[str, str]:
    return {entry.planned.label: entry.state for entry in entries}


def test_one_bad_run_does_not_stop_the_rest(study_file: Write, tmp_path: Path) -> None:
    study, out, watched = plan.load(study_file(STUDY)), tmp_path / "runs", Watched()
    ended = schedule.run(study, out, acting(tmp_path, vdn="say", qmix="die"), watched)
    assert states(ended) == {"vdn": "failed", "qmix": "failed", "iql": "complete"}
    assert watched.most <= 2
    assert "the cause (exit code 3" in ended[0].message
    assert "killed by SIGKILL" in ended[1].message
    assert states(schedule.survey(study, out)) == states(ended)
    assert "the cause" in (ended[0].folder.path / LOG).read_text()
    again = schedule.run(study, out, acting(tmp_path), Watched())
    assert states(again) == states(ended), "failed runs are left alone"
    retried = schedule.run(study, out, acting(tmp_path), Watched(), retry_failed=True)
    assert set(states(retried).values()) == {"complete"}


def test_a_run_that_cannot_begin_is_a_failure_of_its_own(study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    path = study.runs[0].folder(out).path
    (path / "metrics").mkdir(parents=True)  # without a config
    ended = schedule.run(study, out, acting(tmp_path, slots=3), Watched())
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
    with pytest.raises(KeyboardInterrupt):
        schedule.run(study, out, acting(tmp_path, vdn="sleep", qmix="sleep"), Watched())
    assert states(schedule.survey(study, out)) == {"vdn": "interrupted", "qmix": "interrupted", "iql": "new"}
    ended = schedule.run(study, out, acting(tmp_path), Watched())
    assert set(states(ended).values()) == {"complete"}


@pytest.mark.parametrize("again", [False, True])
def test_interrupted_runs_may_finish_their_chunks(again: bool, study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    folder = study.runs[0].folder(out)

    class Impatient(Watched):
        def message(self, text: str) -> None:
            super().message(text)
            if text.startswith("stopping") and again:
                os.kill(os.getpid(), signal.SIGINT)
            elif text.startswith("stopping"):
                (tmp_path / "go").touch()

    def interrupt() -> None:
        while folder.status().message != "in a chunk":
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    watched = Impatient()
    with pytest.raises(KeyboardInterrupt):
        schedule.run(study, out, acting(tmp_path, slots=1, vdn="chunk"), watched)
    assert folder.status().state == "interrupted"
    assert folder.status().message == ("in a chunk" if again else "saved")
    assert any(text.startswith("killed 1 runs") for text in watched.messages) == again


def test_a_run_that_another_process_trains_is_waited_for(study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    planned = study.runs[0]
    folder = planned.folder(out)
    RunFolder.open_or_create(out, to_json(planned.config), planned.config.preset, planned.config.task_name)
    other = spawn(acting(tmp_path, vdn="sleep").program, folder.path, 1)
    while folder.status().state != "running":
        time.sleep(0.1)
    threading.Timer(1.0, other.kill).start()
    ended = schedule.run(study, out, acting(tmp_path, slots=3), Watched())
    other.wait()
    assert set(states(ended).values()) == {"complete"}


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
