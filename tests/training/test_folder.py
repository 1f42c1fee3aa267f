"""Run folders: identity, locks, immutable parts, damage, finding."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rookery.core.errors import RunError
from rookery.training import folder as module
from rookery.training.folder import KINDS, RunFolder, code_version, find_runs, read_json, resolve, run_id, write_json

CONFIG = {"preset": "vdn", "seeds": [0, 1], "algo": {"lr": 1e-3, "mixer": "sum"}}


def make(out: Path, **changes: Any) -> RunFolder:
    return RunFolder.open_or_create(out, CONFIG | changes, "vdn", "mpe/simple_spread")


def rows(chunk: int) -> pl.DataFrame:
    return pl.DataFrame({"chunk": [chunk] * 2, "member": [0, 1], "loss": [chunk / 2, None]})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_id_is_of_the_content_and_the_code() -> None:
    shuffled = dict(reversed(CONFIG.items()))
    assert run_id(CONFIG, "0.1") == run_id(shuffled, "0.1") == run_id(CONFIG | {"seeds": (0, 1)}, "0.1")
    ids = {run_id(CONFIG, "0.1"), run_id(CONFIG, "0.2"), run_id(CONFIG | {"seeds": [1, 0]}, "0.1")}
    assert len(ids) == 3 and all(re.fullmatch("[0-9a-f]{64}", one) for one in ids)


def test_a_patch_release_is_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.rookery, "__version__", "3.14.15", raising=False)
    assert code_version() == "3.14"


def test_the_same_config_is_the_same_folder(tmp_path: Path) -> None:
    run = make(tmp_path / "a" / "b")
    assert re.fullmatch(r"vdn__mpe-simple_spread__[0-9a-f]{8,}", run.name)
    assert run_id(CONFIG, code_version()).startswith(run.id)
    assert run.config() == CONFIG and run.status().state == "new" and run.problem() == ""
    run.write_part("metrics", 0, rows(0))
    assert make(tmp_path / "a" / "b") == run
    assert run.metrics().height == 2
    assert make(tmp_path / "a" / "b", seeds=[0]) != run


def test_tuples_and_lists_are_one_config(tmp_path: Path) -> None:
    assert make(tmp_path, seeds=(0, 1)) == make(tmp_path) == make(tmp_path, seeds=(0, 1))


def test_an_edited_config_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path)
    write_json(run.path / "config.json", CONFIG | {"seeds": [7]})
    with pytest.raises(RunError, match=r"config\.json was edited"):
        make(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"preset": "vd', b"\xff\xfe", b"[1, 2]", b"null"])
def test_a_corrupted_config_is_named(tmp_path: Path, content: bytes) -> None:
    run = make(tmp_path)
    (run.path / "config.json").write_bytes(content)
    for use in (run.config, lambda: make(tmp_path)):
        with pytest.raises(RunError, match=re.escape(str(run.path / "config.json")) + ".*corrupted"):
            use()
    assert "corrupted" in run.problem()


def test_a_lost_config_is_not_written_over(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write_part("metrics", 0, rows(0))
    (run.path / "config.json").unlink()
    with pytest.raises(RunError, match=r"config\.json is missing"):
        make(tmp_path)


def test_a_kill_while_creating_does_no_harm(tmp_path: Path) -> None:
    run = make(tmp_path)
    (run.path / "config.json").rename(run.path / ".tmp-0123-config.json")
    assert make(tmp_path).config() == CONFIG


def test_many_may_create_one_run_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for trial in range(20):
            barrier = threading.Barrier(8)

            def create(_: int, trial: int = trial, barrier: threading.Barrier = barrier) -> RunFolder:
                barrier.wait()
                return make(tmp_path, trial=trial)

            (run,) = set(pool.map(create, range(8)))
            assert run.config()["trial"] == trial and names(run.path) == {"config.json"}


def test_an_unwritable_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        make(tmp_path / "file")


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[RunFolder]:
    """A run on a read-only file system."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    run = make(disk)
    run.write_part("metrics", 0, rows(0))
    run.set_status("complete")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    yield run
    subprocess.run(["umount", str(disk)], check=True)


