"""Shapes and types are checked in every test, and compiled programs are kept between test runs."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

# Before anything imports rookery: annotated shapes of functions and of modules' fields are checked where they are used.
# Not in rookery.app and rookery.studies, which hold no arrays and are tested with stand-ins of other types.
PACKAGES = ("core", "ops", "nets", "memory", "mechanisms", "algorithms", "tasks", "training")
install_import_hook([f"rookery.{name}" for name in PACKAGES], "typecheck.check")

# Shared by workers, by the processes that tests start, and by the next test run.
CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "xla"
os.environ["ROOKERY_CACHE"] = str(CACHE)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"  # single operations are compiled faster than kept

# Nearly every program here runs a few times: compiling it fast matters, running it fast does not. The processes that
# tests start compile alike; what trains for long or looks at buffers asks for it (AS_TRAINED). Fusion emitters make
# compiling take three times as long, and pieces of a program are only of use to threads that compile them.
HASTY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
HASTY += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{HASTY} {os.environ.get('XLA_FLAGS', '')}".strip()
# As many processes test as there are cores: more threads would only wait for each other.
os.environ.setdefault("NPROC", "1")

# Traced programs are millions of objects that live as long as a test: looking for garbage among them every 700 new ones
# takes a tenth of the time.
gc.set_threshold(100_000, 50, 100)

# What starts processes, trains, or compiles many programs; `make check` leaves it out.
SLOW = ("algorithms", "contracts", "e2e", "mechanisms", "training/host", "app/test_imports.py")
SLOW += ("docs/test_extending.py", "memory/test_dictionary.py", "memory/test_graph_memory.py", "nets/test_agent_net.py")
SLOW += ("nets/test_transformer.py", "studies/test_executors.py", "studies/test_layout.py", "studies/test_pictures.py")
SLOW += ("studies/test_study_cli.py", "tasks/host/test_host_real.py", "tasks/test_contract.py", "tasks/test_mpe.py")
SLOW += ("training/test_compiled.py", "training/test_logs.py", "training/test_reads.py", "training/test_resume.py")
SLOW += ("training/test_shards.py", "training/test_train.py")


def shared_contexts(make: Callable[[], Any], programs: int) -> Callable[[], Any]:
    """Contexts that serve so many programs each: they keep what they have seen. Threads may share them."""
    contexts, turns = [], itertools.count()

    def context() -> Any:
        if next(turns) % programs == 0:
            contexts[:] = [make()]
        return contexts[0]

    return context


def pytest_configure() -> None:
    """Most programs here are single operations on new shapes: making an MLIR context for each would take longer than
    the rest of lowering it. JAX reads the variables above when it is imported."""
    from jax._src.interpreters import mlir

    mlir.make_ir_context = shared_contexts(mlir.make_ir_context, programs=200)


@pytest.fixture
def as_trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines compile without haste."""
    from compiled import AS_TRAINED

    from rookery.training.compiled import compiler

    monkeypatch.setattr(compiler, "FAST", {**compiler.FAST, **AS_TRAINED})
    compiler._accepted.cache_clear()
    yield
    compiler._accepted.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests by where they are, and begin with them: a worker takes whole files in this order, so that short
    ones fill what is left at the end."""
    here = Path(__file__).resolve().parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(SLOW):
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
