"""The whole of a run as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from rookery.core.config import OfFamily
from rookery.core.ranges import Count, NonNegative, Positive

MAX_STEPS = 4_000_000_000  # the step counter has 32 bits

if TYPE_CHECKING:
    from rookery.core.host import HostTask
    from rookery.core.types import Algorithm, Task

    AnyAlgorithm = Algorithm[Any]
    AnyTask = Task[Any] | HostTask
else:  # these import JAX, which the help of the command line must not wait for
    AnyAlgorithm = AnyTask = Any


@dataclass(frozen=True)
class Evaluation:
    """Evaluation, on environments of its own."""

    points: Count = 20
    """Evaluations over the run, evenly spaced, besides the one before training."""
    rows: Count = 5
    """Least metric rows, and chances to write a checkpoint, from one evaluation to the next."""
    episodes: Count = 32
    """Episodes of each of them."""
    final: Count = 320
    """Episodes of the absolute evaluation after training, of each seed's best policy and of its last."""
    sampled: bool = False
    """Act as in training (sampled actions, exploration) instead of greedily. A stochastic policy may need its
    randomness: where starts hardly differ, its most likely actions can be stuck in a loop."""


@dataclass(frozen=True)
class Checkpoints:
    """What is kept of a run's states."""

    keep: Count = 2
    """Newest checkpoints kept; the best one by evaluation score is kept besides."""
    seconds: NonNegative = 30.0
    """Least time between two checkpoints. What a kill loses is trained again, bit for bit."""


@dataclass(frozen=True)
class Workers:
    """Processes that step environments which live outside XLA. Results do not depend on their number."""

    count: Annotated[int, Ge(-1)] = -1
    """Worker processes; 0: step in the training process; -1: whichever is faster, measured at the start."""
    timeout: Positive = 60.0
    """Seconds that one step or reset of a worker's environments may take before it counts as hung."""
    on_failure: Literal["stop", "restart"] = "stop"
    """What a worker that fails does to the run. restart: its environments begin new episodes in a new worker."""
    overlap: bool = False
    """Step one half of each seed's environments while the policy acts in the other half. Learning waits for both."""


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
    algo: Annotated[AnyAlgorithm, OfFamily]
    """An algorithm config (one of the classes in ALGORITHMS)."""
    task: Annotated[AnyTask, OfFamily]
    """A task config (one of the classes in TASK_FAMILIES)."""
    steps: Annotated[int, Ge(1), Le(MAX_STEPS)] = 1_000_000
    """Environment steps (joint transitions) of each seed."""
    seeds: tuple[int, ...] = (0,)
    """Seeds trained together; the group is part of the run's identity."""
    sweep: tuple[Sweep, ...] = ()
    """Members of the run are the product of these values, times the seeds."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    workers: Workers = field(default_factory=Workers)
