"""Worker processes: the same numbers as in one process, and every way in which a process can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small import assert_same

sys.path.insert(0, str(Path(__file__).parent))
from envs import Counter, Faulty, Slow

import rookery.algorithms  # noqa: F401  (fills the registry)
from rookery.core.errors import ConfigError, TrainingError
from rookery.core.registry import PRESETS, TASKS
from rookery.core.types import Collect
from rookery.training.check import check
from rookery.training.config import Evaluation, RunConfig, Workers
from rookery.training.host.engine import HostEngine
from rookery.training.host.measure import choose
from rookery.training.host.packing import Packing
from rookery.training.host.program import HostProgram
from rookery.training.host.workers import WorkerPool
from rookery.training.provenance import usable_cores

EVALUATION = Evaluation(points=2, rows=2, episodes=3, final=3)


def config_of(task: Any = None, workers: Workers = Workers(count=2), **changes: Any) -> RunConfig:  # noqa: B008
    algo = replace(PRESETS["ippo"].small(), collect=Collect(envs=6, length=8))
    return RunConfig("ippo", "test", algo, task or Counter(), 400, workers=workers, evaluation=EVALUATION, **changes)


def trained(config: RunConfig) -> Any:
    engine = HostEngine(config)
    try:
        engine.prepare(fresh=True)
        state, _ = engine.evaluate(engine.init())
        state, report = engine.chunk(state, 4)
        return jax.tree.map(np.asarray, (state, report))
    finally:
        engine.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Any, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_results_do_not_depend_on_workers() -> None:
    alone = trained(config_of(workers=Workers(count=0), seeds=(0, 1)))
    assert_same(trained(config_of(workers=Workers(count=2), seeds=(0, 1))), alone)


def test_overlapping_halves_see_every_row_once(tmp_path: Path) -> None:
    """Half-batches in workers, and the same half-batches one after the other in this process."""
    config = config_of(workers=Workers(count=2, overlap=True), seeds=(0, 1))
    got = trained(config)
    engine = HostEngine(config)
    engine.__dict__["_choice"] = type(engine._choice)(0, "for a test")
    engine.prepare(fresh=True)
    state, _ = engine.evaluate(engine.init())
    state, report = engine.chunk(state, 4)
    assert_same(jax.tree.map(np.asarray, (state, report)), got)
    # A state goes on in another process, too.
    again = HostEngine(replace(config, workers=Workers(count=1, overlap=True)))
    want, _ = engine.chunk(state, 1)
    restored = again.restore(jax.tree.map(jax.numpy.asarray, got[0]))
    assert again.record()["environments_resumed"].startswith("bit for bit")
    assert_same(again.chunk(restored, 1)[0], want)
    again.close()


def pool(task: Any, **settings: Any) -> WorkerPool:
    return WorkerPool(task, Packing(task.spec, 4), Workers(**settings), 2)


def walk(envs: WorkerPool, rows: int = 12) -> None:
    seeds = np.arange(4, dtype=np.uint32)
    envs.reset(seeds)
    for _ in range(rows):
        envs.send(np.ones((4, 1), np.int32), seeds)
        envs.wait()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", r"raised:(.|\n)*ValueError: the environment broke"),
        ("abort", r"was killed by SIGABRT(.|\n)*in step"),
        ("kill", r"was killed by SIGKILL"),
        ("hang", r"did not answer for 1 seconds(.|\n)*It is here:(.|\n)*in _fail"),
        ("exit", r"exited with code 3"),
    ],
)
def test_a_worker_that_fails_stops_the_run(how: str, said: str) -> None:
    envs = pool(Faulty(how=how, at=5), timeout=1.0)
    pids = envs.pids
    start = time.monotonic()
    with pytest.raises(TrainingError, match=said):
        walk(envs)
    envs.close()
    assert time.monotonic() - start < 10
    assert wait_until(lambda: not any(map(alive, pids)))


def test_workers_leave_it_to_their_parent_what_signals_mean() -> None:
    """A scheduler or a terminal signals the whole group; the chunk that the parent then finishes needs its workers."""
    envs = pool(Counter())
    pids = envs.pids
    walk(envs, 2)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    walk(envs, 2)
    envs.close()
    assert wait_until(lambda: not any(map(alive, pids)))


def test_a_failure_in_this_process_says_where() -> None:
    engine = HostEngine(config_of(Faulty(how="raise", at=5), Workers(count=0)))
    with pytest.raises(TrainingError, match=r"test/faulty raised:(.|\n)*the environment broke"):
        engine.chunk(engine.init(), 2)


def test_a_task_that_cannot_be_opened_is_an_error_at_once() -> None:
    with pytest.raises(TrainingError, match="cannot be opened here"):
        pool(Faulty(how="refuse"))


@pytest.mark.parametrize("how", ["raise", "hang"])
def test_a_server_that_an_environment_started_ends_with_its_worker(how: str, tmp_path: Path) -> None:
    """A worker that raises closes its environments, and one that hangs is killed with all that it started."""
    envs = pool(Faulty(how=how, at=1, server=str(tmp_path)), timeout=1.0)
    servers = [int(file.name) for file in tmp_path.iterdir()]
    assert len(servers) == 2 and all(map(alive, servers))
    with pytest.raises(TrainingError):
        walk(envs)
    envs.close()
    assert wait_until(lambda: not any(map(alive, servers)))


def test_an_evaluation_plays_a_lost_episode_whole(tmp_path: Path) -> None:
    workers, episodes = Workers(count=1, timeout=10.0, on_failure="restart"), []
    for task in (Faulty(at=1000), Faulty(how="kill", at=2, once=str(tmp_path / "failed"))):
        engine = HostEngine(replace(config_of(task, workers), evaluation=replace(EVALUATION, episodes=12)))
        try:
            state, found = engine.evaluate(engine.init())
            assert engine.player.restarts == (1 if task.once else 0)
            episodes.append(jax.tree.map(np.asarray, found))
            if task.once:
                _, report = engine.chunk(state, 1)
                assert float(report.means["train/worker_restarts"].total[0]) == 1.0
        finally:
            engine.close()
    assert episodes[0]["length"].max() > 7, "the longest must not fit into what is left of the loop"
    jax.tree.map(np.testing.assert_array_equal, *episodes)


@pytest.mark.parametrize("how", ["raise", "kill", "hang"])
def test_a_worker_is_restarted_with_fresh_episodes(how: str, tmp_path: Path) -> None:
    task = Faulty(how=how, at=11, once=str(tmp_path / "failed"))
    engine = HostEngine(config_of(task, Workers(count=2, timeout=1.0, on_failure="restart")))
    try:
        engine.prepare(fresh=True)
        state, report = engine.chunk(engine.init(), 4)
        restarts = report.means["train/worker_restarts"]
        assert float(restarts.total[0]) == 1.0
        # The transition into the fresh episode does not count; everything else does.
        half = engine._collector.halves[0]
        np.testing.assert_array_equal(half.rows.first[1:], half.rows.last[:-1])
        state, report = engine.chunk(state, 2)
        assert float(report.means["train/worker_restarts"].total[0]) == 0.0
        assert np.isfinite(np.asarray(report.sums.values)).all()
    finally:
        engine.close()


def test_a_worker_that_fails_again_at_once_stops_the_run() -> None:
    envs = pool(Faulty(how="raise", at=0), on_failure="restart")
    with pytest.raises(TrainingError, match="the environment broke"):
        walk(envs)
    envs.close()


PARENT = """
import sys, os, time
sys.path[:0] = {path!r}
import numpy as np
from envs import Counter, Faulty, Slow
from rookery.training.config import Workers
from rookery.training.host.packing import Packing
from rookery.training.host.workers import WorkerPool
if __name__ == "__main__":
    task = {task}
    envs = WorkerPool(task, Packing(task.spec, 4), Workers(timeout=1000.0), 2)
    print(*envs.pids, flush=True)
    seeds = np.arange(4, dtype=np.uint32)
    envs.reset(seeds)
    while True:
        envs.send(np.ones((4, 1), np.int32), seeds)
        envs.wait()
