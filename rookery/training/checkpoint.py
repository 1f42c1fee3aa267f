"""Checkpoints that survive kills, full disks and flipped bits: one safetensors file and a checksummed manifest each.

A checkpoint is a folder `chunk-<index>`. It is written under a side name, synced to the disk and renamed into place,
so a folder of that name is whole or was damaged later, which its checksums tell. Large stores (replay, memory tables)
and large best policies are kept in blocks that checkpoints share, see rookery.training.blocks: only what changed is
written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from rookery.core.errors import RunError
from rookery.training import blocks
from rookery.training.disk import SIDE, clear_side, make_folder, sync_folder, write_synced

STATE = "state.safetensors"
MANIFEST = "manifest.json"
_NAME = re.compile(r"chunk-\d{8,}")
_MARGIN = 16 << 20  # bytes left free for metrics, evaluations and their neighbours
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CODES = {
    **{np.dtype(f"f{n}"): f"F{8 * n}" for n in (2, 4, 8)},
    **{np.dtype(f"i{n}"): f"I{8 * n}" for n in (1, 2, 4, 8)},
    **{np.dtype(f"u{n}"): f"U{8 * n}" for n in (1, 2, 4, 8)},
    np.dtype(bool): "BOOL",
    np.dtype(np.complex64): "C64",
    np.dtype(jnp.bfloat16): "BF16",
}


class _DamageError(Exception):
    """What is wrong with a checkpoint."""


@dataclass(frozen=True)
class Manifest:
    """What is known of a checkpoint without reading its arrays."""

    chunk: int
    steps: tuple[int, ...]
    """Environment steps of each member of the run."""
    score: float
    """Evaluation score of this state; NaN where there is none."""
    bytes: int
    """Size of the state file."""
    sha256: str
    """Of the state file."""
    leaves: tuple[tuple[str, tuple[int, ...], str], ...]
    """Name, shape and dtype of every array."""
    layout: dict[str, Any] | None = None
    """The engine and the devices that the state was computed on; None where they do not matter."""
    blocks: dict[str, list[str]] = field(default_factory=dict)
    """Arrays that are kept in blocks, and the names of those."""
    parts: dict[str, str] | None = None
    """SHA-256 of every part of metrics, evaluations and timing before it, by name; empty for a part that was lost."""

    @property
    def name(self) -> str:
        return f"chunk-{self.chunk:08d}"


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and checked."""

    state: Any
    manifest: Manifest
    warnings: list[str]
    """Damaged checkpoints that were passed over; each names what is used instead."""


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of `tree` on the host, by key path (`.params['w'][0]`); typed random keys as their numbers."""
    leaves = {name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in _named(tree).items()}
    # order="C", not ascontiguousarray, which turns 0-d into 1-d.
    return {name: np.asarray(leaf, order="C") for name, leaf in jax.device_get(leaves).items()}


def restore(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A tree built like `like` (arrays or `ShapeDtypeStruct`s) from what `flatten` returned."""
    leaves = _named(like)
    for name in [*leaves, *arrays]:
        if name not in arrays:
            raise RunError(f"the saved state does not fit this run: it has no leaf {name}.")
        if name not in leaves:
            raise RunError(f"the saved state does not fit this run: its leaf {name} is unknown here.")
        wanted = jax.eval_shape(jax.random.key_data, leaves[name]) if _is_key(leaves[name]) else leaves[name]
        have, want = _describe(arrays[name]), _describe(wanted)
        if have != want:
            raise RunError(f"the saved state does not fit this run: leaf {name} is {have}, expected {want}.")
    return jax.tree.unflatten(jax.tree.structure(like), [_place(leaf, arrays[name]) for name, leaf in leaves.items()])


