"""Which files of the user's own a run needs. Its folder keeps a note of them in imports.json."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from rookery.core.config import from_json, nested
from rookery.core.errors import ConfigError
from rookery.core.imports import IMPORTED, import_file, module_file
from rookery.training.config import RunConfig
from rookery.training.folder import RunFolder, read_json, write_json, writing

NOTE = "imports.json"


def record(folder: RunFolder, config: RunConfig) -> list[str]:
    """Note the files that this process imported for the run; returns what has changed since the run was begun."""
    known = {entry["file"]: entry["sha256"] for entry in _entries(folder)}
    used = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in _used(config) if file.is_file()}
    if not known and used:
        with writing(folder.path / NOTE):
            write_json(folder.path / NOTE, [{"file": file, "sha256": digest} for file, digest in used.items()])
    return [
        f"warning: {file} has changed since the run was begun; its numbers may be of two versions."
        for file, digest in used.items()
        if known.get(file, digest) != digest
    ]


def open_config(folder: RunFolder) -> RunConfig:
    """The config of a run; files of the user's own that it needs are imported first."""
    missing = load(folder)
    try:
        return from_json(RunConfig, folder.config())
    except ConfigError as error:
        if not missing:
            raise
        were = ", ".join(missing)
        raise ConfigError(f"{error} The run was begun with --import {were}, which is not there any more.") from error


def load(folder: RunFolder) -> list[str]:
    """Import the files that the folder notes; returns those that are not there."""
    missing = []
    for entry in _entries(folder):
        file = Path(entry["file"])
        if file.stem in sys.modules:
            continue  # imported already, perhaps from where it is now
        if file.is_file():
            import_file(file)
        else:
            missing.append(str(file))
    return missing


def _used(config: RunConfig) -> list[Path]:
    """The files of all classes in a config, and those that were imported by path."""
    values: list[Any] = [config.algo, config.task, *nested(config.algo).values(), *nested(config.task).values()]
    files = [module_file(type(value)) for value in values]
    return list(dict.fromkeys([*IMPORTED, *(file for file in files if file)]))


def _entries(folder: RunFolder) -> list[dict[str, str]]:
    return read_json(folder.path / NOTE) if (folder.path / NOTE).exists() else []
