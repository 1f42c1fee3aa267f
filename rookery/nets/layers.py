"""Dense layers. Arrays only: what to build is said by the configs in `nets.agent`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.keys import stream


@jax.custom_vjp
def elu(x: Array) -> Array:
    """x above 0, exp(x) - 1 below."""
    return jax.nn.elu(x)


def _elu_keep(x: Array) -> tuple[Array, Array]:
    return elu(x), x


def _elu_back(x: Array, d: Array) -> tuple[Array]:
    # The derivative is min(exp(x), 1). As a division, because XLA on CPUs computes what leads to a product again for
    # everything that reads it (with a mixer: the whole loss, for each of its weights), but never a division.
    return (d / jnp.maximum(jnp.exp(-x), 1.0),)


elu.defvjp(_elu_keep, _elu_back)

Activation = Literal["relu", "tanh", "elu", "gelu"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": elu,
    "gelu": jax.nn.gelu,
}
GAINS = {"relu": 2**0.5, "tanh": 5 / 3, "elu": 1.0, "gelu": 1.0}
"""Gains that keep the variance of each activation (as torch's calculate_gain has them)."""


Initializer = Literal["orthogonal", "torch"]

_LINE = 16
"""Numbers in a cache line."""
_MANY = 128
"""Rows of which a column does not fit into a core's first cache if they are 128 wide."""


class Linear(eqx.Module):
    weight: Float[Array, "n_in n_out"]
    bias: Float[Array, "n_out"]
    noise: Noise | None = None
    """One draw of the noise on weights and bias; None: there is none."""

    def __call__(self, x: Float[Array, "*b n_in"]) -> Float[Array, "*b n_out"]:
        y = _affine(x, self.weight, self.bias)
        return y if self.noise is None else y + self.noise(x)


class Noise(eqx.Module):
    """Factorised noise: of a weight, its deviation times one number for its input and one for its output.

    So what it adds to a layer's output is a product with the deviations, and no noisy weight is ever made.
    """

    deviation: Linear
    into: Float[Array, "n_in"]
    out: Float[Array, "n_out"]

    def __call__(self, x: Float[Array, "*b n_in"]) -> Float[Array, "*b n_out"]:
        return self.deviation(x * self.into) * self.out


@jax.custom_vjp
def _affine(x: Array, weight: Array, bias: Array) -> Array:
    return x @ weight + bias


def _affine_keep(x: Array, weight: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    return _affine(x, weight, bias), (x, weight)


def _affine_back(kept: tuple[Array, Array], d: Array) -> tuple[Array, Array, Array]:
    x, weight = kept
    return d @ weight.T, *weight_gradients(x, d)


_affine.defvjp(_affine_keep, _affine_back)


def weight_gradients(
    x: Float[Array, "*b n_in"], d: Float[Array, "*b n_out"]
) -> tuple[Float[Array, "n_in n_out"], Float[Array, "n_out"]]:
    """Gradients of weights and bias, from the input and the gradient of the output."""
    x, d = x.reshape(-1, x.shape[-1]), d.reshape(-1, d.shape[-1])
    ones = jnp.ones((x.shape[0], 1))
    narrow = 1 < d.shape[1] <= _LINE
    aligned = x.shape[1] % _LINE == 0 and d.shape[1] > 1
    if jax.default_backend() == "cpu" and x.shape[0] >= _MANY and (narrow or aligned):
        # One product for both gradients: a column of ones in the input has the bias's.
        with_ones = jnp.concatenate([x, ones], axis=1)
        if narrow:
            # Few columns first; the slice keeps XLA from turning the product around.
            both = d.T @ with_ones
            return both[:, :-1].T, both[:, -1]
        # The product reads columns of the input. Where rows are whole cache lines, a column lies in few sets of the
        # cache and does not fit; with one column more it does.
        both = with_ones.T @ d
        return both[:-1], both[-1]
    # Sums as products: XLA's reductions on CPUs compute their operands again.
    return (d.T @ x).T, ones[:, 0] @ d


def row_means(x: Float[Array, "*b n"]) -> Float[Array, "*b one"]:
    """Means over the last axis, as a product: XLA on CPUs adds up the numbers of a row one by one."""
    return x @ jnp.full((x.shape[-1], 1), 1.0 / x.shape[-1])


class Norm(eqx.Module):
    """Layer normalisation."""

    scale: Float[Array, "n"]
    offset: Float[Array, "n"]

    def __call__(self, x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
        centred = x - row_means(x)
        return centred * jax.lax.rsqrt(row_means(centred**2) + 1e-5) * self.scale + self.offset


def orthogonal(key: Array, n_in: int, n_out: int, gain: float = 1.0) -> Float[Array, "n_in n_out"]:
    """A uniformly random matrix with orthonormal rows or columns, scaled.

    The polar factor of a Gaussian matrix, by Newton-Schulz iteration: its matrix products run anywhere, whereas many
    LAPACK factorisations in one program (jax's own orthogonal initialiser) can deadlock XLA on a CPU with two cores.
    """
    tall = jax.random.normal(key, (max(n_in, n_out), min(n_in, n_out)))
    w = tall / jnp.linalg.norm(tall)

    def iterate(_: Array, w: Array) -> Array:
        return 1.5 * w - 0.5 * w @ (w.T @ w)

    # Singular values grow by 1.5 per iteration until they reach 1: 50 lift even 1e-8 of the largest.
    w = jax.lax.fori_loop(0, 50, iterate, w)
    return gain * (w if n_in >= n_out else w.T)


def uniform(key: Array, n_in: int, *shape: int) -> Float[Array, "..."]:
    """What torch begins with by default: uniform between -1 / sqrt(n_in) and 1 / sqrt(n_in)."""
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) / n_in**0.5


def linear(key: Array, n_in: int, n_out: int, gain: float = 1.0, initializer: Initializer = "orthogonal") -> Linear:
    """Orthogonal weights and zero bias, or torch's defaults (which know no gain)."""
    if initializer == "torch":
        return Linear(uniform(stream(key, "weight"), n_in, n_in, n_out), uniform(stream(key, "bias"), n_in, n_out))
    return Linear(orthogonal(key, n_in, n_out, gain), jnp.zeros(n_out))


def norm(n: int) -> Norm:
    return Norm(jnp.ones(n), jnp.zeros(n))
