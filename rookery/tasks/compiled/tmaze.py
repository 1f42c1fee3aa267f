"""T-maze: a cue at the start, a corridor, and a choice at its end that only memory can get right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Action, ActionSpec, Spec, Step

FORWARD, UP, DOWN = range(3)


class TmazeState(eqx.Module):
    """Which arm is right, how far the agent has come, and the transitions since reset."""

    arm: Int[Array, ""]
    cell: Int[Array, ""]
    t: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Tmaze:
    """Walk to the junction, then into the arm that the first observation named (after Bakker 2001).

    Actions: forward, up, down. Forward does nothing at the junction; up and down do nothing in the corridor.
    """

    family: Literal["tmaze"] = "tmaze"
    length: Count = 10
    """Moves from the start to the junction."""
    right_reward: float = 4.0
    """Reward of the right arm."""
    wrong_reward: float = -0.1
    """Reward of the wrong arm."""
    idle_reward: float = -0.1
    """Reward of an action that does nothing."""
    limit: Count = 50
    """Transitions after which an episode is cut."""

    def __post_init__(self) -> None:
        check_ranges(self, "task")
        if self.limit <= self.length:
            raise ConfigError(
                f"limit must be more than length ({self.length}), or no choice is made; not {self.limit}."
            )

    @property
    def spec(self) -> Spec:
        """The static facts of this maze."""
        return Spec(
            name=f"tmaze/{self.length}",
            agents=("walker",),
            obs_shape=(4,),
            action=ActionSpec("discrete", (3,)),
            limit=self.limit,
            score="success",
        )

    def reset(self, key: Array) -> tuple[TmazeState, Step]:
        """Draw the right arm; this step alone shows it."""
        zero = jnp.zeros((), jnp.int32)
        state = TmazeState(jax.random.bernoulli(stream(key, "arm")).astype(jnp.int32), zero, zero)
        return state, self._step(state, jnp.zeros(()), jnp.array(False), jnp.array(False), first=True)

    def step(self, state: TmazeState, action: Action, key: Array) -> tuple[TmazeState, Step]:
        """One move, or the choice."""
        at_junction = state.cell == self.length
        forward = action[0] == FORWARD
        chosen = at_junction & ~forward
        right = chosen & (action[0] == UP + state.arm)
        idle = at_junction == forward
        reward = jnp.where(right, self.right_reward, jnp.where(chosen, self.wrong_reward, 0.0))
        reward = jnp.where(idle, self.idle_reward, reward)
        cell = state.cell + (forward & ~at_junction)
        state = TmazeState(state.arm, cell, state.t + 1)
        return state, self._step(state, reward, chosen, right, first=False)

    def _step(
        self, state: TmazeState, reward: Array, chosen: Bool[Array, ""], right: Bool[Array, ""], *, first: bool
    ) -> Step:
        """What the agent sees and got."""
        return Step(
            obs=self._observe(state, first=first)[None],
            state=jnp.zeros(0),
            legal=jnp.ones((1, 3), bool),
            alive=jnp.ones(1, bool),
            reward=reward[None].astype(jnp.float32),
            discount=(~chosen)[None].astype(jnp.float32),
            first=jnp.array(first),
            last=chosen | (state.t >= self.limit),
            success=right.astype(jnp.float32),
        )

    def _observe(self, state: TmazeState, *, first: bool) -> Float[Array, "4"]:
        """Cue (up, down; only at the start of an episode), corridor, junction."""
        at_junction = (state.cell == self.length).astype(jnp.float32)
        cue = jax.nn.one_hot(state.arm, 2) if first else jnp.zeros(2)
        return jnp.concatenate([cue, jnp.stack([1.0 - at_junction, at_junction])])


TASKS |= {f"tmaze/{n}": Tmaze(length=n, limit=5 * n) for n in (10, 30, 100)}
