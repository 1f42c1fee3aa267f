"""Task, policy and learning in one compiled program."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import jax
from jaxtyping import Array

from rookery.training.compiled.compiler import Executable, jit
from rookery.training.compiled.devices import grid_layout, placed, shardings, spread
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig
from rookery.training.engine import Layout, Timing
from rookery.training.state import ChunkReport, Episodes, Policies, RunState, iterations_per_chunk


class CompiledEngine:
    """See `Engine`. Executables are compiled in threads, so `prepare` compiles all of them side by side."""

    def __init__(self, config: RunConfig, begun: Layout | None = None) -> None:
        self.config = config
        self.layout = grid_layout(config, begun)
        self.program: Program = spread(config, self.layout)
        self.shapes: RunState = placed(self.program)
        self._chunks: dict[int, Executable] = {}
        wanted = config.algo.collect.shards
        shared = wanted > self.layout.shards
        self.notes = (_shared_device(wanted),) if shared else ()

    def prepare(self, *, fresh: bool, iterations: int = 0) -> None:
        """Trace and compile everything that training calls."""
        wanted = [self._init] if fresh else []
        for executable in [*wanted, self._chunk(iterations), self._evaluate]:
            executable.wait()

    def init(self) -> RunState:
        """A fresh state."""
        return self._init()

    def restore(self, state: RunState) -> RunState:
        """The state itself."""
        return state

    def chunk(self, state: RunState, iterations: int = 0) -> tuple[RunState, ChunkReport]:
        """Iterations of every member; 0: as many as training takes at once."""
        return self._chunk(iterations)(state)

    def evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        """Episodes of every member; the state keeps each member's best policy."""
        return self._evaluate(state)

    def policies(self, state: RunState) -> Policies:
        """Everything that acting needs of the state."""
        return jax.jit(self.program.policies)(state)

    def play(self, policies: Policies, keys: Array) -> dict[str, Episodes]:
        """Episodes of every member's last and best policy."""
        return self._play(policies, keys)

    def profile(self) -> list[Timing]:
        """Seconds of the pieces of one iteration."""
        from rookery.training.compiled.profile import profile

        return profile(self.config)

    def record(self) -> dict[str, Any]:
        """The devices that the run is spread over."""
        used = jax.devices()[: self.layout.devices]
        return {"devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in used]}

    def close(self) -> None:
        """Nothing to stop."""

    @cached_property
    def _init(self) -> Executable:
        return Executable(jit(self.program.init, once=True, out_shardings=shardings(self.shapes)).lower())

    @cached_property
    def _evaluate(self) -> Executable:
        return self._of_state(self.program.evaluate)

    @cached_property
    def _play(self) -> Any:
        return jit(Program(self.config).play)

    def _chunk(self, iterations: int) -> Executable:
        count = iterations or iterations_per_chunk(self.config)
        if count not in self._chunks:
            self._chunks[count] = self._of_state(partial(self.program.chunk, iterations=count))
        return self._chunks[count]

    def _of_state(self, f: Any) -> Executable:
        # The state must come out where the next call wants it: by itself, XLA does not shard arrays of size 0.
        out = (shardings(self.shapes), None)
        return Executable(jit(f, donate_argnums=0, out_shardings=out).lower(self.shapes))


def _shared_device(wanted: int) -> str:
    return (
        f"{wanted} shards share one device, because JAX was already in use in this process or has no more devices. "
        "Results are valid but slower, and the run can only be resumed on one device."
    )
