"""Runs that are killed, damaged, locked or out of space, in processes of their own: what remains, how they go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from small import small_config

import rookery
from rookery.algorithms.q import Q
from rookery.core.config import to_json
from rookery.core.errors import RunError, TrainingError
from rookery.training import checkpoint
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Sweep
from rookery.training.folder import RunFolder

# Imports once, then forks a process for each job, so that a kill costs no import. No thread runs at the time of a fork:
# the parent never touches a device.
NURSERY = """
import json, os, resource, sys
import rookery, rookery.algorithms, rookery.tasks, rookery.training.train
from rookery.core.config import from_json
from rookery.core.errors import RookeryError
from rookery.training.progress import Silent

class Log(Silent):
    def message(self, text):
        with open(sys.argv[2], "a") as file:
            file.write(text + "\\n")

config = from_json(rookery.RunConfig, json.load(open(sys.argv[1])))
for line in sys.stdin:
    out, limit = line.split()
    pid = os.fork()
    if pid == 0:
        if int(limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
        try:
            rookery.train(config, out, Log())
        except RookeryError as error:
            Log().message(str(error))
            os._exit(error.code)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """Starts processes that train one config."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.log = config, folder / "log"
        (folder / "config.json").write_text(json.dumps(to_json(config)))
        command = [sys.executable, "-c", NURSERY, str(folder / "config.json"), str(self.log)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def run(self, out: Path) -> RunFolder:
        return RunFolder.locate(out, to_json(self.config), self.config.preset, self.config.task_name)

    def start(self, out: Path, limit: int = 0) -> int:
        """Begin to train (with files of at most `limit` bytes); returns the process."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{out} {limit}\n")
        return int(self.process.stdout.readline())

    def wait(self) -> int:
        """Exit code of the process, negative if it was killed."""
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def messages(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def config_of(**changes: int) -> RunConfig:
    """Forty chunks with an evaluation at every fifth; a checkpoint after each."""
    config = small_config("qmix", evaluation=Evaluation(points=8, rows=5, episodes=4, final=8), steps=2000)
    algo = replace(config.algo, replay=replace(config.algo.replay, capacity=256))
    return replace(config, algo=algo, seeds=(0, 1), checkpoints=Checkpoints(keep=2, seconds=0.0), **changes)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(config_of(), tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run as it is if nobody disturbs it."""
    out = tmp_path_factory.mktemp("whole")
    nursery.start(out)
    assert nursery.wait() == 0
    return nursery.run(out)


def assert_same_run(run: RunFolder, whole: RunFolder) -> None:
    """All that a run leaves but times, bit for bit."""
    assert run.status().state == whole.status().state == "complete"
    for kind in ("metrics", "evaluations", "final"):
        names, parts = ([p.name for p in r.parts(kind)] for r in (run, whole)), (run.parts(kind), whole.parts(kind))
        assert len(parts[0]) > 0 and next(names) == next(names)
        for a, b in zip(*parts, strict=True):
            assert a.read_bytes() == b.read_bytes(), a.name
    # NaN stands where nothing was measured; equals() takes it for equal.
    assert run.metrics().equals(whole.metrics()) and run.final().equals(whole.final())
    (a,), (b,) = (checkpoint.manifests(r.policies) for r in (run, whole))
    assert (a.sha256, a.steps) == (b.sha256, b.steps)
    assert not run.checkpoints.exists()


def wait_for_parts(run: RunFolder, more_than: int, pid: int) -> None:
    deadline = time.monotonic() + 120
    while len(run.parts("metrics")) <= more_than and time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        time.sleep(0.002)


def test_a_run_that_is_killed_again_and_again_ends_bit_for_bit_the_same(
    nursery: Nursery, whole: RunFolder, tmp_path: Path
) -> None:
    rng = random.Random(0)
    run, killed, chunks = nursery.run(tmp_path), [], len(whole.parts("metrics"))
    for i in range(8):
        pid = nursery.start(tmp_path)
        if i % 3 == 0:  # at start: while the state is loaded, parts are dropped, programs are compiled
            time.sleep(rng.uniform(0.0, 2.0))
        else:  # while it trains, evaluates, writes
            wait_for_parts(run, len(run.parts("metrics")), pid)
            time.sleep(rng.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        killed.append(nursery.wait())
        assert killed[-1] == -signal.SIGKILL, nursery.messages()
        assert run.status().state in ("new", "interrupted", "running")
    progress = len(run.parts("metrics"))
    assert 0 < progress < chunks, "the kills should fall into training: adapt its length"
    nursery.start(tmp_path)
    assert nursery.wait() == 0, nursery.messages()
    assert nursery.messages().count("resumed after") >= 4
    assert_same_run(run, whole)


def halfway(nursery: Nursery, out: Path) -> RunFolder:
    """A run that was killed with two checkpoints on the disk."""
    run = nursery.run(out)
    pid = nursery.start(out)
    wait_for_parts(run, 4, pid)
    os.kill(pid, signal.SIGKILL)
    assert nursery.wait() == -signal.SIGKILL
    assert len(checkpoint.manifests(run.checkpoints)) >= 2
    return run


def test_a_flipped_bit_costs_one_checkpoint(nursery: Nursery, whole: RunFolder, tmp_path: Path) -> None:
    run = halfway(nursery, tmp_path)
    *_, older, newest = checkpoint.manifests(run.checkpoints)
    file = run.checkpoints / newest.name / checkpoint.STATE
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    nursery.start(tmp_path)
    assert nursery.wait() == 0
    said = nursery.messages()
    assert f"checkpoint {newest.name}" in said and "is damaged" in said and f"{older.name} is used instead" in said
    assert_same_run(run, whole)


def test_a_full_disk_keeps_what_was_saved(nursery: Nursery, whole: RunFolder, tmp_path: Path) -> None:
    run = halfway(nursery, tmp_path)
    before = [m.name for m in checkpoint.manifests(run.checkpoints)]
    # No file may be as large as a state: the next checkpoint fails as on a full disk, metrics still fit.
    nursery.start(tmp_path, limit=checkpoint.manifests(run.checkpoints)[-1].bytes // 2)
    assert nursery.wait() == RunError.code
    assert "cannot write checkpoint" in nursery.messages() and "resume" in nursery.messages()
    assert run.status().state == "failed"
    assert [m.name for m in checkpoint.manifests(run.checkpoints)] == before
    nursery.start(tmp_path)
    assert nursery.wait() == 0
    assert_same_run(run, whole)


def test_a_complete_run_is_neither_trained_again_nor_changed(nursery: Nursery, whole: RunFolder) -> None:
    def facts() -> dict[str, tuple[int, bytes]]:
        files = [path for path in whole.path.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = facts()
    nursery.start(whole.path.parent)
    assert nursery.wait() == 0
    assert "is complete; nothing to do" in nursery.messages()
    assert facts() == before


def test_a_second_process_is_refused(nursery: Nursery, tmp_path: Path) -> None:
    run, pid = nursery.run(tmp_path), nursery.start(tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not run.holder() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end before we ask
        with pytest.raises(RunError, match=f"is being trained by process {pid}"):
            rookery.train(nursery.config, tmp_path)
        assert run.status().state in ("running", "new")
    finally:
        os.kill(pid, signal.SIGKILL)
        nursery.wait()


def test_a_member_that_diverges_leaves_the_others_alone(whole: RunFolder, tmp_path: Path) -> None:
    config = config_of()
    assert isinstance(config.algo, Q)
    usual = config.algo.optimiser.lr
    sweep = (Sweep("algo.optimiser.lr", (usual, 1e30)),)
    run = rookery.train(replace(config, checkpoints=Checkpoints(), sweep=sweep), tmp_path / "both")
    for ours, theirs in ((run.metrics(), whole.metrics()), (run.final(), whole.final())):
        # Members of a run of another width differ in the last bits.
        ours = ours.filter(pl.col("algo.optimiser.lr") == usual).drop("returns", "algo.optimiser.lr", strict=False)
        assert_frame_equal(ours, theirs.select(ours.columns), check_exact=False, rel_tol=1e-3, abs_tol=1e-4)
    status = run.folder.status()
    assert status.state == "complete"
    assert [text.partition(" failed")[0] for text in status.facts["failed"]] == [
        f"seed {seed}, algo.optimiser.lr=1e+30" for seed in (0, 1)
    ]
    for frame in (run.final(), run.metrics().filter(pl.col("chunk") == pl.col("chunk").max())):
        assert set(frame["algo.optimiser.lr"]) == {usual}
    assert set(run.evaluations()["algo.optimiser.lr"]) == {usual, 1e30}, "rows before the failure stay"
    assert status.message.endswith(f"Left out: {' '.join(status.facts['failed'])}")


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    config = config_of()
    assert isinstance(config.algo, Q)
    # Nothing is learnt before 128 sequences are stored, so that good checkpoints come first.
    algo = replace(
        config.algo,
        optimiser=replace(config.algo.optimiser, lr=1e30),
        replay=replace(config.algo.replay, start=128),
    )
    config = replace(config, algo=algo, steps=1000)
    with pytest.raises(
        TrainingError, match=r"seed \d+ failed: \S+ is not finite at step [\d,]+.*last good checkpoint is chunk-"
    ):
        rookery.train(config, tmp_path)
    (path,) = tmp_path.iterdir()
    run = RunFolder(path)
    assert run.status().state == "failed" and "is not finite at step" in run.status().message
    found = checkpoint.load(run.checkpoints, like_of(config))
    assert found is not None and found.warnings == []
    leaves = _floats(found.state.members.algo)
    assert leaves and all(np.all(np.isfinite(leaf)) for leaf in leaves)
    # No metrics of the broken chunk.
    assert run.metrics()["chunk"].max() == found.manifest.chunk


def like_of(config: RunConfig) -> object:
    import jax

    from rookery.training.compiled.program import Program

    return jax.eval_shape(Program(config).init)


def _floats(tree: object) -> list[np.ndarray]:
    import jax

    return [np.asarray(x) for x in jax.tree.leaves(tree) if np.issubdtype(np.asarray(x).dtype, np.floating)]
