"""The compiled functions of an asynchronous learner: its share of the environments, and one gradient step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rookery.core.config import with_values
from rookery.core.keys import stream
from rookery.core.types import Arrays, Clock, GradientAlgorithm, Packed, Step
from rookery.training.compiled.program import over_members, strong
from rookery.training.config import RunConfig
from rookery.training.host.program import HostProgram
from rookery.training.host.records import Acting, Leaves, Progress, Shared, Tape


def share(config: RunConfig) -> RunConfig:
    """The run of one learner: its environments, stepped in its own process."""
    own = config.algo.collect.learner()
    algo = with_values(config.algo, {"collect": own})
    return replace(config, algo=algo, workers=replace(config.workers, count=0))


@dataclass(frozen=True)
class LearnerProgram:
    """The pure functions of one learner; everything in it is static. Arrays lead with a member axis, as in a run."""

    host: HostProgram
    """Of its share of the run."""

    @property
    def algo(self) -> GradientAlgorithm[Any]:
        return cast(GradientAlgorithm[Any], self.host.config.algo)

    @cached_property
    def states(self) -> Any:
        """Shapes of the members' algorithm states."""
        return self.host.shapes.members.algo

    @cached_property
    def commons(self) -> Any:
        """Shapes of what learners share."""
        return self.algo.common(self.states)

    @cached_property
    def _places(self) -> list[int]:
        """Which leaves of a state are shared."""
        count = self.host.structure.num_leaves
        return jax.tree.leaves(self.algo.common(jax.tree.unflatten(self.host.structure, range(count))))

    def copied(self, leaves: Sequence[Any], common: Sequence[Any]) -> Leaves:
        """The leaves of a learner's state with a copy of what is shared."""
        found = list(leaves)
        for place, leaf in zip(self._places, common, strict=True):
            found[place] = leaf
        return tuple(found)

    def _common(self, leaves: Sequence[Any]) -> Arrays:
        return jax.tree.unflatten(jax.tree.structure(self.commons), leaves)

    def gradient(
        self, leaves: Leaves, shared: Shared, acting: tuple[Acting, ...], progress: Progress, rows: tuple[Array, ...]
    ) -> tuple[Leaves, Arrays, Array, tuple[Acting, ...], Progress, Packed]:
        """A learner's state after a rollout, its gradient, the steps it took, and what the next rollout needs."""
        host = self.host
        state = jax.tree.unflatten(host.structure, leaves)
        step, tape = host.seen(acting, rows)

        def one(state: Arrays, key: Array, swept: Any, steps: Array, step: Step, tape: Tape, progress: Progress) -> Any:
            algo = cast(GradientAlgorithm[Any], host.algo(swept))
            rollout, progress, episodes = host.rollout(algo, step, tape, progress)
            played = jnp.sum(rollout.filled).astype(jnp.uint32)
            clock, key = Clock(shared.iteration, steps + played, shared.budget), stream(key, "update", shared.iteration)
            after, gradient, metrics = algo.gradient(host.spec, state, rollout, clock, key)
            return strong(after), gradient, played, progress, Packed.of({**episodes, **metrics})

        of_members = (state, shared.key, shared.swept, shared.steps, step, tape, progress)
        state, gradient, played, progress, metrics = over_members(one, *of_members)
        return tuple(jax.tree.leaves(state)), gradient, played, host.next_rollout(acting, shared), progress, metrics

    def apply(self, common: Leaves, gradient: Arrays, shared: Shared) -> Leaves:
        """What is shared after the gradient step of an iteration; `shared` has the steps after it."""

        def one(common: Arrays, gradient: Arrays, swept: Any, steps: Array) -> Arrays:
            algo = cast(GradientAlgorithm[Any], self.host.algo(swept))
            return strong(algo.apply(common, gradient, Clock(shared.iteration, steps, shared.budget)))

        moved = over_members(one, self._common(common), gradient, shared.swept, shared.steps)
        return tuple(jax.tree.leaves(moved))

    def arguments(self) -> tuple[Any, Any, Any]:
        """Shapes of what `act`, `gradient` and `apply` are given."""
        leaves, shared, acting, progress, rows = self.host.arguments()
        learning = leaves, shared, acting, progress, tuple(half for _, half in rows)
        _, gradient, *_ = jax.eval_shape(self.gradient, *learning)
        common = tuple(jax.tree.leaves(self.commons))
        return (leaves, shared, acting[0], rows[0][0]), learning, (common, gradient, shared)
