"""The seam between a run and whatever moves its environments: everything that trains, evaluates, profiles or checks a
run talks to an `Engine`. `open_engine` chooses it by the task, and claims devices before JAX is used for anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array

from rookery.core.host import HostTask
from rookery.training.config import RunConfig
from rookery.training.state import ChunkReport, Episodes, Policies, RunState

LONGEST_LOOK = 5.0
"""Seconds after which a profile cuts the episodes of a host task's evaluation: a game may take minutes."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one piece of an iteration, all members together; the best of several calls."""

    name: str
    wall: float
    cpu: float


@dataclass(frozen=True)
class Layout:
    """What a run's numbers depend on besides its config. A run is resumed on the layout that it was begun on."""

    engine: str
    """compiled, host or asynchronous."""
    platform: str
    """JAX's name for the kind of device: cpu, gpu, tpu."""
    members: int
    """Groups of members with a device of their own."""
    shards: int
    """Shards with a device of their own; 1 if all share one."""

    @property
    def devices(self) -> int:
        return self.members * self.shards


@runtime_checkable
class Engine(Protocol):
    """Moves the state of one run. A call that takes a `RunState` and returns one uses up the one it was given."""

    config: RunConfig
    layout: Layout
    notes: tuple[str, ...]
    """What the user should know about how this run is computed; `prepare` and `restore` may add to it."""
    shapes: RunState
    """What a checkpoint holds."""

    def prepare(self, *, fresh: bool, iterations: int = 0) -> None:
        """Compile or open what training needs (`fresh`: from the beginning), so that the calls below start at once."""
        ...

    def init(self) -> RunState:
        """A fresh state."""
        ...

    def restore(self, state: RunState) -> RunState:
        """A state that was read from a checkpoint, ready to go on; `notes` and `record` say what that took."""
        ...

    def chunk(self, state: RunState, iterations: int = 0) -> tuple[RunState, ChunkReport]:
        """Iterations of every member; 0: as many as training takes between two rows of metrics."""
        ...

    def evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        """Episodes of every member; the state keeps each member's best policy."""
        ...

    def policies(self, state: RunState) -> Policies:
        """Everything that acting needs of the state."""
        ...

    def play(self, policies: Policies, keys: Array) -> dict[str, Episodes]:
        """`evaluation.episodes` episodes of every member's last and best policy.

        Both play the same start states, drawn from the member's entry of `keys` [member, 2].
        """
        ...

    def profile(self) -> list[Timing]:
        """Where the time of an iteration goes: the whole first, then environment, policy, update and evaluation."""
        ...

    def record(self) -> dict[str, Any]:
        """Facts for the run's record: devices, workers, what was measured to choose them."""
        ...

    def close(self) -> None:
        """Stop what the engine started."""
        ...


def claim(config: RunConfig, layout: Layout | None = None) -> None:
    """Claim the devices of a run. JAX must not have been used for anything yet, or it keeps the devices that it has."""
    from rookery.training.compiled.devices import claim_devices

    if not is_host(config):
        claim_devices(layout.devices if layout else config.algo.collect.shards)


def open_engine(config: RunConfig, layout: Layout | None = None) -> Engine:
    """The engine of a run. `layout` is the one that the run was begun on: raises `RunError` if it cannot be had."""
    claim(config, layout)
    if is_asynchronous(config):
        from rookery.training.asynchronous.engine import AsyncEngine

        return AsyncEngine(config, layout)
    if is_host(config):
        from rookery.training.host.engine import HostEngine

        return HostEngine(config, layout)
    from rookery.training.compiled.engine import CompiledEngine

    return CompiledEngine(config, layout)


def trace(config: RunConfig) -> None:
    """Trace everything that a run computes, abstractly: nothing is compiled or run."""
    if is_asynchronous(config):
        from rookery.training.asynchronous.engine import trace_async

        trace_async(config)
    elif is_host(config):
        from rookery.training.host.engine import trace_host

        trace_host(config)
    else:
        from rookery.training.compiled.program import trace_program

        trace_program(config)


def is_host(config: RunConfig) -> bool:
    """Whether the task's environments live outside XLA."""
    return isinstance(config.task, HostTask)


def is_asynchronous(config: RunConfig) -> bool:
    """Whether learners do not wait for each other (host tasks only: `check` refuses the others)."""
    return is_host(config) and config.algo.collect.learners > 0
