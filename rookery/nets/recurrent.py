"""A gated recurrent unit over a sequence with resets."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.nets.layers import orthogonal


class Gru(eqx.Module):
    """Cho et al. 2014, with the reset gate inside the candidate's recurrent term (as torch and flax have it)."""

    w_in: Float[Array, "n_in gates"]
    w_hidden: Float[Array, "h gates"]
    bias: Float[Array, "gates"]
    bias_candidate: Float[Array, "h"]


def gru(key: Array, n_in: int, width: int) -> Gru:
    """Orthogonal weights gate by gate, zero biases."""
    k_in, k_hidden = jax.random.split(key)
    blocks_in = [orthogonal(k, n_in, width) for k in jax.random.split(k_in, 3)]
    blocks_hidden = [orthogonal(k, width, width) for k in jax.random.split(k_hidden, 3)]
    return Gru(
        jnp.concatenate(blocks_in, axis=1),
        jnp.concatenate(blocks_hidden, axis=1),
        jnp.zeros(3 * width),
        jnp.zeros(width),
    )


def cell(p: Gru, h: Float[Array, "*b h"], gates_in: Float[Array, "*b gates"]) -> Float[Array, "*b h"]:
    """One step from the input's projection `x @ w_in + bias`."""
    r_in, z_in, n_in = jnp.split(gates_in, 3, axis=-1)
    r_h, z_h, n_h = jnp.split(h @ p.w_hidden, 3, axis=-1)
    r = jax.nn.sigmoid(r_in + r_h)
    z = jax.nn.sigmoid(z_in + z_h)
    n = jnp.tanh(n_in + r * (n_h + p.bias_candidate))
    return (1.0 - z) * n + z * h


def unroll(
    p: Gru, h: Float[Array, "b h"], x: Float[Array, "time b n_in"], reset: Bool[Array, "time b"]
) -> tuple[Float[Array, "b h"], Float[Array, "time b h"]]:
    """Final hidden state and all hidden states; `reset` zeroes the state before its row is read."""

    def step(h: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        x_t, reset_t = now
        h = cell(p, jnp.where(reset_t[:, None], 0.0, h), x_t @ p.w_in + p.bias)
        return h, h

    return jax.lax.scan(step, h, (x, reset))
