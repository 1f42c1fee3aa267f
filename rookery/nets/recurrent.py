"""A gated recurrent unit over a sequence with resets."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.keys import stream
from rookery.nets.layers import Initializer, orthogonal, uniform, weight_gradients


class Gru(eqx.Module):
    """Cho et al. 2014, with the reset gate inside the candidate's recurrent term (as torch and flax have it)."""

    w_in: Float[Array, "n_in gates"]
    w_hidden: Float[Array, "h gates"]
    bias: Float[Array, "gates"]
    bias_candidate: Float[Array, "h"]


def gru(key: Array, n_in: int, width: int, initializer: Initializer = "orthogonal") -> Gru:
    """Orthogonal weights gate by gate and zero biases, or torch's defaults."""
    if initializer == "torch":
        return _torch_gru(key, n_in, width)
    k_in, k_hidden = jax.random.split(key)

    def gates(key: Array, rows: int) -> Float[Array, "rows gates"]:
        blocks = jax.vmap(lambda k: orthogonal(k, rows, width))(jax.random.split(key, 3))
        return jnp.concatenate(list(blocks), axis=1)

    return Gru(gates(k_in, n_in), gates(k_hidden, width), jnp.zeros(3 * width), jnp.zeros(width))


def _torch_gru(key: Array, n_in: int, width: int) -> Gru:
    """Everything uniform in the width of the hidden state; torch has two biases where the two gates have their sum."""
    w_in, w_hidden, of_input, of_hidden = (
        uniform(stream(key, name), width, *shape)
        for name, shape in (
            ("w_in", (n_in, 3 * width)),
            ("w_hidden", (width, 3 * width)),
            ("bias_in", (3 * width,)),
            ("bias_hidden", (3 * width,)),
        )
    )
    return Gru(w_in, w_hidden, of_input.at[: 2 * width].add(of_hidden[: 2 * width]), of_hidden[2 * width :])


class Gates(NamedTuple):
    """What one step computed on its way: reset and update gate, candidate, and the candidate's recurrent term."""

    r: Array
    z: Array
    n: Array
    recurrent: Array


class Slopes(NamedTuple):
    """Derivatives of the new hidden state, element by element, by what each gate sums up and by the old state."""

    r: Array
    z: Array
    n: Array
    recurrent: Array
    h: Array


def cell(p: Gru, h: Float[Array, "*b h"], gates_in: Float[Array, "*b gates"]) -> tuple[Float[Array, "*b h"], Gates]:
    """One step from the input's projection `x @ w_in + bias`."""
    r_in, z_in, n_in = jnp.split(gates_in, 3, axis=-1)
    r_h, z_h, n_h = jnp.split(h @ p.w_hidden, 3, axis=-1)
    r = jax.nn.sigmoid(r_in + r_h)
    z = jax.nn.sigmoid(z_in + z_h)
    recurrent = n_h + p.bias_candidate
    n = jnp.tanh(n_in + r * recurrent)
    return (1.0 - z) * n + z * h, Gates(r, z, n, recurrent)


def slopes(h: Float[Array, "*b h"], gates: Gates) -> Slopes:
    """Derivatives of `cell` at the old state `h`."""
    r, z, n, recurrent = gates
    by_n = (1.0 - z) * (1.0 - n**2)
    return Slopes(by_n * recurrent * r * (1.0 - r), (h - n) * z * (1.0 - z), by_n, by_n * r, z)


@jax.custom_vjp
def unroll(
    p: Gru, h: Float[Array, "b h"], x: Float[Array, "time b n_in"], reset: Bool[Array, "time b"]
) -> tuple[Float[Array, "b h"], Float[Array, "time b h"]]:
    """Final hidden state and all hidden states; `reset` zeroes the state before its row is read.

    The gradient is written out, because the derived one is up to twice as slow: it adds to the weight gradients in
    every step, whatever the batch, and keeps more than it needs.
    """
    h, (states, _) = _forward(p, h, x, reset)
    return h, states


def _few(h: Array) -> bool:
    """Whether products of one step are so small that they are better done for all steps at once.

    With few rows, reading and writing weight gradients in each step costs more than computing them. With many, going
    through the whole sequence again costs more than adding up what is in the cache anyway. Both were measured, at
    widths of 64 and 128 (docs/notes/speed.md).
    """
    return 2 * h.shape[0] < h.shape[1]


