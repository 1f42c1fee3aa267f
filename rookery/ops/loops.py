"""What `jax.lax` has, as a type checker can follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

S = TypeVar("S")
T = TypeVar("T")


def repeat(times: int | Array, body: Callable[[Array, T], T], start: T) -> T:
    """`body(i, state)` for i = 0, 1, ..., times - 1, from `start`. Large arrays in the state are changed in place."""
    return cast("T", jax.lax.fori_loop(0, times, body, start))  # pyright: ignore[reportUnknownMemberType]  (untyped in JAX)


def once(f: Callable[[], T], count: Int[Array, ""]) -> T:
    """f(), done with all that it reads before anything that uses its result begins.

    For reads of large arrays that are written next. Fusions may repeat a read for each of its users, also after the
    write that another user leads to; XLA then keeps a copy of the whole array. It takes no loop apart whose length it
    does not know: this one has one round, if `count` (any count in a state) is not negative. No gradient passes.
    """

    return repeat(jnp.where(count < 0, 0, 1), lambda _, __: f(), _nothing(f))


def when(ready: Bool[Array, ""], f: Callable[[S], tuple[S, T]], state: S) -> tuple[S, T]:
    """f(state) in a branch; where that is not taken, the same state, and zeros for what f finds."""

    def wait(state: S) -> tuple[S, T]:
        return state, _nothing(lambda: f(state)[1])

    return cast("tuple[S, T]", jax.lax.cond(ready, f, wait, state))  # pyright: ignore[reportUnknownMemberType]  (untyped)


def _nothing(f: Callable[[], T]) -> T:
    """Zeros laid out as what f returns."""

    def empty(x: jax.ShapeDtypeStruct) -> Array:
        return jax.lax.full(x.shape, 0, x.dtype)

    return cast("T", jax.tree.map(empty, jax.eval_shape(f)))  # pyright: ignore[reportUnknownMemberType]  (untyped)
