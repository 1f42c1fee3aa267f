"""When a run is evaluated, where it will end, and what the user should know of that before it starts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rookery.core import config as configs
from rookery.core.types import Anneals
from rookery.training.config import RunConfig
from rookery.training.state import iterations_per_chunk, steps_per_iteration


def evaluations_due(config: RunConfig, chunk: int, steps: int) -> int:
    """Evaluations, besides the first, that belong before the end of a chunk; the last one follows the last chunk.

    `steps` are those of the slowest member. Evaluation k of n is made after the chunk nearest to k/n of the run.
    """
    points = config.evaluation.points
    chunks = math.ceil(config.steps * chunk / steps)  # of the whole run, at the pace so far
    return min(points - 1, (2 * chunk + 1) * points // (2 * chunks))


def notes(config: RunConfig) -> list[str]:
    """What will not be quite as the config says: the last step, the number of evaluations, schedules cut short."""
    per_chunk = iterations_per_chunk(config) * steps_per_iteration(config)
    chunks = math.ceil(config.steps / per_chunk)
    found = []
    if chunks * per_chunk > config.steps:
        found.append(
            f"each seed will take about {chunks * per_chunk:,} steps instead of {config.steps:,}: training goes in "
            f"chunks of {per_chunk:,} steps."
        )
    if chunks < config.evaluation.points:
        found.append(
            f"there will be about {chunks} evaluations instead of {config.evaluation.points}: an iteration takes "
            f"{steps_per_iteration(config):,} steps of the {config.steps:,}. Lower algo.collect.envs for more."
        )
    return [*found, *_cut_short(config)]


def _cut_short(config: RunConfig) -> list[str]:
    """Schedules that the budget ends before they do."""
    found = []
    for path, schedule in _schedules(config.algo).items():
        start, end, needed = (float(x) for x in (schedule.start, schedule.end, schedule.duration(config.steps)))
        if needed > config.steps:
            found.append(
                f"warning: algo.{path} needs {needed:,.0f} steps to go from {start:g} to {end:g}, but the run has "
                f"{config.steps:,}: {_outcome(schedule, config.steps / needed)}."
            )
    return found


def _outcome(schedule: Any, share: float) -> str:
    """Where a schedule ends after a share of its duration, and the entry to change."""
    start, end = float(schedule.start), float(schedule.end)
    if "period" in {field.name for field in dataclasses.fields(schedule)}:  # a temperature, which falls geometrically
        return f"it will end at {start * (end / start) ** share:.2g}. Set its period lower"
    linear = start + (end - start) * share
    return f"it will end at {linear:.2g}. Set its steps lower, or 0 for a share of the budget"


def _schedules(algo: Any) -> dict[str, Anneals]:
    """The schedules of an algorithm by path, also of those that it is made of (the algorithm of each team)."""
    every: dict[str, Any] = {"": algo, **configs.nested(algo)}
    found = {path: config for path, config in every.items() if path and isinstance(config, Anneals)}
    for path, config in every.items():
        above = f"{path}." if path else ""
        for field in dataclasses.fields(config):
            values = getattr(config, field.name)
            for i, inner in enumerate(values if isinstance(values, tuple) else ()):
                # A saved policy (of a team, for one) stands still.
                if dataclasses.is_dataclass(inner) and not isinstance(inner, type) and not getattr(inner, "frozen", 0):
                    found |= {f"{above}{field.name}.{i}.{name}": x for name, x in _schedules(inner).items()}
    return found
