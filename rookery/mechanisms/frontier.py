"""Where a graph memory has not been yet: how far nodes are from one with an action that was never tried.

Distances start at 0, are corrected for the node that an agent leaves, and are followed downhill (learning real-time A*,
Korf 1990): a step costs one node's edges, however large the graph is, and no search is made.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from rookery.memory.graph import TERMINAL, GraphState, Handle, alive, leaving

FAR = 1 << 20
"""Nothing is untried that way; distances stop growing here."""

Frontier = Int[Array, "node"]


def unexplored(capacity: int) -> Frontier:
    """Every node may have untried actions; nothing is left to try at the terminal one."""
    return jnp.zeros(capacity, jnp.int32).at[TERMINAL].set(FAR)


def steps_by_action(memory: GraphState, frontier: Frontier, node: Int[Array, "env"]) -> Int[Array, "env action"]:
    """Steps to an untried action by way of each action of a node; `FAR` for actions without an edge."""
    next, action = leaving(memory, node)
    by = (action[..., None] == np.arange(memory.q.shape[1])) & (next >= 0)[..., None]
    return jnp.min(jnp.where(by, jnp.minimum(frontier[next] + 1, FAR)[..., None], FAR), axis=1)


def leave(
    memory: GraphState, frontier: Frontier, node: Handle, legal: Bool[Array, "env action"], to: Handle
) -> Frontier:
    """The frontier after agents left these nodes, where so much was legal, for nodes that may be new."""
    full = frontier.shape[0]
    untried = jnp.any(legal & (memory.q_visits[node.node] == 0), axis=1)
    least = jnp.min(jnp.where(legal, steps_by_action(memory, frontier, node.node), FAR), axis=1)
    new = alive(memory, to) & (memory.visits[to.node] == 1)
    frontier = frontier.at[jnp.where(alive(memory, node), node.node, full)].set(
        jnp.where(untried, 0, least), mode="drop"
    )
    return frontier.at[jnp.where(new, to.node, full)].set(0, mode="drop")
