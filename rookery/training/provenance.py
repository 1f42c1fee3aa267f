"""What made a run: packages, source, machine, settings."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

import rookery
from rookery.core.errors import RunError
from rookery.training.folder import read_json, write_json, writing

_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "jaxmarl", "numpy", "polars")
# Set by flag or by code, these change numbers, and no environment variable need show it.
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")
# What decides how many threads compute; without NPROC, XLA takes one for each of `cores`.
_THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
_ENVIRONMENT = ("XLA_FLAGS", *_THREADS)
_SOURCE = Path(__file__).resolve().parents[1]


def usable_cores() -> int:
    """Cores that this process may compute on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def collect() -> dict[str, Any]:
    """Machine, packages and settings, as JSON. What cannot be found out is None."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": {"rookery": getattr(rookery, "__version__", None)} | {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": platform.platform(),
        "source": _source(_SOURCE),
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "cores": usable_cores(),
        "memory_bytes": _memory(),
        "platform": jax.default_backend(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("JAX_") or k in _ENVIRONMENT},
        "settings": {name: getattr(jax.config, name, None) for name in _SETTINGS},
    }


def record(folder: Path, engine: dict[str, Any]) -> None:
    """Add an entry for this start to `folder`/provenance.json, with the engine's own facts (devices, workers)."""
    file = folder / "provenance.json"
    with writing(file):
        write_json(file, [*_entries(file), collect() | engine])


def amend(folder: Path, engine: dict[str, Any]) -> None:
    """Add what an engine has found out since it was opened to the newest entry."""
    file = folder / "provenance.json"
    entries = _entries(file)
    if entries and entries[-1] | engine != entries[-1]:
        with writing(file):
            write_json(file, [*entries[:-1], entries[-1] | engine])


def _entries(file: Path) -> list[Any]:
    if not file.exists():
        return []
    try:
        entries = read_json(file)
    except RunError:
        entries = None
    if isinstance(entries, list):
        return entries
    # Worth keeping for a human, but no reason not to train.
    file.replace(file.with_name(file.name + ".corrupt"))
    return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _source(package: Path) -> dict[str, Any] | None:
    """Commit of the checkout that `package` is the top of, and whether its files differ from it; None elsewhere."""
    top = _git(package, "rev-parse", "--show-toplevel")
    # An installed package may lie in an environment inside some other project's checkout.
    if top is None or Path(top).resolve() != package.parent:
        return None
    changes = _git(package, "status", "--porcelain", "--", ".")
    return {"commit": _git(package, "rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or None)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
