"""Random keys from (seed, purpose, time): adding a draw moves no other stream, and no key is threaded by hand."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import jax
from jaxtyping import Array, Int, UInt

from rookery.core import threefry

threefry.unroll_on_cpu()

Key = UInt[Array, "2"]
Keys = Callable[[str], Array]
"""The keys of one moment, by purpose."""


def stream(key: Array, name: str, t: Int[Array, ""] | int = 0) -> Array:
    """The key for purpose `name` at time `t`."""
    return jax.random.fold_in(jax.random.fold_in(key, zlib.crc32(name.encode())), t)
