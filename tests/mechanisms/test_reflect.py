"""Which nodes abstraction chooses, on graphs of a few nodes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.mechanisms.reflect import Abstract
from rookery.memory.graph import Graph, GraphState, Handle, Moves, live


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


def test_the_nodes_nearest_to_centroids_are_key_nodes() -> None:
    """Two groups of three; the third cluster may split one, no empty slot is chosen."""
    memory, node = graph_of([1.0, 2.0, 3.0, 11.0, 12.0, 13.0])
    middle = np.asarray(node.node)[[1, 4]]
    assert sorted(Abstract("kmeans", nodes=2).key_nodes(memory, live(memory), None).tolist()) == sorted(middle.tolist())
    several = np.asarray(Abstract("kmeans", nodes=8).key_nodes(memory, live(memory), None))
    assert set(several[several >= 0].tolist()) == set(np.asarray(node.node).tolist())


def test_degrees_count_the_edges_that_are_left() -> None:
    """Room for three nodes: a -> b, b -> a, c -> b; then d takes the slot of a."""
    config, on = Graph(4, 4, neighbors=1), jnp.ones(1, bool)
    memory, nodes = config.empty(1, 1), []
    for time in range(3):
        memory, node = config.insert(memory, jnp.array([[time + 1.0]]), jnp.int32(time), on)
        nodes.append(node)
    (a, b, c), move = nodes, Moves(jnp.zeros(1, jnp.int32), jnp.zeros(1), ~on, on)
    for one, other in ((a, b), (b, a), (c, b)):
        memory = config.connect(memory, one, move, other)
    memory, _ = config.insert(memory, jnp.array([[9.0]]), jnp.int32(9), on)
    score = np.asarray(Abstract("degree", nodes=2).score(memory, live(memory), None, None))
    want = np.zeros(4)
    want[[int(b.node[0]), int(c.node[0])]] = 1 / np.sqrt(1 / 3)
    np.testing.assert_allclose(score, want, rtol=1e-6)