def nbytes(tree: Any) -> int:
    """Bytes of the arrays (or `ShapeDtypeStruct`s) of `tree`; a run holds at most keep + 2 checkpoints of that size."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in _named(tree).values())


def save(
    folder: Path,
    state: Any,
    *,
    chunk: int,
    steps: list[int],
    score: float,
    keep: int,
    layout: dict[str, Any] | None = None,
    stores: Any = (),
    parts: dict[str, str] | None = None,
) -> Path:
    """Write a checkpoint; once it is durable, remove all but the newest `keep` and the best. Returns its folder.

    Of `stores`, arrays of the state that change little or seldom, only what changed since the last checkpoint is
    written. What two of them have in common is written once.
    """
    arrays = flatten(state)
    stored = _large(state, stores)
    final = folder / f"chunk-{chunk:08d}"
    if final.exists():
        raise RunError(f"{final} exists already; a checkpoint is never overwritten.")
    try:
        make_folder(folder)
        clear_side(folder)
        side = folder / (SIDE + final.name)
        side.mkdir()
        written = blocks.write(folder, {name: arrays[name] for name in stored})
        size, digest = _write_arrays(side / STATE, {name: x for name, x in arrays.items() if name not in written})
        leaves = tuple((name, array.shape, array.dtype.name) for name, array in arrays.items())
        counts = tuple(int(n) for n in steps)
        manifest = Manifest(chunk, counts, float(score), size, digest, leaves, layout, written, parts)
        write_synced(side / MANIFEST, _render(manifest))
        sync_folder(side)
        side.replace(final)
        sync_folder(folder)
        _prune(folder, keep)
    except OSError as error:
        raise _save_error(folder, final.name, error) from error
    return final


def load(folder: Path, like: Any) -> Loaded | None:
    """The newest checkpoint that passes its checksums; None if there never was one. Sets damaged ones aside."""
    found = _first_valid(folder, lambda path: int(path.name.removeprefix("chunk-")))
    if found is None:
        return None
    manifest, damaged = found
    warnings = []
    for name, reason in damaged.items():
        fate = _set_aside(folder / name)
        warnings.append(
            f"checkpoint {name} in {folder} is damaged ({reason}) and {fate}; {manifest.name} is used instead."
        )
    return Loaded(restore(like, _read_arrays(folder, manifest)), manifest, warnings)


def load_best(folder: Path, like: Any) -> Loaded | None:
    """The checkpoint with the highest score, the newest of equals; None if there is none. Changes nothing on disk."""
    ranks = {manifest.name: _rank(manifest) for manifest in manifests(folder)}
    # One whose manifest cannot be read may have been the best: it comes first, so that it is reported.
    found = _first_valid(folder, lambda path: ranks.get(path.name, (math.inf, 0)))
    if found is None:
        return None
    manifest, damaged = found
    warnings = [
        f"checkpoint {name} in {folder} is damaged ({reason}); {manifest.name} is used instead."
        for name, reason in damaged.items()
    ]
    return Loaded(restore(like, _read_arrays(folder, manifest)), manifest, warnings)


def load_before(folder: Path, like: Any, chunk: int) -> Loaded | None:
    """The newest intact checkpoint of an earlier chunk; None if there is none. Changes nothing on disk."""
    for manifest in reversed(manifests(folder)):
        if manifest.chunk < chunk:
            with contextlib.suppress(_DamageError):
                _verify(folder / manifest.name)
                return Loaded(restore(like, _read_arrays(folder, manifest)), manifest, [])
    return None


def remove_after(folder: Path, chunk: int) -> None:
    """Remove the checkpoints of later chunks, which will come again. Newest first: a kill leaves no gap."""
    for manifest in reversed(manifests(folder)):
        if manifest.chunk > chunk:
            (folder / manifest.name).replace(folder / (SIDE + manifest.name))
    clear_side(folder)


def manifests(folder: Path) -> list[Manifest]:
    """Manifests of the checkpoints in `folder`, oldest first; unreadable ones are left out."""
    found = []
    for path in _checkpoints(folder):
        try:
            found.append(_read_manifest(path))
        except _DamageError:
            continue
    return sorted(found, key=lambda manifest: manifest.chunk)


def check_writable(folder: Path, needed_bytes: int) -> None:
    """Raise `RunError` unless `folder` (made if need be) can be written to and has room for `needed_bytes`."""
    try:
        make_folder(folder)
        probe = folder / f"{SIDE}probe-{os.getpid()}"
        try:
            write_synced(probe, b"probe")
        finally:
            probe.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}. Choose another --out.") from error
    needed = needed_bytes + needed_bytes // 10 + _MARGIN
    if free < needed:
        raise RunError(
            f"not enough space in {folder}: {_mib(needed)} needed, {_mib(free)} free. "
            "Free some, choose another --out, or lower --checkpoints.keep."
        )


def _large(state: Any, stores: Any) -> list[str]:
    """Names of the stores' arrays that are worth blocks of their own."""
    ids = {id(leaf) for leaf in jax.tree.leaves(stores)}
    return [name for name, leaf in _named(state).items() if id(leaf) in ids and nbytes(leaf) >= blocks.SIZE]


