"""From a config to executables: which devices they are for, and what XLA is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, ParamSpec, TypeVar

import jax
from jaxtyping import Array

from rookery.training.config import RunConfig
from rookery.training.devices import claim_devices, placed, shardings, spread
from rookery.training.loop import ChunkReport, Program, RunState

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
_COMPILERS = ThreadPoolExecutor(thread_name_prefix="compiler")

FAST = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Without YNNPACK: calling it costs more than small sums and products do (docs/performance.md has figures)."""
ONCE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""For programs that run once: compiling them takes longer than running them slowly."""


def jit(f: Callable[..., Any], *, once: bool = False, **options: Any) -> Any:
    """`jax.jit`, with what XLA should know about programs like ours."""
    return jax.jit(f, compiler_options=_accepted(once), **options)


@cache
def _accepted(once: bool) -> dict[str, Any]:
    """Options that this version of XLA takes: names come and go, and none of them changes what is computed."""
    if jax.default_backend() != "cpu":
        return {}
    return {name: value for name, value in {**FAST, **(ONCE if once else {})}.items() if _takes(name, value)}


def _takes(name: str, value: Any) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class Executable(Generic[P, R]):
    """A traced function that is being compiled: beside other work, such as tracing and compiling the next one."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._compiled = _COMPILERS.submit(lowered.compile)

    def wait(self) -> None:
        """Return when it is compiled."""
        self._compiled.result()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._compiled.result()(*args, **kwargs)


Init = Executable[[], RunState]
Chunk = Executable[[RunState], tuple[RunState, ChunkReport]]
Evaluate = Executable[[RunState], tuple[RunState, dict[str, Array]]]


@dataclass(frozen=True)
class Build:
    """A run's program on its devices, and how to compile what it does.

    Ask for the executables first and use them then: that way they are compiled beside each other.
    """

    program: Program
    shapes: RunState
    """Of the run's state, each with the devices that it is spread over."""

    def init(self) -> Init:
        """Makes a fresh state, where the others want it."""
        return Executable(jit(self.program.init, once=True, out_shardings=shardings(self.shapes)).lower())

    def chunk(self, iterations: int = 0) -> Chunk:
        """So many iterations (0: as many as training takes at once); uses up its state."""
        count = iterations or self.program.iterations_per_chunk()
        return self._of_state(partial(self.program.chunk, iterations=count))

    def evaluate(self) -> Evaluate:
        """An evaluation; uses up its state."""
        return self._of_state(self.program.evaluate)

    def _of_state(self, f: Callable[[RunState], tuple[RunState, Any]]) -> Executable[[RunState], Any]:
        # The state must come out where the next call wants it: left to itself, XLA does not split arrays of size 0.
        out = (shardings(self.shapes), None)
        return Executable(jit(f, donate_argnums=0, out_shardings=out).lower(self.shapes))


def build(config: RunConfig) -> Build:
    """Claim the devices of a run and lay its program out on them."""
    claim_devices(config)
    program = spread(config)
    return Build(program, placed(program))
