"""The GRU against a plain loop, its resets, and its gradient against finite differences.

Everything at two widths: with more units than twice the batch, the gradient is computed in another order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.nets import recurrent

TIME, BATCH, N_IN = 6, 3, 4
widths = pytest.mark.parametrize("width", [5, 7])


def setting(width: int) -> tuple[recurrent.Gru, jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.PRNGKey(0), 6)
    p = recurrent.gru(keys[0], N_IN, width)
    # Biases begin at 0: give them values, or a missing one would go unnoticed.
    p = recurrent.Gru(
        p.w_in, p.w_hidden, jax.random.normal(keys[1], p.bias.shape), jax.random.normal(keys[2], p.bias_candidate.shape)
    )
    h = jax.random.normal(keys[3], (BATCH, width))
    x = jax.random.normal(keys[4], (TIME, BATCH, N_IN))
    reset = jnp.zeros((TIME, BATCH), bool).at[2, 1].set(True).at[0, 2].set(True).at[4, :].set(True)
    return p, h, x, reset


def loop(p: recurrent.Gru, h: np.ndarray, x: np.ndarray, reset: np.ndarray) -> np.ndarray:
    """Cho et al. 2014 as torch has it, one example and one step at a time, in double precision."""
    w_in, w_h, b, b_n = (np.asarray(a, np.float64) for a in (p.w_in, p.w_hidden, p.bias, p.bias_candidate))
    width = b_n.size
    gates = [slice(0, width), slice(width, 2 * width), slice(2 * width, 3 * width)]
    out = np.zeros((len(x), x.shape[1], width))
    for i in range(x.shape[1]):
        state = np.asarray(h[i], np.float64)
        for t in range(len(x)):
            if reset[t, i]:
                state = np.zeros(width)
            r, z = (1 / (1 + np.exp(-(x[t, i] @ w_in[:, g] + b[g] + state @ w_h[:, g]))) for g in gates[:2])
            n = np.tanh(x[t, i] @ w_in[:, gates[2]] + b[gates[2]] + r * (state @ w_h[:, gates[2]] + b_n))
            state = (1 - z) * n + z * state
            out[t, i] = state
    return out


@widths
def test_unroll_equals_a_plain_loop(width: int) -> None:
    p, h, x, reset = setting(width)
    final, states = recurrent.unroll(p, h, x, reset)
    expected = loop(p, *(np.asarray(a) for a in (h, x, reset)))
    np.testing.assert_allclose(states, expected, atol=1e-5)
    np.testing.assert_allclose(final, expected[-1], atol=1e-5)


@widths
def test_a_reset_forgets_everything_before_it(width: int) -> None:
    p, h, x, reset = setting(width)
    _, states = recurrent.unroll(p, h, x, reset)
    _, other = recurrent.unroll(p, h + 1.0, x.at[:4].add(1.0), reset)
    np.testing.assert_array_equal(states[4:], other[4:])
    assert bool(jnp.all(jnp.any(states[:4] != other[:4], axis=-1)))
    # And it is the same as beginning there with zeros.
    _, fresh = recurrent.unroll(p, jnp.zeros_like(h), x[4:], jnp.zeros_like(reset[4:]))
    np.testing.assert_allclose(states[4:], fresh, atol=1e-6)


@widths
def test_gradients_match_finite_differences_of_the_plain_loop(width: int) -> None:
    """Of the weights, the input and the first state, through resets; whatever way the gradient is computed."""
    p, h, x, reset = setting(width)
    probe = np.asarray(jax.random.normal(jax.random.PRNGKey(9), (TIME, BATCH, width)))

    def loss(p: recurrent.Gru, h: jax.Array, x: jax.Array) -> jax.Array:
        final, states = recurrent.unroll(p, h, x, reset)
        return jnp.sum(states * probe) + jnp.sum(final * probe[0])

    def plain(p: recurrent.Gru, h: np.ndarray, x: np.ndarray) -> float:
        states = loop(p, h, x, np.asarray(reset))
        return float(np.sum(states * probe) + np.sum(states[-1] * probe[0]))

    grads = jax.grad(loss, argnums=(0, 1, 2))(p, h, x)
    values, structure = jax.tree.flatten((p, h, x))
    rng = np.random.default_rng(0)
    for i, (value, gradient) in enumerate(zip(values, jax.tree.leaves(grads), strict=True)):
        for _ in range(6):
            at = tuple(rng.integers(n) for n in value.shape)
            ends = []
            for sign in (1, -1):
                moved = [np.asarray(v, np.float64) for v in values]
                moved[i] = moved[i].copy()
                moved[i][at] += sign * 1e-5
                ends.append(plain(*jax.tree.unflatten(structure, moved)))
            assert abs((ends[0] - ends[1]) / 2e-5 - gradient[at]) < 1e-3
    # A row that is reset has no way back.
    assert bool(jnp.all(grads[1][2] == 0)) and bool(jnp.any(grads[1][0] != 0))
