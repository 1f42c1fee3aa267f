"""Loops and batching."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.ops.loops import alone, settle


def _work(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    # It closes over a batched number as well as over one that is not.
    return alone(lambda y: (y @ y.T * scale, jnp.float32(3.0)), x)


def test_settling_ends_with_the_first_round_that_changes_nothing() -> None:
    """Members count up to their own limits; the loop has a round more than the longest of them, if it may."""
    rounds: list[int] = []

    def count(i: jax.Array, x: jax.Array, limit: jax.Array) -> jax.Array:
        jax.debug.callback(lambda i: rounds.append(int(i)), i)
        return jnp.minimum(x + 1, limit)

    limits = jnp.array([2, 4])
    settled = jax.jit(jax.vmap(lambda limit: settle(9, lambda i, x: count(i, x, limit), jnp.int32(0))))
    assert settled(limits).tolist() == [2, 4]
    jax.effects_barrier()
    assert max(rounds) == 4
    assert int(settle(3, lambda _, x: jnp.minimum(x + 1, 9), jnp.int32(0))) == 3


@pytest.mark.parametrize("members", [1, 3])
def test_alone_is_what_it_wraps(members: int) -> None:
    x = jnp.arange(members * 6.0).reshape(members, 2, 3)
    scale = jnp.arange(1.0, members + 1)
    product, three = jax.vmap(_work)(x, scale)
    np.testing.assert_allclose(product, jnp.einsum("mij,mkj->mik", x, x) * scale[:, None, None])
    np.testing.assert_array_equal(three, np.full(members, 3.0))


def test_alone_drops_the_axis_of_one_member() -> None:
    """No product has a batch axis: with one, XLA turns its operands around."""
    program = jax.jit(jax.vmap(_work)).lower(jnp.ones((1, 2, 3)), jnp.ones(1)).as_text()
    assert "dot_general" in program
    assert "batching_dims" not in program
