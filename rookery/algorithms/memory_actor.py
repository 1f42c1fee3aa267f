"""Policies over what a memory agent reads: the PPO family on a task whose observations are what was read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.algorithms.ppo import PPO
from rookery.core.ranges import Count, Fraction, NonNegative
from rookery.core.types import Collect, Rollout, Spec
from rookery.mechanisms.critic import Value
from rookery.mechanisms.writer import Values
from rookery.memory.dictionary import Read
from rookery.memory.graph import GraphRead
from rookery.nets.agent import Net
from rookery.nets.optimiser import Optimiser
from rookery.ops.latent import symlog


@dataclass(frozen=True)
class MemoryActor:
    """What chooses a memory agent's actions."""

    kind: Literal["memory", "a2c", "fused"] = "memory"
    """memory: the best of the values that were read. a2c: an actor-critic over the state's key and the values that were
    read. fused: the same with a GRU, which sums up the episode so far."""
    width: Count = 64
    """Units of each layer of actor and critic."""
    optimiser: Optimiser = field(default_factory=lambda: Optimiser("adam", lr=2e-3, decay="linear"))
    """Of actor and critic."""
    gae_lambda: Fraction = 1.0
    """Generalized advantage estimation; 1: n-step returns."""
    entropy: NonNegative = 0.01
    """Weight of the entropy bonus."""

    @property
    def learns(self) -> bool:
        """Whether it has weights of its own."""
        return self.kind != "memory"

    def small(self) -> MemoryActor:
        """The same actor, narrow."""
        return replace(self, width=8)

    def learner(self, collect: Collect, gamma: float) -> PPO:
        """A2C: one pass over each rollout, no clipping."""
        net = Net("gru" if self.kind == "fused" else "mlp", width=self.width, layers=1, activation="tanh")
        return PPO(
            actor=net,
            critic=net,
            value=Value(sees="obs", clip=0.0),
            collect=collect,
            optimiser=self.optimiser,
            gamma=gamma,
            gae_lambda=self.gae_lambda,
            clip=0.0,
            epochs=1,
            entropy=self.entropy,
            agent_id=False,
        )


def reading(spec: Spec, dim: int) -> Spec:
    """The task as the actor sees it: keys of `dim` numbers, and two numbers for each action."""
    numbers = (dim + 2 * spec.action.width,)
    return replace(
        spec, obs_shape=numbers, obs_dtype="float32", obs_sizes=(), frames=1, position=(), entities=(), state_shape=()
    )


def seen(key: Float[Array, "env dim"], read: Read | GraphRead | Values) -> Float[Array, "env agent n"]:
    """What the actor sees: the state's key, the values that were read, and which of them are known.

    Rewards have any size, so that values do; gradients stop here.
    """
    x = jnp.concatenate([key, symlog(read.q), read.known.astype(jnp.float32)], axis=-1)
    return jax.lax.stop_gradient(x)[:, None]


def as_seen(rollout: Rollout, last: Float[Array, "env agent n"]) -> Rollout:
    """The rollout as the actor saw it; `last` is what it would see in the row that no action was chosen in."""
    obs = jnp.concatenate([rollout.extra["seen"], last[None]])
    extra = {name: x for name, x in rollout.extra.items() if name not in ("seen", "read")}
    state = jnp.zeros((*rollout.step.first.shape, 0))
    return replace(rollout, step=replace(rollout.step, obs=obs, state=state), extra=extra)
