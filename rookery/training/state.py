"""What a run is made of while it trains: its state, its policies, what a chunk reports. Every engine uses these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from rookery.core.types import Arrays, Clock, Metrics, Packed, Spec
from rookery.training.config import RunConfig

Episodes = dict[str, Array]
"""Finished episodes [member, episode, ...]: `returns` of each agent, `length`, `success`."""


class Member(eqx.Module):
    """Everything of one seed (at one swept value); of all members, each array leads with an axis for them."""

    key: UInt[Array, "*member 2"]
    swept: dict[str, Float[Array, "*member"]]
    algo: Arrays  # [shard, ...] where there are several
    worlds: Any  # arrays of the engine's own, of JAX or numpy; [shard, ...] where there are several
    steps: UInt[Array, "*member"]
    best: Arrays
    """Snapshot of the policy with the best evaluation so far."""
    best_score: Float[Array, "*member"]


class RunState(eqx.Module):
    """The whole run: save it and training continues bit for bit."""

    members: Member  # [member, ...]
    iteration: Int[Array, ""]
    budget: Float[Array, ""]
    """An array, so that runs of different budgets share one compiled program."""

    def clock(self, steps: Array, iteration: Array) -> Clock:
        """The clock of a member that has taken `steps`, at an iteration of this chunk."""
        return Clock(iteration, steps, self.budget)


class Policies(eqx.Module):
    """Everything that acting needs of a run."""

    last: Arrays  # [member, ...]
    best: Arrays  # [member, ...]
    key: UInt[Array, "member 2"]
    swept: dict[str, Float[Array, "member"]]
    steps: UInt[Array, "member"]
    iteration: Int[Array, ""]
    budget: Float[Array, ""]


class ChunkReport(eqx.Module):
    """What a chunk tells the host about each member."""

    sums: Packed
    """Metrics, summed over the chunk."""
    broken_at: Int[Array | np.ndarray, "*member metric"]
    """Steps at which each metric first stopped being finite; -1: nowhere."""
    steps: UInt[Array | np.ndarray, "*member"]

    # On the host: slicing arrays on a device would compile a program and make a transfer for each of them.
    @property
    def means(self) -> Metrics:
        """Means over the chunk, by name."""
        return Packed(np.asarray(self.sums.values), self.sums.names).metrics()

    @property
    def broken(self) -> dict[str, np.ndarray]:
        """`broken_at` by name."""
        at = np.asarray(self.broken_at)
        return {name: at[..., i] for i, name in enumerate(self.sums.names)}


@dataclass(frozen=True)
class MemberInfo:
    """The seed and the swept values of a member."""

    seed: int
    values: dict[str, float]


def member_infos(config: RunConfig) -> list[MemberInfo]:
    """Members in order: the product of swept values, times the seeds."""
    return _members({sweep.path: sweep.values for sweep in config.sweep}, config.seeds)


def member_infos_of_json(config: Mapping[str, Any]) -> list[MemberInfo]:
    """The members of a config as JSON, whose algorithm or task may be of code that is not here."""
    swept = {str(sweep["path"]): [float(value) for value in sweep["values"]] for sweep in config.get("sweep", [])}
    return _members(swept, config["seeds"])


def _members(swept: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> list[MemberInfo]:
    grid = itertools.product(*swept.values())
    return [MemberInfo(seed, dict(zip(swept, values, strict=True))) for values in grid for seed in seeds]


def swept_values(config: RunConfig) -> dict[str, Array]:
    """Each swept entry's values, one per member."""
    infos = member_infos(config)
    return {s.path: jnp.asarray([i.values[s.path] for i in infos], jnp.float32) for s in config.sweep}


def steps_per_iteration(config: RunConfig) -> int:
    """Environment steps of one seed in one iteration, if no episode ends early."""
    spec, collect = config.task.spec, config.algo.collect
    length = collect.transitions(spec)
    resets = 0 if collect.restart or not spec.limit else length // (spec.limit + 1)
    return max(1, collect.envs * (length - resets))


def iterations_per_chunk(config: RunConfig) -> int:
    """So many that evaluations are evenly spaced, with at least `rows` chunks from one to the next where possible.

    If the run divides into `points` times `rows` equal chunks without growing by more than 1%, it does. Otherwise
    chunks are short: an evaluation is made after the chunk that ends nearest to its point.
    """
    evaluation = config.evaluation
    iterations = math.ceil(config.steps / steps_per_iteration(config))
    chunks = evaluation.points * evaluation.rows
    even = math.ceil(iterations / chunks)
    if math.ceil(iterations / even) == chunks and even * chunks <= 1.01 * iterations:
        return even
    return max(1, iterations // (evaluation.points * max(evaluation.rows, 4)))


def score(spec: Spec, episodes: Episodes) -> Array:
    """The task's score of each episode."""
    if spec.score == "success":
        return episodes["success"]
    return jnp.mean(episodes["returns"], axis=-1)


SECOND = "second look"
"""Purpose of the keys of a second look."""


def confirmed(means: Float[Array, "2"], best: Float[Array, ""]) -> tuple[Array, Array]:
    """Whether a policy replaces the best one, and its score: the mean of an evaluation and of a second look.

    The best of many noisy scores is a lucky one. So a policy that seems at least as good as the best plays as many
    fresh episodes again, and all of them count. Of equals the latest is kept: on a plateau it has learned more.
    """
    mean = jnp.mean(means)
    return (means[0] >= best) & (mean >= best), mean
