"""A graph network: neighbors agree, others do not, and it takes both halves of the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from small import hasty_jit

from rookery.mechanisms.gnn import Gnn, GnnState, embed

NODES, SIDE = 24, 12


def two_rings() -> tuple[jax.Array, jax.Array]:
    """Features and edges of two rings that no edge joins; what tells them apart is small beside what does not."""
    rng = np.random.default_rng(0)
    side = np.arange(NODES) // SIDE
    features = np.stack([0.2 * side, *rng.normal(size=(4, NODES)), np.ones(NODES)], axis=1)
    on = np.arange(NODES) // SIDE * SIDE
    next = np.stack([(np.arange(NODES) + 1 - on) % SIDE + on, (np.arange(NODES) - 1 - on) % SIDE + on], axis=1)
    return jnp.asarray(features, jnp.float32), jnp.asarray(next, jnp.int32)


def trained(gnn: Gnn, filled: Any = True) -> tuple[GnnState, GnnState, np.ndarray]:
    features, next = two_rings()
    start = gnn.init(features.shape[1], jax.random.PRNGKey(0))
    assert start is not None
    where = jnp.broadcast_to(jnp.asarray(filled), NODES)
    after = hasty_jit(lambda: gnn.train(start, features, next, where, jax.random.PRNGKey(1)))()
    return start, after, np.asarray(embed(after.weights, features))


def test_neighbors_agree_and_others_do_not() -> None:
    start, after, h = trained(Gnn(steps=1000, dim=4))
    alike = h @ h.T
    same = np.arange(NODES)[:, None] // SIDE == np.arange(NODES)[None] // SIDE
    assert alike[same].mean() > alike[~same].mean() + 0.5, "they have not collapsed either"
    assert float(after.loss) < float(start.loss)
    np.testing.assert_allclose(np.linalg.norm(h, axis=1), 1.0, atol=1e-3)


def test_a_graph_without_edges_teaches_nothing() -> None:
    features, next = two_rings()
    gnn = Gnn(steps=3)
    start = gnn.init(features.shape[1], jax.random.PRNGKey(0))
    assert start is not None
    blank = hasty_jit(
        lambda: gnn.train(start, features, jnp.full_like(next, -1), jnp.zeros(NODES, bool), jax.random.PRNGKey(1))
    )()
    np.testing.assert_array_equal(blank.weights.weight, start.weights.weight)


def test_what_is_not_trained_has_no_weights() -> None:
    assert replace(Gnn(), dim=3).init(5, jax.random.PRNGKey(0)) is None
