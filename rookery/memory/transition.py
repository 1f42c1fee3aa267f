"""A rollout as the stream of transitions that memories are written by."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.types import Clock, Extra, Rollout, Step


class Transition(eqx.Module):
    """One row of a single agent, and the row that it led to. Leading axes are free."""

    key_tm1: Float[Array, "*b dim"]
    action: Int[Array, "*b"]
    key: Float[Array, "*b dim"]
    step: Step
    filled: Bool[Array, "*b"]
    now: Int[Array, "..."]
    """Transitions of each environment before this one."""
    extra: Extra
    """What else a memory wants of the first row, by name."""

    @staticmethod
    def of(rollout: Rollout, keys: Float[Array, "row env dim"], clock: Clock, **extra: Array) -> Transition:
        """The transitions of a rollout [time, env, ...] whose rows have these keys."""
        time = rollout.filled.shape[0]
        return Transition(
            key_tm1=keys[:-1],
            action=rollout.action[..., 0],
            key=keys[1:],
            step=jax.tree.map(lambda x: x[1:], rollout.step),
            filled=rollout.filled,
            now=clock.iteration * time + jnp.arange(time),
            extra=extra,
        )

    @property
    def reward(self) -> Float[Array, "*b"]:
        return self.step.reward[..., 0]

    @property
    def terminal(self) -> Bool[Array, "*b"]:
        """The action ended the episode for good."""
        return self.step.discount[..., 0] == 0.0
