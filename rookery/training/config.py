"""The whole of a run as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from rookery.core.config import OfFamily
from rookery.core.host import HostTask
from rookery.core.types import Algorithm, Task

AnyTask = Task[Any] | HostTask


@dataclass(frozen=True)
class Evaluation:
    """Greedy evaluation, on environments of its own."""

    points: int = 20
    """Evaluations over the run, evenly spaced, besides the one before training."""
    rows: int = 5
    """Least metric rows, and chances to write a checkpoint, from one evaluation to the next."""
    episodes: int = 32
    """Episodes of each of them."""
    final: int = 320
    """Episodes of the absolute evaluation after training, of each seed's best policy and of its last."""


@dataclass(frozen=True)
class Checkpoints:
    """What is kept of a run's states."""

    keep: int = 2
    """Newest checkpoints kept; the best one by evaluation score is kept besides."""
    seconds: float = 30.0
    """Least time between two checkpoints. What a kill loses is trained again, bit for bit."""


@dataclass(frozen=True)
class Sweep:
    """Values of one config entry, trained side by side in one program."""

    path: str
    """Where the entry is, for example algo.optimiser.lr."""
    values: tuple[float, ...]


@dataclass(frozen=True)
class RunConfig:
    """One algorithm on one task for a group of seeds. Equal configs are the same run."""

    preset: str
    """The preset that `algo` began from."""
    task_name: str
    """The catalog name that `task` began from."""
    algo: Annotated[Algorithm[Any], OfFamily]
    """An algorithm config (one of the classes in ALGORITHMS)."""
    task: Annotated[AnyTask, OfFamily]
    """A task config (one of the classes in TASK_FAMILIES)."""
    steps: int = 1_000_000
    """Environment steps (joint transitions) of each seed."""
    seeds: tuple[int, ...] = (0,)
    """Seeds trained together; the group is part of the run's identity."""
    sweep: tuple[Sweep, ...] = ()
    """Members of the run are the product of these values, times the seeds."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
