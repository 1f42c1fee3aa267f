"""Large arrays in blocks of a fixed size, each in a file that is named by its content.

A block that did not change since the last checkpoint has a file already, so it is not written again. Nothing needs to
be known of how an array is filled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from rookery.training.disk import clear_side, make_folder, sync_folder, write_atomic

SIZE = 4 << 20
"""Bytes of a block."""
FOLDER = "blocks"


def write(folder: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    """Write what is new of the arrays; returns the names of the blocks of each."""
    if not arrays:
        return {}
    home = folder / FOLDER
    make_folder(home)
    clear_side(home)
    known = {path.name: path.stat().st_size for path in home.iterdir()}
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter
        for name, array in arrays.items():
            data = array.reshape(-1).view(np.uint8)
            parts = [data[at : at + SIZE] for at in range(0, data.size, SIZE)]
            found[name] = list(pool.map(_name, parts))
            for block, part in zip(found[name], parts, strict=True):
                if known.get(block) != part.size:
                    write_atomic(home / block, part.data, sync_name=False)
                    known[block] = part.size
    sync_folder(home)
    return found


def read(folder: Path, names: Iterable[str]) -> np.ndarray:
    """The bytes of an array."""
    paths = [folder / FOLDER / name for name in names]
    sizes = [path.stat().st_size for path in paths]
    data, at = np.empty(sum(sizes), np.uint8), 0
    for path, size in zip(paths, sizes, strict=True):
        with path.open("rb") as file:
            file.readinto(data[at : at + size].data)
        at += size
    return data


def verify(folder: Path, arrays: Mapping[str, Iterable[str]]) -> str:
    """What is wrong with the first block that is not what was written; empty if all are well."""
    with ThreadPoolExecutor() as pool:
        names = dict.fromkeys(name for names in arrays.values() for name in names)
        return next(filter(None, pool.map(lambda name: _wrong(folder / FOLDER / name), names)), "")


def prune(folder: Path, kept: set[str]) -> None:
    """Remove all blocks but these."""
    home = folder / FOLDER
    if home.is_dir():
        for path in home.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _wrong(path: Path) -> str:
    try:
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == path.name
    except OSError as error:
        return f"{FOLDER}/{path.name}: {error.strerror or error}"
    return "" if same else f"{FOLDER}/{path.name}: checksum does not match"


def _name(part: np.ndarray) -> str:
    return hashlib.sha256(part.data).hexdigest()
