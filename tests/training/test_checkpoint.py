"""Checkpoints: exact round trips; kills, full disks and damage at every place."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from rookery.core.errors import RunError
from rookery.training import checkpoint
from rookery.training.checkpoint import check_writable, flatten, load, load_best, manifests, nbytes, restore, save


class Net(eqx.Module):
    w: jax.Array
    layers: list[jax.Array]
    table: dict[str, jax.Array]


def weird() -> dict[str, Any]:
    """One leaf of everything that a state may hold."""
    bits = np.random.default_rng(0).integers(0, 256, 64, dtype=np.uint8)
    return {
        "float32": jnp.array([0.0, -0.0, math.inf, -math.inf, 1e-45, 3.4e38], jnp.float32),
        "nan": jnp.asarray(np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)),
        "bfloat16": jnp.asarray(bits.view(jnp.bfloat16)).reshape(4, 8),
        "float16": jnp.asarray(bits.view(np.float16)),
        "float8": jnp.asarray(bits.view(jnp.float8_e5m2)),
        "int4": jnp.arange(-8, 8, dtype=jnp.int4).reshape(2, 8),
        "complex": jnp.array([1 + 2j, -0.0j], jnp.complex64),
        "bool": jnp.array([[True], [False]]),
        "uint8": jnp.asarray(bits),
        "uint32": jnp.array([0, 2**32 - 1], jnp.uint32),
        "int32": jnp.array([-(2**31), 2**31 - 1], jnp.int32),
        "host int64": np.array([-(2**63), 2**63 - 1], np.int64),
        "host complex128": np.array([1 + 2j]),
        "host strided": np.arange(12, dtype=np.uint64).reshape(3, 4)[::2, ::2].T,
        "scalar": jnp.float32(1.5),
        "bfloat16 scalar": jnp.bfloat16(1.5),
        "int4 scalar": jnp.int4(-3),
        "empty": jnp.zeros((0, 3)),
        "empty int4": jnp.zeros((2, 0), jnp.int4),
        "typed key": jax.random.key(7),
        "typed keys": jax.random.split(jax.random.key(7, impl="rbg"), 3),
        "raw key": jax.random.PRNGKey(7),
        "net": Net(jnp.ones((2, 3)).T, [jnp.zeros(1), jnp.ones(1)], {"a/b": jnp.ones(2), "a": jnp.zeros(2)}),
        "odd 'name'.[0]\n\u00fc": (jnp.ones(1), None),
    }


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def state_of(chunk: int) -> dict[str, jax.Array]:
    return {"w": jnp.full((5, 3), chunk, jnp.float32), "clock": jnp.int32(chunk), "flag": jnp.array([True] * 3)}


LIKE = shapes(state_of(0))


def put(folder: Path, chunk: int, score: float = 0.0, keep: int = 2) -> Path:
    return save(folder, state_of(chunk), chunk=chunk, steps=[10 * chunk, 20 * chunk], score=score, keep=keep)


def assert_same(left: Any, right: Any) -> None:
    """Bit for bit, with types and structure."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    a, b = flatten(left), flatten(right)
    assert list(a) == list(b)
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape), name
        assert a[name].tobytes() == b[name].tobytes(), name


def assert_state(folder: Path, chunk: int) -> checkpoint.Loaded:
    loaded = load(folder, LIKE)
    assert loaded is not None and loaded.manifest.chunk == chunk
    assert_same(loaded.state, state_of(chunk))
    return loaded


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("describe", [lambda tree: tree, shapes], ids=["arrays", "shapes"])
def test_round_trip_is_exact(tmp_path: Path, describe: Callable[[Any], Any]) -> None:
    state = weird()
    save(tmp_path, state, chunk=3, steps=[1, 2], score=0.25, keep=1)
    loaded = load(tmp_path, describe(state))
    assert loaded is not None
    assert_same(loaded.state, state)
    assert jax.random.key_impl(loaded.state["typed keys"]) == "rbg"
    assert loaded.state["host int64"].dtype == np.int64
    manifest = loaded.manifest
    assert (manifest.chunk, manifest.steps, manifest.score, loaded.warnings) == (3, (1, 2), 0.25, [])


def test_a_bare_array_is_a_state(tmp_path: Path) -> None:
    save(tmp_path, jnp.arange(3), chunk=0, steps=[0], score=0.0, keep=1)
    loaded = load(tmp_path, jnp.zeros(3, jnp.int32))
    assert loaded is not None and loaded.state.tolist() == [0, 1, 2]


