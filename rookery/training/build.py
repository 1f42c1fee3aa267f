"""From a config to executables: which devices they are for, and what XLA is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
from jaxtyping import Array

from rookery.training.config import RunConfig
from rookery.training.devices import claim_devices, placed, shardings, spread
from rookery.training.loop import ChunkReport, Program, RunState

Chunk = Callable[[RunState], tuple[RunState, ChunkReport]]
Evaluate = Callable[[RunState], tuple[RunState, dict[str, Array]]]

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


@dataclass(frozen=True)
class Build:
    """A run's program on its devices, and how to compile what it does."""

    program: Program
    shapes: RunState
    """Of the run's state, each with the devices that it is spread over."""

    def init(self) -> RunState:
        """A fresh state, where the executables want it."""
        return jit(self.program.init, once=True, out_shardings=shardings(self.shapes))()

    def chunk(self, iterations: int = 0) -> Chunk:
        """The executable of so many iterations (0: as many as training takes at once); it uses up its state."""
        count = iterations or self.program.iterations_per_chunk()
        return self._compiled(partial(self.program.chunk, iterations=count))

    def evaluate(self) -> Evaluate:
        """The executable of an evaluation; it uses up its state."""
        return self._compiled(self.program.evaluate)

    def _compiled(self, f: Callable[[RunState], tuple[RunState, Any]]) -> Any:
        # The state must come out where the next call wants it: left to itself, XLA does not split arrays of size 0.
        return jit(f, donate_argnums=0, out_shardings=(shardings(self.shapes), None)).lower(self.shapes).compile()


def build(config: RunConfig) -> Build:
    """Claim the devices of a run and lay its program out on them."""
    claim_devices(config)
    program = spread(config)
    return Build(program, placed(program))