def test_a_read_only_run_can_be_read_and_says_why_it_cannot_be_written(frozen: RunFolder) -> None:
    assert frozen.metrics().height == 2 and frozen.status().state == "complete" and frozen.holder() == ""
    with pytest.raises(RunError, match="Read-only"), frozen.lock():
        pass
    with pytest.raises(RunError, match="Read-only"):
        frozen.write_part("metrics", 1, rows(1))
    with pytest.raises(RunError, match="Read-only"):
        frozen.set_status("running")
    with pytest.raises(RunError, match="Read-only"):
        frozen.drop_after(-1)


def test_a_full_disk_leaves_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path)
    run.write_part("metrics", 0, rows(0))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"part-00000001\.parquet: No space left.*before is intact"):
        run.write_part("metrics", 1, rows(1))
    assert names(run.path / "metrics") == {"part-00000000.parquet"}


HOLD = """
    import sys, time
    from pathlib import Path
    from rookery.training.folder import RunFolder
    with RunFolder(Path(sys.argv[1])).lock():
        print("held", flush=True)
        time.sleep(600)
"""


@contextmanager
def held_elsewhere(run: RunFolder) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", textwrap.dedent(HOLD), str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_process_keeps_us_out_until_it_is_killed(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.set_status("running", progress=0.5)
    with held_elsewhere(run) as process:
        with pytest.raises(RunError, match=rf"process {process.pid} on {os.uname().nodename} since 2"), run.lock():
            pass
        assert f"process {process.pid}" in run.holder() and run.status().state == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert run.holder() == "" and run.status().state == "interrupted" and run.status().progress == 0.5
        with run.lock():
            assert f"process {os.getpid()}" in run.holder()
    assert run.holder() == ""


