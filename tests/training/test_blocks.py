"""Stores in checkpoints: only what changed is written, damage is found, kills and full disks leave whole states."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoint import Faults, Killed, faults  # noqa: F401  (a fixture)

from rookery.core.errors import RunError
from rookery.training import blocks
from rookery.training.checkpoint import load, manifests, save

SMALL = 1 << 10


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SIZE", SMALL)


def state_of(seed: int = 0, rows: int = 100) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    frames = np.zeros((100, 70), np.uint8)  # 7000 bytes, the last block is shorter
    frames[:rows] = rng.integers(0, 256, (rows, 70))
    return {"w": jnp.full(3, seed, jnp.float32), "frames": jnp.asarray(frames), "n": jnp.int32(rows)}


def put(folder: Path, chunk: int, state: dict[str, Any], keep: int = 2, score: float = 0.0) -> None:
    save(folder, state, chunk=chunk, steps=[chunk], score=score, keep=keep, stores=(state["frames"],))


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / blocks.FOLDER).iterdir()}


def assert_loads(folder: Path, state: dict[str, Any], chunk: int) -> None:
    found = load(folder, jax.eval_shape(lambda: state))
    assert found is not None and found.manifest.chunk == chunk
    jax.tree.map(np.testing.assert_array_equal, found.state, state)


def test_a_store_comes_back_and_only_changes_are_written(tmp_path: Path) -> None:
    state = state_of()
    put(tmp_path, 1, state)
    before = files(tmp_path)
    assert len(before) == 7
    changed = {**state, "frames": state["frames"].at[20:25].set(7), "w": state["w"] + 1}  # bytes 1400 to 1750
    put(tmp_path, 2, changed)
    assert len(files(tmp_path) - before) == 1
    assert_loads(tmp_path, changed, 2)
    state_file = tmp_path / "chunk-00000002" / "state.safetensors"
    assert state_file.stat().st_size < 1000


def test_the_empty_share_of_a_store_is_one_block(tmp_path: Path) -> None:
    put(tmp_path, 1, state_of(rows=10))
    assert len(files(tmp_path)) == 3  # the written one, zeros, and the shorter end of zeros
    assert_loads(tmp_path, state_of(rows=10), 1)


def test_blocks_that_no_checkpoint_has_are_removed(tmp_path: Path) -> None:
    for chunk in range(1, 6):
        put(tmp_path, chunk, state_of(chunk), keep=2, score=float(chunk))
    assert files(tmp_path) == {name for m in manifests(tmp_path) for name in m.blocks["['frames']"]}
    assert len(files(tmp_path)) == 14


def test_small_arrays_and_arrays_that_are_no_stores_stay_in_the_file(tmp_path: Path) -> None:
    state = {"frames": jnp.zeros(SMALL - 1, jnp.uint8), "other": jnp.zeros(5000, jnp.uint8)}
    save(tmp_path, state, chunk=1, steps=[0], score=0.0, keep=1, stores=(state["frames"],))
    assert manifests(tmp_path)[0].blocks == {} and not (tmp_path / blocks.FOLDER).exists()


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_to_a_block_is_found(how: str, tmp_path: Path) -> None:
    put(tmp_path, 1, state_of(1))
    put(tmp_path, 2, state_of(2))
    for name in manifests(tmp_path)[1].blocks["['frames']"][3:4]:
        path = tmp_path / blocks.FOLDER / name
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.unlink() if how == "remove" else path.write_bytes(data if how == "flip" else data[:-1])
    found = load(tmp_path, jax.eval_shape(state_of))
    assert found is not None and found.manifest.chunk == 1 and "blocks/" in found.warnings[0]
    # What is saved again repairs what was cut or removed.
    put(tmp_path, 3, state_of(2))
    if how != "flip":
        assert_loads(tmp_path, state_of(2), 3)


def test_a_kill_at_any_moment_leaves_a_whole_store(tmp_path: Path, faults: Faults) -> None:  # noqa: F811
    outcomes, at = [], 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        faults.disarm()
        for chunk in (1, 2, 3):
            put(folder, chunk, state_of(chunk), score=float(chunk))
        faults.arm(at, Killed(), sticky=True)
        try:
            put(folder, 4, state_of(4), score=4.0)
        except Killed:
            faults.disarm()
        else:
            break
        newest = max(manifest.chunk for manifest in manifests(folder))
        outcomes.append(newest)
        assert_loads(folder, state_of(newest), newest)
        put(folder, 5, state_of(5), score=5.0)
        assert files(folder) == {name for m in manifests(folder) for name in m.blocks["['frames']"]}
    assert len(outcomes) > 20 and outcomes == sorted(outcomes) and set(outcomes) == {3, 4}


def test_a_full_disk_at_any_moment_is_reported_and_cleared_up(tmp_path: Path, faults: Faults) -> None:  # noqa: F811
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        faults.disarm()
        for chunk in (1, 2, 3):
            put(folder, chunk, state_of(chunk), score=float(chunk))
        faults.arm(at, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), sticky=False)
        try:
            put(folder, 4, state_of(4), score=4.0)
        except RunError as error:
            faults.disarm()
            newest = max(manifest.chunk for manifest in manifests(folder))
            assert "No space left" in str(error) and f"chunk-{newest:08d}, is intact" in str(error)
        else:
            break
        assert_loads(folder, state_of(newest), newest)
        assert files(folder) == {name for m in manifests(folder) for name in m.blocks["['frames']"]}
    assert at > 20
