"""Which nodes abstraction chooses, on graphs of a few nodes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.mechanisms.reflect import Abstract
from rookery.memory.graph import Graph, GraphState, Handle, live


def graph_of(keys: list[float]) -> tuple[GraphState, Handle]:
    """A graph with a node for each key."""
    config = Graph(capacity=16, neighbors=1)
    key = jnp.asarray(keys, jnp.float32)[:, None]
    return config.insert(config.empty(1, 2), key, jnp.int32(0), jnp.ones(len(keys), bool))


@pytest.mark.parametrize("returns", [(3.0, 5.0), (-21.0, -19.0)])
def test_nodes_recur_in_the_best_trajectories_whatever_the_returns(returns: tuple[float, float]) -> None:
    """Two episodes, a b c and d b c, into room for three trajectories."""
    memory, node = graph_of([1.0, 2.0, 3.0, 4.0])
    config = Abstract("common", nodes=3, trajectories=3, length=8)
    kept = config.empty(1)
    for path, total in zip(((0, 1, 2), (3, 1, 2)), returns, strict=True):
        for i, at in enumerate(path):
            here = Handle(node.node[at : at + 1], node.generation[at : at + 1])
            reward = jnp.array([total if i == 2 else 0.0])
            kept = config.follow(kept, here, reward, jnp.array([i == 0]), jnp.array([i == 2]))
    score = np.asarray(config.score(memory, live(memory), kept, None))
    np.testing.assert_array_equal(score[np.asarray(node.node)], [1, 2, 2, 1])
    chosen = np.asarray(config.key_nodes(memory, live(memory), kept))
    assert set(chosen[:2].tolist()) == set(np.asarray(node.node)[1:3].tolist())
