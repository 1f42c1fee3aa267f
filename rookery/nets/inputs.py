"""The arrays that networks read of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery.core.types import Spec, Step, as_float


def own_view(
    spec: Spec, step: Step, *, agent_id: bool, last_action: Int[Array, "*b agent"] | None = None
) -> Float[Array, "*b agent n"]:
    """Each agent's flat observation [, its last action one-hot (-1: none)] [, its index one-hot]."""
    batch = step.first.shape
    columns = [as_float(step.obs.reshape(*batch, spec.n_agents, -1))]
    if last_action is not None:
        columns.append(jax.nn.one_hot(last_action, spec.action.width))
    if agent_id:
        columns.append(jnp.broadcast_to(jnp.eye(spec.n_agents), (*batch, spec.n_agents, spec.n_agents)))
    return jnp.concatenate(columns, axis=-1)


def view_size(spec: Spec, *, agent_id: bool, last_action: bool = False) -> int:
    """Length of `own_view`."""
    return spec.obs_size + last_action * spec.action.width + agent_id * spec.n_agents