def test_other_readers_open_the_file(tmp_path: Path) -> None:
    arrays = load_file(save(tmp_path, weird(), chunk=0, steps=[0], score=0.0, keep=1) / "state.safetensors")
    assert arrays["['net'].table['a/b']"].tolist() == [1.0, 1.0]
    assert arrays["['bfloat16']"].dtype == jnp.bfloat16
    assert arrays["['nan']"].view(np.uint32).tolist() == [0x7FC00001, 0xFFC12345, 0x7F800001]


def test_names_are_unique_and_states_hold_arrays_only() -> None:
    tree = {"a": {"b": jnp.zeros(1)}, "a.b": jnp.zeros(1), "a']['b": jnp.zeros(1)}
    assert len(flatten(tree)) == 3
    with pytest.raises(TypeError, match=r"\['a'\] is 3"):
        flatten({"a": 3})


@pytest.mark.parametrize(
    ("like", "leaf"),
    [
        ({"a": jnp.zeros(2), "b": jnp.zeros(1)}, r"no leaf \['b'\]"),
        ({}, r"leaf \['a'\] is unknown"),
        ({"a": jnp.zeros(3)}, r"leaf \['a'\] is float32\[2\], expected float32\[3\]"),
        ({"a": jnp.zeros(2, jnp.int32)}, r"leaf \['a'\] is float32\[2\], expected int32\[2\]"),
        ({"a": jax.random.key(0)}, r"\['a'\]:key<fry>"),
    ],
)
def test_restore_names_the_leaf_that_does_not_fit(like: Any, leaf: str) -> None:
    with pytest.raises(RunError, match=leaf):
        restore(like, flatten({"a": jnp.zeros(2)}))


def test_restore_refuses_another_kind_of_key() -> None:
    arrays = flatten(jax.random.key(0, impl="rbg"))
    with pytest.raises(RunError, match="urbg"):
        restore(jax.random.key(0, impl="unsafe_rbg"), arrays)


def test_a_state_that_does_not_fit_is_not_called_damaged(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with pytest.raises(RunError, match="does not fit"):
        load(tmp_path, {"w": jnp.zeros(1)})
    assert names(tmp_path) == {"chunk-00000001"}


def test_a_restored_state_shares_no_memory_with_its_source() -> None:
    buffer = np.zeros(1 << 12, np.uint8)
    start = -buffer.ctypes.data % 64  # aligned, as JAX wants it for sharing
    source = buffer[start : start + 1024].view(np.float32)
    state = restore({"x": jax.ShapeDtypeStruct((256,), jnp.float32), "y": source}, {"['x']": source, "['y']": source})
    source[:] = 1.0
    assert (state["x"] == 0).all() and (state["y"] == 0).all()


def test_numpy_stays_numpy_and_is_contiguous() -> None:
    tree = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3).T, "b": jnp.zeros(2)}
    back = restore(tree, flatten(tree))
    assert isinstance(back["a"], np.ndarray) and isinstance(back["b"], jax.Array)
    assert flatten(tree)["['a']"].flags.c_contiguous


