"""Shapes and types are checked in every test, and compiled programs are kept between test runs."""

from __future__ import annotations

import os
from pathlib import Path

from jaxtyping import install_import_hook

# Before anything imports rookery: annotated shapes of functions and of modules' fields are checked where they are used.
# Not in rookery.app and rookery.studies, which hold no arrays and are tested with stand-ins of other types.
PACKAGES = ("core", "ops", "nets", "memory", "mechanisms", "algorithms", "tasks", "training")
install_import_hook([f"rookery.{name}" for name in PACKAGES], "typecheck.check")

# Shared by workers, by the processes that tests start, and by the next test run.
CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "xla"
os.environ["ROOKERY_CACHE"] = str(CACHE)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