def _forward(p: Gru, h: Array, x: Array, reset: Array) -> tuple[Array, tuple[Array, Gates]]:
    few = _few(h)

    def step(h: Array, now: tuple[Array, Array]) -> tuple[Array, tuple[Array, Gates]]:
        x_t, reset_t = now
        gates_in = x_t if few else x_t @ p.w_in + p.bias
        h, gates = cell(p, jnp.where(reset_t[:, None], 0.0, h), gates_in)
        return h, (h, gates)

    return jax.lax.scan(step, h, (x @ p.w_in + p.bias if few else x, reset))


def _keep(p: Gru, h: Array, x: Array, reset: Array) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    """The forward pass, and what the backward pass needs of it."""
    last, (states, gates) = _forward(p, h, x, reset)
    return (last, states), (p, h, x, reset, states, gates)


def _backward(kept: tuple[Any, ...], grads: tuple[Array, Array]) -> tuple[Gru, Array, Array, None]:
    p, start, x, reset, states, gates = kept
    few = _few(start)
    w_back, w_out = p.w_hidden.T, p.w_in.T  # transposed once, not in every step
    before = jnp.where(reset[..., None], 0.0, jnp.concatenate([start[None], states[:-1]]))

    def back(carry: tuple[Array, Any], now: Any) -> tuple[tuple[Array, Any], Any]:
        d_h, total = carry
        d_state, reset_t, row = now
        slope = row if few else slopes(row[0], row[1])
        d = d_state + d_h
        d_r, d_z, d_n, d_recurrent = d * slope.r, d * slope.z, d * slope.n, d * slope.recurrent
        d_hidden = jnp.concatenate([d_r, d_z, d_recurrent], axis=-1)
        d_h = jnp.where(reset_t[:, None], 0.0, d * slope.h + d_hidden @ w_back)
        if few:
            return (d_h, None), (d_hidden, d_n)
        d_in = _input_side(d_hidden, d_n)
        total = jax.tree.map(jnp.add, total, _weight_gradients(row[2], row[0], d_in, d_hidden))
        return (d_h, total), d_in @ w_out

    rows = slopes(before, gates) if few else (before, gates, x)
    zero = None if few else jax.tree.map(jnp.zeros_like, p)
    (d_start, d_p), out = jax.lax.scan(back, (grads[0], zero), (grads[1], reset, rows), reverse=True)
    if few:
        d_hidden, d_n = out
        d_in = _input_side(d_hidden, d_n)
        return _weight_gradients(x, before, d_in, d_hidden), d_start, d_in @ w_out, None
    return d_p, d_start, out, None


def _input_side(d_hidden: Array, d_n: Array) -> Array:
    """Gradient of the input's projection: the candidate's is not gated by r, the others are the same."""
    return jnp.concatenate([d_hidden[..., : 2 * d_n.shape[-1]], d_n], axis=-1)


def _weight_gradients(x: Array, h: Array, d_in: Array, d_hidden: Array) -> Gru:
    """From the gradients of both projections, summed over all leading axes."""
    (w_in, bias), (w_hidden, sums) = weight_gradients(x, d_in), weight_gradients(h, d_hidden)
    return Gru(w_in, w_hidden, bias, sums[2 * h.shape[-1] :])


unroll.defvjp(_keep, _backward)


class Lstm(eqx.Module):
    """Hochreiter and Schmidhuber 1997, with a forget gate; the state is (hidden, cell), joined."""

    w_in: Float[Array, "n_in gates"]
    w_hidden: Float[Array, "h gates"]
    bias: Float[Array, "gates"]


def lstm(key: Array, n_in: int, width: int) -> Lstm:
    """Orthogonal weights gate by gate, zero biases but 1 for the forget gate (Jozefowicz et al. 2015)."""
    k_in, k_hidden = jax.random.split(key)

    def gates(key: Array, rows: int) -> Float[Array, "rows gates"]:
        blocks = jax.vmap(lambda k: orthogonal(k, rows, width))(jax.random.split(key, 4))
        return jnp.concatenate(list(blocks), axis=1)

    bias = jnp.zeros(4 * width).at[width : 2 * width].set(1.0)
    return Lstm(gates(k_in, n_in), gates(k_hidden, width), bias)


def unroll_lstm(
    p: Lstm, state: Float[Array, "b state"], x: Float[Array, "time b n_in"], reset: Bool[Array, "time b"]
) -> tuple[Float[Array, "b state"], Float[Array, "time b h"]]:
    """Final state and all hidden states; `reset` zeroes the state before its row is read."""

    def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        gates_in, reset_t = now
        h, c = jnp.split(jnp.where(reset_t[:, None], 0.0, state), 2, axis=-1)
        i, f, g, o = jnp.split(gates_in + h @ p.w_hidden, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return jnp.concatenate([h, c], axis=-1), h

    return jax.lax.scan(step, state, (x @ p.w_in + p.bias, reset))
