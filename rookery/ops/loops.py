"""What `jax.lax` has, as a type checker can follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

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

    def empty(x: jax.ShapeDtypeStruct) -> Array:
        return jax.lax.full(x.shape, 0, x.dtype)

    nothing = cast("T", jax.tree.map(empty, jax.eval_shape(f)))  # pyright: ignore[reportUnknownMemberType]  (untyped)
    return repeat(jnp.where(count < 0, 0, 1), lambda _, __: f(), nothing)
