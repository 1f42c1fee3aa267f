"""Projections of return distributions against numbers worked out by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.ops.categorical import cross_entropy, project, support

ATOMS = support(-1.0, 1.0, 5)
Z = jnp.asarray(ATOMS)  # -1, -0.5, 0, 0.5, 1


def test_probabilities_go_to_the_nearest_atoms() -> None:
    p = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0])
    # A sure 0 becomes a sure 0.3 + 0.5 * 0 = 0.3: 40% at 0, 60% at 0.5.
    np.testing.assert_allclose(project(p, 0.3 + 0.5 * Z, ATOMS), [0, 0, 0.4, 0.6, 0], atol=1e-6)
    # On an atom all of it stays there; beyond the last atom everything is the last.
    np.testing.assert_allclose(project(p, 0.5 + 0.0 * Z, ATOMS), [0, 0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(project(p, 7.0 + Z, ATOMS), [0, 0, 0, 0, 1], atol=1e-6)


def test_mixtures_keep_their_mass_and_their_mean() -> None:
    p = jnp.array([[0.1, 0.2, 0.3, 0.4, 0.0], [0.5, 0.0, 0.0, 0.0, 0.5]])
    z = 0.1 + 0.9 * jnp.broadcast_to(Z, p.shape)
    moved = project(p, z, ATOMS)
    np.testing.assert_allclose(moved.sum(-1), [1, 1], rtol=1e-6)
    # -0.8, -0.35, 0.1, 0.55 and 1.0 lie inside: the mean is the discounted one.
    np.testing.assert_allclose(moved @ ATOMS, 0.1 + 0.9 * (p @ ATOMS), atol=1e-6)
    # By hand for the first: 0.1 at -0.8 (60% to -1, 40% to -0.5), 0.2 at -0.35 (70%, 30%), 0.3 at 0.1, 0.4 at 0.55.
    np.testing.assert_allclose(moved[0], [0.06, 0.04 + 0.14, 0.06 + 0.24, 0.06 + 0.36, 0.04], atol=1e-6)


def test_cross_entropy() -> None:
    logits = jnp.log(jnp.array([0.25, 0.75]))
    assert float(cross_entropy(jnp.array([0.5, 0.5]), logits)) == pytest.approx(-0.5 * np.log(0.25 * 0.75))