def test_saving_needs_no_second_copy(tmp_path: Path) -> None:
    state = {"a": np.ones(1 << 24, np.uint8), "b": jnp.ones(1 << 22)}
    assert nbytes(state) == nbytes(shapes(state)) == (1 << 24) * 2
    tracemalloc.start()
    save(tmp_path, state, chunk=0, steps=[0], score=0.0, keep=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


def test_prune_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    kept = []
    for chunk, score in enumerate([0.1, 0.9, math.nan, 0.3, 0.9, 0.2, 0.1, 0.0]):
        put(tmp_path, chunk, score)
        kept.append([manifest.chunk for manifest in manifests(tmp_path)])
    assert kept == [[0], [0, 1], [1, 2], [1, 2, 3], [3, 4], [4, 5], [4, 5, 6], [4, 6, 7]]
    best = load_best(tmp_path, LIKE)
    assert best is not None and best.manifest.chunk == 4
    assert_same(best.state, state_of(4))


def test_without_any_score_the_newest_is_best(tmp_path: Path) -> None:
    for chunk in range(3):
        put(tmp_path, chunk, math.nan)
    best = load_best(tmp_path, LIKE)
    assert best is not None and best.manifest.chunk == 2 and math.isnan(best.manifest.score)


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load(tmp_path / "never made", LIKE) is None
    assert load(tmp_path, LIKE) is None
    assert load_best(tmp_path, LIKE) is None


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with pytest.raises(RunError, match="never overwritten"):
        put(tmp_path, 1)


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def pair(folder: Path) -> Path:
    """Checkpoints 1 (best) and 2; returns the newer."""
    put(folder, 1, score=1.0)
    return put(folder, 2, score=0.5)


def assert_detected(folder: Path) -> None:
    """The damage of checkpoint 2 is reported, and 1 is used."""
    loaded = assert_state(folder, 1)
    assert len(loaded.warnings) == 1
    assert "chunk-00000002" in loaded.warnings[0] and "chunk-00000001 is used" in loaded.warnings[0]
    assert names(folder) == {"chunk-00000001", "chunk-00000002.corrupt"}


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
def test_every_flipped_bit_is_found(tmp_path: Path, file: str) -> None:
    newer = pair(tmp_path)
    whole = (newer / file).read_bytes()
    rng = random.Random(0)
    places = {(rng.randrange(len(whole)), rng.randrange(8)) for _ in range(250)}
    for position, bit in places:
        flip(newer / file, position, bit)
        assert_detected(tmp_path)
        (tmp_path / "chunk-00000002.corrupt").rename(newer)
        (newer / file).write_bytes(whole)
    assert assert_state(tmp_path, 2).warnings == []


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
def test_every_truncation_is_found(tmp_path: Path, file: str) -> None:
    newer = pair(tmp_path)
    whole = (newer / file).read_bytes()
    for damage in [*(whole[:n] for n in range(0, len(whole), 3)), whole[:-1], whole + b"\0", whole + b" "]:
        (newer / file).write_bytes(damage)
        assert_detected(tmp_path)
        (tmp_path / "chunk-00000002.corrupt").rename(newer)
    (newer / file).unlink()
    assert_detected(tmp_path)


def test_an_exchanged_checkpoint_is_found(tmp_path: Path) -> None:
    newer = pair(tmp_path)
    shutil.rmtree(newer)
    shutil.copytree(tmp_path / "chunk-00000001", newer)
    assert_detected(tmp_path)


def test_earlier_damage_is_never_deleted(tmp_path: Path) -> None:
    put(tmp_path, 1, score=1.0)
    for _ in range(3):
        flip(put(tmp_path, 2) / "state.safetensors", -1, 0)
        assert_state(tmp_path, 1)
    for chunk in range(3, 8):
        put(tmp_path, chunk)
    aside = {f"chunk-00000002.corrupt{plus}" for plus in ("", "+", "++")}
    assert names(tmp_path) == {"chunk-00000001", "chunk-00000006", "chunk-00000007"} | aside


def test_nothing_valid_is_an_error_each_time(tmp_path: Path) -> None:
    pair(tmp_path)
    for chunk in (1, 2):
        flip(tmp_path / f"chunk-{chunk:08d}" / "state.safetensors", -1, 0)
    for _ in range(2):  # a second try must not begin from nothing either
        with pytest.raises(RunError, match=r"damaged: chunk-00000002 .*chunk-00000001 .*remove it to train"):
            load(tmp_path, LIKE)
    assert names(tmp_path) == {"chunk-00000001", "chunk-00000002"}


def test_only_damage_set_aside_is_an_error(tmp_path: Path) -> None:
    flip(pair(tmp_path) / "state.safetensors", -1, 0)
    assert_detected(tmp_path)
    shutil.rmtree(tmp_path / "chunk-00000001")
    with pytest.raises(RunError, match=r"chunk-00000002\.corrupt"):
        load(tmp_path, LIKE)


def test_a_damaged_best_is_reported_and_left_alone(tmp_path: Path) -> None:
    for chunk, score in ((1, 1.0), (2, 0.2), (3, 0.1)):
        put(tmp_path, chunk, score)
    flip(tmp_path / "chunk-00000001" / "manifest.json", 40, 1)
    best = load_best(tmp_path, LIKE)
    assert best is not None and best.manifest.chunk == 2
    assert "chunk-00000001" in best.warnings[0]
    assert names(tmp_path) == {"chunk-00000001", "chunk-00000002", "chunk-00000003"}


def test_pruning_by_another_process_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair(tmp_path)
    verify = checkpoint._verify

    def race(path: Path) -> checkpoint.Manifest:
        if not (tmp_path / "chunk-00000003").exists():
            put(tmp_path, 3, score=2.0, keep=1)
        return verify(path)

    monkeypatch.setattr(checkpoint, "_verify", race)
    best = load_best(tmp_path, LIKE)
    assert best is not None and best.manifest.chunk == 3 and best.warnings == []


class Killed(BaseException):
    """Stands for SIGKILL."""


class Faults:
    """Fails the nth file-system operation; a kill also fails all that follow, as nothing runs after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.at, self.error, self.sticky = 0, BaseException(), False
        for name in ("replace", "fsync", "mkdir", "unlink", "rmdir", "open"):
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))
        open_file = Path.open
        monkeypatch.setattr(Path, "open", lambda path, mode="r": self.open(open_file, path, mode))

    def arm(self, at: int, error: BaseException, *, sticky: bool) -> None:
        self.log, self.at, self.error, self.sticky = [], at, error, sticky

    def disarm(self) -> None:
        self.log, self.at = [], 0

    def strike(self, name: str) -> None:
        self.log.append(name)
        if self.at and (len(self.log) == self.at or (self.sticky and len(self.log) > self.at)):
            raise self.error

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **kwargs: Any) -> Any:
            self.strike(name)
            return function(*args, **kwargs)

        return faulty

    def open(self, open_file: Callable[..., Any], path: Path, mode: str) -> Any:
        self.strike("open")
        file = open_file(path, mode)
        return Torn(file, self) if mode == "wb" else file


class Torn:
    """A file whose writes reach the disk one by one, and by half when struck."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self.file, self.faults = file, faults

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: Any) -> None:
        try:
            self.faults.strike("write")
        except BaseException:
            self.file.write(data[: len(data) // 2])
            raise
        self.file.write(data)
        self.file.flush()

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    injected = Faults(monkeypatch)
    yield injected
    injected.disarm()


def filled(folder: Path, faults: Faults) -> Path:
    """Three checkpoints, of which the next save prunes one, and the leftover of an earlier kill."""
    faults.disarm()
    for chunk in (1, 2, 3):
        put(folder, chunk, score=-float(chunk) if chunk > 1 else 5.0)
    (folder / ".tmp-chunk-00000004").mkdir()
    (folder / ".tmp-chunk-00000004" / "state.safetensors").write_bytes(b"half")
    return folder


def test_a_kill_at_any_moment_leaves_a_whole_state(tmp_path: Path, faults: Faults) -> None:
    outcomes, at = [], 0
    while True:
        at += 1
        folder = filled(tmp_path / str(at), faults)
        faults.arm(at, Killed(), sticky=True)
        try:
            put(folder, 4, score=1.0)
        except Killed:
            faults.disarm()
        else:
            break
        newest = max(manifest.chunk for manifest in manifests(folder))
        outcomes.append(newest)
        assert assert_state(folder, newest).warnings == []
        best = load_best(folder, LIKE)
        assert best is not None and best.manifest.chunk == 1 and best.warnings == []
        put(folder, 5, score=0.0)
        assert names(folder) == {f"chunk-{chunk:08d}" for chunk in (1, newest, 5)}
    # Every operation was struck, and the new state came to be at one of them, neither the first nor the last.
    assert len(outcomes) > 15 and outcomes == sorted(outcomes) and set(outcomes) == {3, 4}


def test_all_is_synced_before_it_gets_its_name_and_pruning_comes_last(tmp_path: Path, faults: Faults) -> None:
    filled(tmp_path, faults)
    faults.disarm()
    put(tmp_path, 4)
    publish, prune = (at for at, name in enumerate(faults.log) if name == "replace")
    assert faults.log[:publish].count("fsync") == 3  # two files and their folder
    assert "write" not in faults.log[publish:]
    assert faults.log[publish:prune].count("fsync") == 1  # the name
    assert set(faults.log[prune:]) & {"unlink", "rmdir"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_any_moment_is_reported_and_cleared_up(tmp_path: Path, faults: Faults, code: int) -> None:
    at = 0
    while True:
        at += 1
        folder = filled(tmp_path / str(at), faults)
        faults.arm(at, OSError(code, os.strerror(code)), sticky=False)
        try:
            put(folder, 4, score=1.0)
        except RunError as error:
            faults.disarm()
            newest = max(manifest.chunk for manifest in manifests(folder))
            assert os.strerror(code) in str(error) and f"chunk-{newest:08d}, is intact" in str(error)
        else:
            break
        assert not any(name.startswith(".") for name in names(folder))
        assert_state(folder, newest)
    assert at > 15


def script(text: str) -> list[str]:
    preamble = """
        import resource, sys
        from pathlib import Path
        import jax, jax.numpy as jnp, numpy as np
        from rookery.core.errors import RunError
        from rookery.training.checkpoint import load, save
        folder = Path(sys.argv[1])
    """
    return [sys.executable, "-c", textwrap.dedent(preamble) + textwrap.dedent(text)]


def test_real_kills_lose_at_most_the_chunk_under_way(tmp_path: Path) -> None:
    command = script(
        """
        like = {"w": jnp.zeros(200_000)}
        found = load(folder, like)
        chunk = found.manifest.chunk if found else 0
        while True:
            chunk += 1
            state = {"w": jnp.full(200_000, chunk, jnp.float32)}
            save(folder, state, chunk=chunk, steps=[chunk], score=0.0, keep=1)
            print(chunk, flush=True)
        """
    )
    like, rng, done = {"w": jnp.zeros(200_000)}, random.Random(1), 0
    for _ in range(3):
        with subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == done + 1
            time.sleep(rng.uniform(0.05, 0.2))
            process.send_signal(signal.SIGKILL)
            printed = process.stdout.read().split()
        loaded = load(tmp_path, like)
        assert loaded is not None and loaded.warnings == []
        done = loaded.manifest.chunk
        assert not printed or done in (int(printed[-1]), int(printed[-1]) + 1)
        assert (loaded.state["w"] == done).all()


def test_a_file_size_limit_is_reported(tmp_path: Path) -> None:
    command = script(
        """
        save(folder, {"w": np.zeros(1000, np.uint8)}, chunk=1, steps=[1], score=0.0, keep=2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            save(folder, {"w": np.zeros(4 << 20, np.uint8)}, chunk=2, steps=[2], score=0.0, keep=2)
        except RunError as error:
            print(error)
        """
    )
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout and "chunk-00000001, is intact" in done.stdout
    assert names(tmp_path) == {"chunk-00000001"}


def test_sharded_states_come_back_sharded(tmp_path: Path) -> None:
    command = script(
        """
        mesh = jax.make_mesh((2,), ("seed",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seed"))
        keys = jax.random.split(jax.random.key(0), 4)
        state = {"w": jax.device_put(jnp.arange(8.0).reshape(4, 2), sharding), "key": jax.device_put(keys, sharding)}
        save(folder, state, chunk=0, steps=[0], score=0.0, keep=1)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        for like in (state, shapes):
            back = load(folder, like).state
            assert all(back[name].sharding.is_equivalent_to(sharding, back[name].ndim) for name in state)
            assert (back["w"] == state["w"]).all() and (back["key"] == state["key"]).all()
        """
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([*command, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported_and_the_run_goes_on_when_there_is_room(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    state = {"w": jnp.ones(100_000)}
    save(folder, state, chunk=1, steps=[1], score=0.0, keep=1)
    hog = small_disk / "hog"
    hog.write_bytes(bytes(1_500_000))
    with pytest.raises(RunError, match=r"No space left.*chunk-00000001, is intact.*Free some space"):
        save(folder, state, chunk=2, steps=[2], score=0.0, keep=1)
    assert names(folder) == {"chunk-00000001"}
    loaded = load(folder, state)
    assert loaded is not None and loaded.warnings == []
    assert_same(loaded.state, state)
    hog.unlink()
    save(folder, state, chunk=2, steps=[2], score=0.0, keep=1)
    assert names(folder) == {"chunk-00000002"}


def test_a_read_only_disk_is_found_before_training(small_disk: Path) -> None:
    put(small_disk, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunError, match="Read-only file system"):
        check_writable(small_disk / "checkpoints", 0)
    with pytest.raises(RunError, match="chunk-00000001, is intact"):
        put(small_disk, 2)
    assert assert_state(small_disk, 1).warnings == []


def test_damage_on_a_read_only_disk_is_reported(small_disk: Path) -> None:
    flip(pair(small_disk) / "state.safetensors", -1, 0)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "could not be set aside" in assert_state(small_disk, 1).warnings[0]


def test_check_writable(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b", 1000)
    assert names(tmp_path / "a" / "b") == set()
    with pytest.raises(RunError, match=r"not enough space.*needed.*free"):
        check_writable(tmp_path, 10**18)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"):
        check_writable(tmp_path / "file" / "runs", 0)
