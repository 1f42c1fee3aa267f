"""Rollouts of one environment, written out row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from rookery.core.types import Extra, Rollout, Step


@dataclass(frozen=True)
class Row:
    """What is seen at one moment, and the action taken there."""

    state: int
    action: int = 0
    reward: float = 0.0
    discount: float = 1.0
    first: bool = False
    last: bool = False


def rollout(rows: Sequence[Row], *, states: int = 4, actions: int = 4, extra: Extra | None = None) -> Rollout:
    """The rows of one agent in one environment, which sees a unit vector for each state."""
    n, pair = len(rows), (len(rows), 1, 1)
    column = lambda name: np.array([getattr(row, name) for row in rows])  # noqa: E731
    last = column("last")
    step = Step(
        obs=jnp.eye(states)[column("state")].reshape(n, 1, 1, states),
        state=jnp.zeros((n, 1, 0)),
        legal=jnp.ones((n, 1, 1, actions), bool),
        alive=jnp.ones(pair, bool),
        reward=jnp.asarray(column("reward"), jnp.float32).reshape(pair),
        discount=jnp.asarray(column("discount"), jnp.float32).reshape(pair),
        first=jnp.asarray(column("first")).reshape(n, 1),
        last=jnp.asarray(last).reshape(n, 1),
        success=jnp.zeros((n, 1)),
    )
    acted = jnp.asarray(column("action")[:-1], jnp.int32).reshape(-1, 1, 1)
    return Rollout(step, acted, extra or {}, (), jnp.asarray(~last[:-1]).reshape(-1, 1))
