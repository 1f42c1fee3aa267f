"""Where runs are trained: real processes, a real Ray cluster on this machine, submitit's real local jobs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from stand_in import tell
from test_schedule import Watched, states
from test_study_cli import TINY, await_parts, begin

from rookery.app import cli
from rookery.core.errors import ConfigError, RunError
from rookery.studies import executors, plan, schedule
from rookery.studies.executors import LOG, Executor, Processes, Ray, Slurm
from rookery.training.folder import RunFolder

Write = Callable[[str], Path]
STUDY = """
tasks = ["matrix/climbing"]
algorithms = ["vdn", "qmix", "iql"]
seeds = 2
steps = 1000
"""


def open_ray(program: Sequence[str], out: Path) -> Executor:
    return Ray(program, jobs=2, threads=1, pending=3, address="local")


def open_submitit(program: Sequence[str], out: Path) -> Executor:
    return Slurm(program, jobs=2, threads=1, pending=3, out=out, options={"cluster": "local"})


@pytest.fixture(params=[open_ray, open_submitit], ids=["ray", "submitit"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    pytest.importorskip({"ray": "ray", "submitit": "submitit"}[request.node.callspec.id])
    executor = request.param([tell(tmp_path)], tmp_path / "runs")
    yield executor
    executor.close()


def test_a_cluster_trains_fails_is_interrupted_and_goes_on(study_file: Write, tmp_path: Path, opened: Executor) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    tell(tmp_path, vdn="say", qmix="die")
    ended = schedule.run(study, out, opened, Watched())
    assert states(ended) == {"vdn": "failed", "qmix": "failed", "iql": "complete"}
    assert "the cause (exit code 3" in ended[0].message
    assert "killed by SIGKILL" in ended[1].message
    assert "the cause" in (ended[0].folder.path / LOG).read_text()
    assert ended[2].folder.status().facts["threads"] == "1"

    tell(tmp_path, vdn="sleep", qmix="sleep")

    def interrupt() -> None:
        while sum(run.folder(out).status().state == "running" for run in study.runs) < 2:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        schedule.run(study, out, opened, Watched(), retry_failed=True)
    await_free([run.folder(out) for run in study.runs])
    assert states(schedule.survey(study, out)) == {"vdn": "interrupted", "qmix": "interrupted", "iql": "complete"}

    tell(tmp_path)
    assert set(states(schedule.run(study, out, opened, Watched())).values()) == {"complete"}


def await_free(folders: Sequence[RunFolder]) -> None:
    """A run whose job was killed notices that it was orphaned."""
    deadline = time.monotonic() + 60
    while any(folder.holder() for folder in folders):
        assert time.monotonic() < deadline, "still held"
        time.sleep(0.1)


def test_a_study_on_ray_survives_a_kill_bit_for_bit(study_file: Write, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    # Ray takes seconds to notice that the study is gone; the run must not be complete by then.
    text = TINY.replace("[[0], [1]]", "[[0]]").replace("100_000", "1_000_000")
    file, out = study_file(text), tmp_path / "runs"
    (run,) = plan.load(file).runs
    options = ("--executor", "ray", "--address", "local")
    killed = begin(file, out, *options)
    await_parts(killed, run.folder(out), 3)
    killed.kill()
    killed.wait()
    await_free([run.folder(out)])
    assert run.folder(out).status().state == "interrupted"
    text, _ = begin(file, out, *options).communicate(timeout=200)
    assert "complete: vdn" in text, text

    assert begin(file, tmp_path / "here").wait(timeout=200) == 0
    there, here = run.folder(out), run.folder(tmp_path / "here")
    assert there.metrics().equals(here.metrics())
    assert there.evaluations().equals(here.evaluations())


def test_a_folder_that_the_machine_does_not_see_is_explained(tmp_path: Path) -> None:
    ended = executors.Work(("-c", "pass"), tmp_path / "elsewhere", 1)()
    assert ended.code == 1
    assert "Give an --out on a file system that all machines share" in ended.cause


@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(
    study_file: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    module: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    argv = ["study", "run", str(study_file(STUDY)), "--out", str(tmp_path / "runs"), "--executor", name]
    assert cli.main(argv) == 2
    assert f"rookery[{name}]" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("address", "told"), [("127.0.0.1:1", "refused"), ("here", "HOST:PORT")])
def test_an_address_without_a_cluster_is_told_at_once(address: str, told: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(RunError, match=rf"no Ray cluster at {address}: .*{told}.*ray start --head"):
        Ray(["x"], 1, 1, 1, address)


def test_slurm_is_told_what_it_cannot_know(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(ConfigError, match="Unknown argument 'partion' for executor 'slurm'"):
        Slurm(["x"], 1, 1, 1, tmp_path, {"cluster": "local", "slurm_partion": "long"})


def test_as_many_processes_as_the_machine_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_for(jobs: int, threads: int, pending: int) -> tuple[int, int]:
        made: Any = executors.processes(["x"], jobs, threads, pending)
        assert isinstance(made, Processes)
        return made.slots, made.threads

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(executors, "free_memory", lambda: 3 * executors.BYTES_PER_RUN)
    assert plan_for(0, 0, 100) == (3, 2)
    assert plan_for(0, 0, 2) == (2, 4)
    assert plan_for(8, 0, 100) == (8, 1)
    assert plan_for(0, 4, 100) == (2, 4)
    monkeypatch.setattr(executors, "free_memory", lambda: 0)
    assert plan_for(0, 0, 100) == (1, 8)


def test_free_memory_is_a_number() -> None:
    assert executors.free_memory() > 1 << 20
