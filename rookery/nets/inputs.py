"""The arrays that networks read of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.types import Action, ActionSpec, Spec, Step, as_float


def encode_action(spec: ActionSpec, action: Action) -> Float[Array, "*b width"]:
    """Actions as numbers: one-hot for each branch (an index of -1 gives zeros), or the numbers or bits themselves."""
    if spec.kind == "discrete":
        return jax.nn.one_hot(action, spec.width)
    if spec.kind == "multi_discrete":
        branches = [jax.nn.one_hot(action[..., i], size) for i, size in enumerate(spec.sizes)]
        return jnp.concatenate(branches, axis=-1)
    return action.astype(jnp.float32)


def own_view(
    spec: Spec, step: Step, *, agent_id: bool, last_action: Action | None = None
) -> Float[Array, "*b agent n"]:
    """Each agent's flat observation [, its last action, encoded] [, its index one-hot, if there are several]."""
    batch = step.first.shape
    columns = [as_float(step.obs.reshape(*batch, spec.n_agents, -1))]
    if last_action is not None:
        columns.append(encode_action(spec.action, last_action))
    if agent_id and spec.n_agents > 1:
        columns.append(jnp.broadcast_to(jnp.eye(spec.n_agents), (*batch, spec.n_agents, spec.n_agents)))
    return jnp.concatenate(columns, axis=-1)


def view_size(spec: Spec, *, agent_id: bool, last_action: bool = False) -> int:
    """Length of `own_view`."""
    index = spec.n_agents if agent_id and spec.n_agents > 1 else 0
    return spec.obs_size + last_action * spec.action.width + index
