"""Files that are on the disk when they have their name: whatever is written here survives a kill or a power cut."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

SIDE = ".tmp-"  # begins the name of everything that is not in place yet


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents durably; no error if it is there."""
    if not folder.is_dir():
        if folder.parent != folder:
            make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and renames are journalled
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot sync folders
                raise
        finally:
            os.close(handle)


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes | memoryview, *, sync_name: bool = True) -> None:
    """Make or replace a file so that readers, and the next start after a kill, see the old content or the new.

    Without `sync_name`, `sync_folder` must follow before anything relies on the name.
    """
    # A name of its own for each writer: two processes may make the same new run at once.
    side = path.with_name(f"{SIDE}{secrets.token_hex(4)}-{path.name}")
    try:
        write_synced(side, data)
        side.replace(path)
    except OSError:
        side.unlink(missing_ok=True)
        raise
    if sync_name:
        sync_folder(path.parent)


def clear_side(folder: Path) -> None:
    """Remove what an interrupted write left in `folder`."""
    for path in folder.glob(SIDE + "*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
