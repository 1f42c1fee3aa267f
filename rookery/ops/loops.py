"""What `jax.lax` has, as a type checker can follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from rookery.core import shards

S = TypeVar("S")
T = TypeVar("T")
_jax: Any = jax  # not all of it is fully typed
_eqx: Any = eqx


def repeat(times: int | Array, body: Callable[[Array, T], T], start: T) -> T:
    """`body(i, state)` for i = 0, 1, ..., times - 1, from `start`. Large arrays in the state are changed in place."""
    return cast("T", jax.lax.fori_loop(0, times, body, start))  # pyright: ignore[reportUnknownMemberType]  (untyped in JAX)


def settle(times: int | Array, body: Callable[[Array, Array], Array], start: Array) -> Array:
    """As `repeat`, but ends with the first round that changes nothing; under a `vmap`, that changes no member."""

    def goes_on(now: tuple[Array, Array, Array]) -> Array:
        i, changes, _ = now
        return (i < times) & (changes > 0)

    def one(now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, _, state = now
        after = body(i, state)
        return i + 1, widest(jnp.any(after != state).astype(jnp.int32)), after

    loop: Any = _jax.lax.while_loop(goes_on, one, (jnp.int32(0), jnp.int32(1), start))
    return loop[2]


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


def widest(x: Int[Array, "*b"]) -> Int[Array, "*b"]:
    """x; under a `vmap`, the largest x of all members, which then has no axis of members.

    For lengths of loops: where members disagree on one, every round selects anew what each member keeps.
    """

    def batched(_: int, along: list[bool], x: Array) -> tuple[Array, bool]:
        return (jnp.max(x, axis=0), False) if along[0] else (x, False)

    def same(x: Array) -> Array:
        return x

    call = _jax.custom_batching.custom_vmap(same)
    call.def_vmap(batched)
    return call(x)


def alone(f: Callable[..., T], *args: Any) -> T:
    """f(*args); under a `vmap` over a single member, without the axis of length 1 that it adds.

    For work on small arrays beside a large one that keeps its axis (it would be copied otherwise). With such an axis
    XLA on CPUs brings the operands of every product and convolution into one order, and so it turns matrices around.
    """
    if shards.several():  # they meet over an axis by its name, which a batching rule does not know
        return f(*args)
    arrays, static = _eqx.partition((_eqx.filter_closure_convert(f, *args), args), eqx.is_array)

    def plain(arrays: Any) -> T:
        closed, given = _eqx.combine(arrays, static)
        return closed(*given)

    def batched(size: int, along: list[Any], arrays: Any) -> tuple[T, Any]:
        (has_axis,) = along
        if size > 1:
            found = _jax.vmap(plain, in_axes=(_jax.tree.map(_axis, has_axis),))(arrays)
        else:
            found = _jax.tree.map(_with_axis, plain(_jax.tree.map(_without_axis, has_axis, arrays)))
        return found, _jax.tree.map(_always, found)

    call = _jax.custom_batching.custom_vmap(plain)
    call.def_vmap(batched)
    return call(arrays)


def _axis(has_axis: bool) -> int | None:
    return 0 if has_axis else None


def _without_axis(has_axis: bool, x: Any) -> Any:
    return x[0] if has_axis else x


def _with_axis(x: Any) -> Array:
    return jnp.expand_dims(x, 0)  # a constant is no array yet


def _always(_: Any) -> bool:
    return True


def _nothing(f: Callable[[], T]) -> T:
    """Zeros laid out as what f returns."""

    def empty(x: jax.ShapeDtypeStruct) -> Array:
        return jax.lax.full(x.shape, 0, x.dtype)

    return cast("T", jax.tree.map(empty, jax.eval_shape(f)))  # pyright: ignore[reportUnknownMemberType]  (untyped)
