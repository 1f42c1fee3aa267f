"""JAX's random bits on CPUs, the same bits, without a loop.

JAX lowers the 20 rounds of Threefry to a loop there, to compile fast. An environment that draws a few numbers in every
step then spends its time on entering loops; and many small loops compile slower than the rounds as one fused kernel.
"""

from __future__ import annotations

from typing import Any

import jax.interpreters.mlir
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jaxtyping import Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(key_0: Array, key_1: Array, x_0: Array, x_1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): bits of a block [x_0, x_1] under a key, all of uint32."""
    keys = (key_0, key_1, key_0 ^ key_1 ^ jnp.uint32(_PARITY))
    x_0, x_1 = x_0 + keys[0], x_1 + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x_0 = x_0 + x_1
            x_1 = (x_1 << jnp.uint32(distance)) | (x_1 >> jnp.uint32(32 - distance))
            x_1 = x_1 ^ x_0
        x_0 = x_0 + keys[(group + 1) % 3]
        x_1 = x_1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x_0, x_1


def unroll_on_cpu() -> None:
    """From here on, programs for CPUs have the rounds one after the other."""
    mlir: Any = jax.interpreters.mlir  # its annotations are partial
    mlir.register_lowering(threefry2x32_p, mlir.lower_fun(threefry, multiple_results=True), platform="cpu")
