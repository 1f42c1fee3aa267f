"""`jax.jit` with our compiler options, and executables that are compiled in threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import jax

_COMPILERS = ThreadPoolExecutor(thread_name_prefix="compiler")

FAST = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Without YNNPACK: calling it costs more than small sums and products do (docs/notes/speed.md)."""
ONCE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""For programs that run once: compiling them takes longer than running them slowly."""


def jit(f: Callable[..., Any], *, once: bool = False, **options: Any) -> Any:
    """`jax.jit` with our CPU compiler options."""
    return jax.jit(f, compiler_options=_accepted(once), **options)


@cache
def _accepted(once: bool) -> dict[str, Any]:
    """The options that this version of XLA accepts: names come and go, and none of them changes results."""
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for name, value in {**FAST, **(ONCE if once else {})}.items() if _takes(name, value)}


def _takes(name: str, value: Any) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


_LEAST = 0.3  # seconds of compiling that make a program worth keeping


class Executable:
    """A traced function that is compiled in a thread, while the next one is being traced."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._compiled = _COMPILERS.submit(lowered.compile)

    def wait(self) -> None:
        """Return when it is compiled."""
        self._compiled.result()

    def memory_analysis(self) -> Any:
        """XLA's memory figures."""
        return self._compiled.result().memory_analysis()

    def __call__(self, *args: Any) -> Any:
        return self._compiled.result()(*args)


def use_compilation_cache() -> None:
    """Keep compiled programs on disk: ROOKERY_CACHE names the folder, `off` turns it off."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rookery" / "xla"
    folder = os.environ.get("ROOKERY_CACHE", str(default))
    if folder != "off":
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST)


def cache_variables() -> dict[str, str]:
    """Environment variables with which a child process uses the same cache as this one."""
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    least = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), least: str(_LEAST)} if folder else {}
