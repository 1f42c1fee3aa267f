"""Files of the user's own that register tasks, algorithms, networks or mechanisms (`--import FILE.py`)."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from rookery.core.errors import ConfigError

IMPORTED: list[Path] = []
"""Files that were imported by path in this process, in order."""


def import_file(path: Path | str) -> None:
    """Import a Python file as the module of its name; files beside it can be imported by it. Once is enough."""
    file = Path(path).resolve()
    if any(_file_of(module) == file for module in list(sys.modules.values())):
        _note(file)
        return
    if file.suffix != ".py" or not file.is_file():
        raise ConfigError(f"--import {path}: expected a Python file (.py) that exists.")
    name = file.stem
    if not name.isidentifier():
        raise ConfigError(f"--import {path}: '{name}' cannot be the name of a module. Rename the file.")
    if name in sys.modules or _is_elsewhere(name, file):
        raise ConfigError(f"--import {path}: there is another module named '{name}'. Rename the file.")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        del sys.modules[name]
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"--import {path} failed at {where.filename}:{where.lineno}: {type(error).__name__}: {error}"
        ) from error
    _note(file)


def import_files(paths: Iterable[Path | str]) -> None:
    """Import several files, in order."""
    for path in paths:
        import_file(path)


def module_file(cls: type) -> Path | None:
    """The file to import so that a class is known; None for Rookery's own, a script's and a package's classes."""
    name = cls.__module__
    if name == "__main__" or "." in name or name not in sys.modules:
        return None
    return _file_of(sys.modules[name])


def _is_elsewhere(name: str, file: Path) -> bool:
    """Whether `import name` would find another file."""
    found = importlib.util.find_spec(name)
    return found is not None and (found.origin is None or Path(found.origin).resolve() != file)


def _file_of(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _note(file: Path) -> None:
    if file not in IMPORTED:
        IMPORTED.append(file)