def _named(tree: Any) -> dict[str, Any]:
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path) or "state"
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise TypeError(f"a state holds arrays only; leaf {name} is {leaf!r}")
        # The kind of a random key is part of its name: two kinds may have data of one shape.
        name = f"{name}:{leaf.dtype}" if _is_key(leaf) else name
        if name in named:
            raise TypeError(f"two leaves of the state are named {name}")
        named[name] = leaf
    return named


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _describe(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _place(leaf: Any, array: np.ndarray) -> Any:
    """`array` where and as what `leaf` lives."""
    if _is_key(leaf):
        return jax.device_put(jax.random.wrap_key_data(jnp.array(array), dtype=leaf.dtype), _sharding(leaf))
    # Numpy stays numpy: on a device, 64-bit counters of host tasks would lose their upper half.
    if isinstance(leaf, np.ndarray | np.generic) or jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
        return array.copy()
    # jnp.array copies; device_put alone shares memory with numpy on a CPU, and such a state cannot be donated.
    return jax.device_put(jnp.array(array), _sharding(leaf))


def _sharding(leaf: Any) -> Any:
    return leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) or leaf.committed else None


def _on_disk(array: np.ndarray) -> np.ndarray:
    """`array`, or its bytes on a last axis where safetensors has no name for its dtype."""
    return array if array.dtype in _CODES else array.reshape(*array.shape, 1).view(np.uint8)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[int, str]:
    """Stream a safetensors file to the disk; returns its size and SHA-256, taken from memory rather than read back."""
    # Wide items first keep every array aligned.
    items = sorted(((name, _on_disk(array)) for name, array in arrays.items()), key=lambda item: -item[1].itemsize)
    header, end = {}, 0
    for name, array in items:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _CODES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        body = (array.reshape(-1).view(np.uint8).data for _, array in items)
        for data in (len(text).to_bytes(8, "little"), text, *body):
            digest.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + end, digest.hexdigest()


