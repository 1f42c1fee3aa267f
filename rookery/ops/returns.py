"""Returns of one sequence, rlax style: `*_t` is aligned with the row that the transition led to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def lambda_returns(
    r_t: Float[Array, "time *b"],
    discount_t: Float[Array, "time *b"],
    v_t: Float[Array, "time *b"],
    lambda_t: Float[Array, "time *b"],
) -> Float[Array, "time *b"]:
    """TD(lambda) targets: g_t = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * g_{t+1}) (Sutton & Barto, 12.18).

    Pass lambda_t = 0 where no transition leaves the row (the end of an episode, the end of the sequence).
    """

    def back(g_next: Array, now: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        r, discount, v, lam = now
        g = r + discount * ((1.0 - lam) * v + lam * g_next)
        return g, g

    end = jnp.zeros_like(v_t[-1])  # pyright: ignore[reportUnknownMemberType]  (jax's own annotation is partial)
    _, g_t = jax.lax.scan(back, end, (r_t, discount_t, v_t, lambda_t), reverse=True, unroll=8)
    return g_t


def continues(last: Array, lam: Array | float) -> Array:
    """`lambda_t` for rows 1..T of a rollout, from `last` of rows 0..T: lambda, but 0 at ends and in the final row."""
    goes_on = jnp.logical_not(last[1:]).at[-1].set(False)
    return jnp.where(goes_on, lam, 0.0).astype(jnp.float32)


def n_step(
    r_t: Float[Array, "time *b"], discount_t: Float[Array, "time *b"], goes_on_t: Bool[Array, "time *b"], n: int
) -> tuple[Float[Array, "time *b"], Float[Array, "time *b"], Int[Array, "time *b"]]:
    """Discounted rewards of up to n transitions from each row on, the discount of what follows, and how many they are.

    `goes_on_t`: whether the next transition of the sequence follows this one; that of the last is not read.
    """
    goes_on_t = goes_on_t.at[-1].set(False)
    total, discount, on = r_t, discount_t, goes_on_t
    count = jnp.ones(r_t.shape, jnp.int32)
    for j in range(1, n):
        total = total + jnp.where(on, discount * _ahead(r_t, j), 0.0)
        discount = jnp.where(on, discount * _ahead(discount_t, j), discount)
        count = count + on
        on = on & _ahead(goes_on_t, j)
    return total, discount, count


def n_step_rows(
    r_t: Float[Array, "time *b"], discount_t: Float[Array, "time *b"], last: Bool[Array, "rows b"], n: int
) -> tuple[Float[Array, "time *b"], Float[Array, "time *b"], Int[Array, "time *b"]]:
    """`n_step` of a rollout, `last` of rows 0..T given; and where in `*_t` the row is that each row bootstraps from."""
    follows = jnp.logical_not(last[1:])
    goes_on = jnp.broadcast_to(follows.reshape(*follows.shape, *[1] * (r_t.ndim - follows.ndim)), r_t.shape)
    total, discount, count = n_step(r_t, discount_t, goes_on, n)
    time = jnp.arange(r_t.shape[0]).reshape(-1, *[1] * (r_t.ndim - 1))
    return total, discount, time + count - 1


def _ahead(x: Array, j: int) -> Array:
    """The entries `j` later; zeros after the last."""
    return jnp.concatenate([x[j:], jnp.zeros_like(x[:j])])  # pyright: ignore[reportUnknownMemberType]
