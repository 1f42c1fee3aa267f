"""Random bits are JAX's own, whatever they are compiled to."""

from __future__ import annotations

import subprocess
import sys

import jax.numpy as jnp
import pytest

from rookery.core.threefry import threefry

# Known answers of the authors' library (Random123, threefry2x32_20): key, block, bits.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "block", "bits"), KNOWN)
def test_bits_are_those_of_the_authors(key: tuple[int, int], block: tuple[int, int], bits: tuple[int, int]) -> None:
    found = threefry(*(jnp.uint32(x) for x in (*key, *block)))
    assert tuple(int(x) for x in found) == bits


DRAWS = """
import jax, numpy as np
key = jax.random.PRNGKey(7)
keys = jax.random.split(jax.random.fold_in(key, 3), 4)
print(np.asarray(jax.random.bits(key, (5,))).tolist())
print(np.asarray(jax.vmap(lambda k: jax.random.permutation(k, 9))(keys)).tolist())
print(np.asarray(jax.jit(lambda k: jax.random.normal(k, (3, 3)))(key)).tolist())
print("while" in jax.jit(lambda k: jax.random.bits(k, (5,))).lower(key).as_text())
"""


def test_draws_are_those_of_plain_jax_without_its_loops() -> None:
    def lines(code: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    plain, ours = lines(DRAWS), lines("import rookery.core.keys\n" + DRAWS)
    assert plain[:3] == ours[:3]
    assert (plain[3], ours[3]) == ("True", "False"), "JAX has changed how it lowers threefry: is core/threefry needed?"