"""


@pytest.mark.parametrize(
    ("number", "task"),
    [(signal.SIGTERM, "Counter()"), (signal.SIGSEGV, "Counter()"), (signal.SIGKILL, "Faulty(how='hang', at=3)")],
)
def test_no_worker_survives_its_parent(number: int, task: str, tmp_path: Path) -> None:
    here = Path(__file__).parent
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(path=[str(here), str(here.parents[1])], task=task))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    time.sleep(0.3)
    os.kill(parent.pid, number)
    parent.wait(timeout=20)
    parent.stdout.close()
    assert wait_until(lambda: not any(map(alive, pids)))


def test_waiting_does_not_spin() -> None:
    envs = pool(Faulty(how="sleep", at=0))
    before = time.process_time()
    walk(envs, 2)
    assert time.process_time() - before < 0.2
    envs.close()


def test_settings_are_checked() -> None:
    compiled = replace(config_of(), task=TASKS.get("mpe/simple_spread") or compiled_task())
    with pytest.raises(ConfigError, match="nothing for workers to step"):
        check(replace(compiled, algo=PRESETS["ippo"]))
    with pytest.raises(ConfigError, match=r"workers\.count must be at least -1"):
        check(config_of(workers=Workers(count=-2)))
    with pytest.raises(ConfigError, match=r"must be even and workers\.count not 0"):
        check(config_of(workers=Workers(count=0, overlap=True)))


def compiled_task() -> Any:
    import rookery.tasks  # noqa: F401

    return TASKS["mpe/simple_spread"]


def test_the_choice_is_measured_and_recorded() -> None:
    engine = HostEngine(config_of(workers=Workers()))
    engine.prepare(fresh=True)
    found = engine.record()["workers"]
    assert found["count"] == 0 and found["steps_per_second"]["in_process"] > 0
    assert any("training process" in note for note in engine.notes)
    # What was measured leaves no trace in the numbers.
    state, _ = engine.evaluate(engine.init())
    state, report = engine.chunk(state, 4)
    assert_same(jax.tree.map(np.asarray, (state, report)), trained(config_of(workers=Workers(count=0))))
    engine.close()


@pytest.mark.skipif(usable_cores() < 2, reason="workers need cores")
def test_workers_are_chosen_where_they_save_time() -> None:
    """Environments that take 12 ms of a row in one process and half of that in two; a short run would not gain."""
    engine = HostEngine(replace(config_of(Slow(), Workers()), steps=200_000))
    engine.prepare(fresh=True)
    found, notes = engine.record()["workers"], engine.notes
    engine.close()
    assert found["count"] >= 2 and any(f"{found['count']} workers" in note for note in notes)
    assert found["steps_per_second"]["in_workers"] > found["steps_per_second"]["in_process"]
    assert choose(HostProgram(config_of(Slow(), Workers())), engine._time_iterations).count == 0