def test_a_lock_is_released_by_an_exception_and_passes_it_on(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(FileNotFoundError), run.lock():
        raise FileNotFoundError
    with run.lock(), pytest.raises(RunError, match=f"process {os.getpid()}"), run.lock():
        pass


def test_a_look_at_the_lock_keeps_no_trainer_out(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    run = make(tmp_path)
    with (run.path / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # what `holder` does, for longer
        threading.Timer(0.1, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with run.lock():
            assert f"process {os.getpid()}" in run.holder()


def test_status(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.set_status("failed", "loss is not finite", 0.25, speed=1000)
    status = run.status()
    assert (status.state, status.message, status.progress) == ("failed", "loss is not finite", 0.25)
    assert status.facts == {"speed": 1000} and status.updated.startswith("2")
    for content in ("", "{", "[]", '{"state": "complete", "unknown": 1}', "{}"):
        (run.path / "status.json").write_text(content)
        assert run.status().state == "broken" and "status.json" in run.problem()


def test_a_kill_while_replacing_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    run = make(tmp_path)
    run.set_status("running", "old")
    for name, seen in (("open", "old"), ("fsync", "old"), ("replace", "old")):
        with monkeypatch.context() as patch:
            patch.setattr(*((Path, "open") if name == "open" else (os, name)), die)
            with pytest.raises(Killed):
                run.set_status("running", "new")
            with pytest.raises(Killed):
                run.write_part("metrics", 0, rows(0))
        assert run.status().message == seen and run.metrics().is_empty()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", die)  # the folder, to sync it after the rename
        with pytest.raises(Killed):
            run.set_status("running", "new")
        with pytest.raises(Killed):
            run.write_part("metrics", 0, rows(0))
    assert run.status().message == "new" and run.metrics().equals(rows(0))


def test_parts_come_in_order_and_are_never_overwritten(tmp_path: Path) -> None:
    run = make(tmp_path)
    for kind in KINDS:
        assert run.parts(kind) == []
    assert run.metrics().is_empty() and run.evaluations().is_empty() and run.final().is_empty()
    for chunk in (2, 0, 11, 100_000_000, 1):
        (name,) = run.write_part("metrics", chunk, rows(chunk))
        assert name == f"metrics/part-{chunk:08d}.parquet"
    assert run.metrics()["chunk"].to_list() == [0, 0, 1, 1, 2, 2, 11, 11, 100_000_000, 100_000_000]
    before = (run.path / "metrics" / "part-00000001.parquet").read_bytes()
    with pytest.raises(RunError, match=r"part-00000001\.parquet exists already"):
        run.write_part("metrics", 1, rows(7))
    assert (run.path / "metrics" / "part-00000001.parquet").read_bytes() == before


def test_scan_reads_what_is_asked_for(tmp_path: Path) -> None:
    run = make(tmp_path)
    for chunk in range(4):
        run.write_part("evaluations", chunk, rows(chunk))
    assert run.scan("evaluations").filter(pl.col("chunk") > 2).select("member").collect()["member"].to_list() == [0, 1]


def test_columns_may_come_later(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write_part("metrics", 0, pl.DataFrame({"a": [1], "b": [None]}))
    run.write_part("metrics", 1, pl.DataFrame({"a": [2.5], "b": [1.0], "c": ["x"]}))
    assert run.metrics().to_dicts() == [{"a": 1.0, "b": None, "c": None}, {"a": 2.5, "b": 1.0, "c": "x"}]


def test_resuming_drops_what_will_come_again(tmp_path: Path) -> None:
    run = make(tmp_path)
    for kind in KINDS:
        for chunk in range(5):
            run.write_part(kind, chunk, rows(chunk))
    first = (run.path / "metrics" / "part-00000003.parquet").read_bytes()
    (run.path / "metrics" / ".tmp-part-00000005.parquet").write_bytes(b"half")
    (run.path / "metrics" / "part-notes.parquet").write_bytes(b"a visitor")
    run.drop_after(2)
    kept = {f"part-{chunk:08d}.parquet" for chunk in range(3)}
    assert names(run.path / "metrics") == kept | {"part-notes.parquet"}
    assert names(run.path / "evaluations") == kept
    assert names(run.path / "final") == set()  # it follows the last chunk, so it comes again in any case
    run.write_part("metrics", 3, rows(3))
    assert (run.path / "metrics" / "part-00000003.parquet").read_bytes() == first
    run.drop_after(-1)
    assert run.metrics().is_empty()


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    run = make(tmp_path)
    for chunk in range(3):
        run.write_part("metrics", chunk, rows(chunk))
    part = run.path / "metrics" / "part-00000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(RunError, match=r"part-00000001\.parquet"):
        run.metrics()


def test_find_runs_passes_over_junk_and_keeps_the_broken(tmp_path: Path) -> None:
    assert find_runs(tmp_path / "never made") == []
    good, broken, hollow = make(tmp_path), make(tmp_path, seeds=[1]), make(tmp_path, seeds=[2])
    (broken.path / "config.json").write_text("{")
    (hollow.path / "config.json").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "plot.png").write_bytes(b"")
    (tmp_path / "a__b__0123456789").write_text("a file")
    runs = find_runs(tmp_path)
    assert {run.name for run in runs} == {good.name, broken.name, hollow.name}
    problems = {run.name: run.problem() for run in runs}
    assert problems[good.name] == ""
    assert "corrupted" in problems[broken.name] and "No such file" in problems[hollow.name]


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="There are no runs"):
        resolve("vdn", tmp_path)
    first, second = make(tmp_path), RunFolder.open_or_create(tmp_path, CONFIG, "qmix", "smax/3m")
    for name in (str(first.path), first.name, first.name[:-3], "vdn"):
        assert resolve(name, tmp_path).path == first.path
    third = make(tmp_path, seeds=[5])
    assert resolve(third.id[:6], tmp_path) == third
    assert resolve("qm", tmp_path) == second
    monkeypatch.chdir(first.path)
    assert resolve(".", tmp_path).name == first.name
    with pytest.raises(RunError, match=f"'vdn' means several runs: .*{first.id}"):
        resolve("vdn", tmp_path)
    with pytest.raises(RunError, match=f"no run 'qmx__smax-3m.*Did you mean .*{second.name}"):
        resolve(second.name.replace("qmix", "qmx"), tmp_path)


def test_json_is_read_back_and_blamed_by_name(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, None, "ü"]})
    assert read_json(tmp_path / "a.json") == json.loads((tmp_path / "a.json").read_text()) == {"b": [1, None, "ü"]}
    with pytest.raises(RunError, match=r"missing\.json"):
        read_json(tmp_path / "missing.json")
