"""The arrays that networks read of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery.core.types import Action, ActionSpec, Spec, Step


def own_view(
    spec: Spec, step: Step, *, agent_id: bool, last_action: Int[Array, "*b agent"] | None = None
) -> Float[Array, "*b agent n"]:
    """Each agent's flat observation [, its last action one-hot (-1: none)] [, its index one-hot]."""
    batch = step.first.shape
    columns = [step.obs.reshape(*batch, spec.n_agents, -1).astype(jnp.float32)]
    if last_action is not None:
        columns.append(jax.nn.one_hot(last_action, spec.action.width))
    if agent_id:
        columns.append(jnp.broadcast_to(jnp.eye(spec.n_agents), (*batch, spec.n_agents, spec.n_agents)))
    return jnp.concatenate(columns, axis=-1)


def view_size(spec: Spec, *, agent_id: bool, last_action: bool = False) -> int:
    """Length of `own_view`."""
    return spec.obs_size + last_action * spec.action.width + agent_id * spec.n_agents


def encode_action(spec: ActionSpec, action: Action) -> Float[Array, "*b width"]:
    """Actions as numbers for a network: one-hot for each branch; a box's and binary ones as they are."""
    if spec.kind in ("box", "multi_binary"):
        return action.astype(jnp.float32)
    if spec.kind == "discrete":
        return jax.nn.one_hot(action, spec.width)
    return jnp.concatenate([jax.nn.one_hot(action[..., i], n) for i, n in enumerate(spec.sizes)], axis=-1)