def _read_arrays(folder: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    arrays = load_file(folder / manifest.name / STATE)
    arrays |= {name: blocks.read(folder, parts) for name, parts in manifest.blocks.items()}
    return {name: arrays[name].view(jnp.dtype(dtype)).reshape(shape) for name, shape, dtype in manifest.leaves}


def _render(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    fields["score"] = manifest.score if math.isfinite(manifest.score) else None  # JSON has no NaN
    return _seal(fields)


def _seal(fields: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return json.dumps({"manifest": fields, "manifest_sha256": digest}, sort_keys=True).encode()


def _read_manifest(path: Path) -> Manifest:
    try:
        text = (path / MANIFEST).read_bytes()
        fields = json.loads(text)["manifest"]
        if _seal(fields) != text:
            raise _DamageError(f"{MANIFEST}: checksum does not match")
        leaves = tuple((name, tuple(shape), dtype) for name, shape, dtype in fields["leaves"])
        score = math.nan if fields["score"] is None else fields["score"]
        return Manifest(**{**fields, "steps": tuple(fields["steps"]), "leaves": leaves, "score": score})
    except OSError as error:
        raise _DamageError(f"{MANIFEST}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise _DamageError(f"{MANIFEST}: not a manifest") from error


def _verify(path: Path) -> Manifest:
    """The manifest of a checkpoint whose bytes are the ones that were written."""
    manifest = _read_manifest(path)
    if manifest.name != path.name:
        raise _DamageError(f"{MANIFEST}: belongs to {manifest.name}")
    try:
        size = (path / STATE).stat().st_size
        if size != manifest.bytes:
            raise _DamageError(f"{STATE}: {size} bytes instead of {manifest.bytes}")
        with (path / STATE).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest.sha256:
                raise _DamageError(f"{STATE}: checksum does not match")
    except OSError as error:
        raise _DamageError(f"{STATE}: {error.strerror or error}") from error
    wrong = blocks.verify(path.parent, manifest.blocks)
    if wrong:
        raise _DamageError(wrong)
    return manifest


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("chunk-*") if _NAME.fullmatch(path.name)]


def _first_valid(folder: Path, rank: Callable[[Path], Any]) -> tuple[Manifest, dict[str, str]] | None:
    """The valid checkpoint of highest rank, and what is wrong with those above it."""
    candidates = sorted(_checkpoints(folder), key=rank, reverse=True)
    damaged: dict[str, str] = {}
    for path in candidates:
        try:
            return _verify(path), damaged
        except _DamageError as reason:
            if path.exists():  # otherwise a training process has just pruned it
                damaged[path.name] = str(reason)
    if candidates and not damaged:
        return _first_valid(folder, rank)
    aside = sorted(path.name for path in folder.glob("chunk-*.corrupt*"))
    if damaged or aside:
        found = [*(f"{name} ({reason})" for name, reason in damaged.items()), *aside]
        raise RunError(
            f"no usable checkpoint in {folder}; damaged: {', '.join(found)}. "
            f"Copy the folder back from elsewhere, or remove it to train from the beginning."
        )
    return None


def _set_aside(path: Path) -> str:
    aside = path.with_name(path.name + ".corrupt")
    while aside.exists():
        aside = aside.with_name(aside.name + "+")
    try:
        path.replace(aside)
    except OSError as error:
        return f"could not be set aside ({error.strerror or error})"
    return f"was set aside as {aside.name}"


def _rank(manifest: Manifest) -> tuple[float, int]:
    return (-math.inf if math.isnan(manifest.score) else manifest.score, manifest.chunk)


def _prune(folder: Path, keep: int) -> None:
    known = manifests(folder)
    kept = {*(manifest.name for manifest in known[-max(keep, 1) :]), max(known, key=_rank).name}
    for manifest in known:
        if manifest.name not in kept:
            # Renamed first, so that a kill while removing leaves no checkpoint that looks damaged.
            (folder / manifest.name).replace(folder / (SIDE + manifest.name))
    clear_side(folder)
    _prune_blocks(folder)


def _prune_blocks(folder: Path) -> None:
    """Remove blocks that no checkpoint has, nor one that was set aside."""
    kept: set[str] = set()
    for path in folder.glob("chunk-*"):
        with contextlib.suppress(_DamageError):  # without a manifest there is no way back to its blocks
            kept.update(*_read_manifest(path).blocks.values())
    blocks.prune(folder, kept)


def _save_error(folder: Path, name: str, error: OSError) -> RunError:
    with contextlib.suppress(OSError):  # the next save clears what stays
        clear_side(folder)
        _prune_blocks(folder)
    known = manifests(folder)
    intact = f"The last checkpoint, {known[-1].name}, is intact." if known else "There is no earlier checkpoint."
    advice = "Free some space" if error.errno in _FULL else "Make the folder writable"
    return RunError(
        f"cannot write checkpoint {name} in {folder}: {error.strerror or error}. {intact} "
        f"{advice}, then give the same command to resume."
    )


def _mib(n: int) -> str:
    return f"{n / (1 << 20):,.0f} MiB"
