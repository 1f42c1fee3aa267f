"""Encoders of image observations: what a network reads instead of the image's numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Whole
from rookery.nets.layers import Linear, linear, orthogonal
from rookery.ops.convolution import convolve, same_padding

# (filters, size, stride) of each convolution.
_LAYERS = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "data_efficient": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. 2019
    "small": ((16, 3, 1),),  # MinAtar (Young and Tian 2019), mazes
}
_IMPALA = (16, 32, 32)
_GAIN = 2**0.5


class Conv(eqx.Module):
    """A convolution [height, width, channel]; padding as given when it is applied."""

    weight: Float[Array, "h w n_in n_out"]
    bias: Float[Array, "n_out"]

    def __call__(self, x: Float[Array, "b h w n"], stride: int, padding: str = "VALID") -> Float[Array, "b y x m"]:
        if padding == "SAME":
            x = same_padding(x, self.weight.shape[0], stride)
        return convolve(x, self.weight, stride) + self.bias


class EncoderParams(eqx.Module):
    convs: tuple[Conv, ...]
    out: Linear | None
    shape: tuple[int, ...] = eqx.field(static=True)
    """Of the image: height, width, channels. It is the beginning of a network's input, flattened."""
    outputs: int = eqx.field(static=True)
    """Features that the encoder hands on."""


@dataclass(frozen=True)
class Encoder:
    """Convolutions over an image observation, then a dense layer."""

    kind: Literal["none", "nature", "data_efficient", "small", "impala"] = "none"
    """none: the observation's numbers as they are. nature: DQN's three convolutions. data_efficient: two large
    strides (Atari 100k). small: one 3x3 convolution (MinAtar, mazes). impala: three residual stages."""
    width: Whole = 256
    """Features of the dense layer; 0: none, the outputs of the convolutions are handed on as they are."""

    def small(self) -> Encoder:
        """The same encoder, narrow."""
        return self if self.kind == "none" or not self.width else replace(self, width=8)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse observations that are no images, or too small."""
        if self.kind != "none" and len(shape) != 3:
            raise ConfigError(
                f"encoder '{self.kind}' reads images [height, width, channel]; the input has shape {shape}. Use "
                "encoder.kind none."
            )
        for _, size, stride in _LAYERS.get(self.kind, ()):
            shape = tuple((side - size) // stride + 1 for side in shape[:2])
            if min(shape) < 1:
                raise ConfigError(f"encoder '{self.kind}' needs larger images: its convolutions leave nothing of them.")

    def init(self, key: Array, shape: tuple[int, ...]) -> EncoderParams | None:
        """Fresh weights for images of this shape; None for kind none."""
        if self.kind == "none":
            return None
        self.check(shape)
        convs = tuple(self._convs(key, shape[2]))
        blank = jax.eval_shape(lambda x: self._features(convs, x), jax.ShapeDtypeStruct((1, *shape), jnp.float32))
        if 0 in blank.shape:
            raise ConfigError(f"encoder '{self.kind}' needs larger images than {shape}; use encoder.kind small.")
        flat = blank.shape[1] * blank.shape[2] * blank.shape[3]
        out = linear(stream(key, "out"), flat, self.width, _GAIN) if self.width else None
        return EncoderParams(convs, out, shape, self.width or flat)

    def _convs(self, key: Array, channels: int) -> list[Conv]:
        sizes: list[tuple[int, int, int]] = []
        if self.kind == "impala":
            for filters in _IMPALA:
                sizes += [(channels, filters, 3), *[(filters, filters, 3)] * 4]
                channels = filters
        else:
            for filters, size, _ in _LAYERS[self.kind]:
                sizes.append((channels, filters, size))
                channels = filters
        return [conv(stream(key, "conv", i), *each) for i, each in enumerate(sizes)]

    def __call__(self, params: EncoderParams, x: Float[Array, "*b n"]) -> Float[Array, "*b m"]:
        """The image at the beginning of `x` as features; the rest of `x` follows them as it is."""
        height, width, channels = params.shape
        size = height * width * channels
        image = x[..., :size].reshape(-1, height, width, channels)
        features = self._features(params.convs, image).reshape(*x.shape[:-1], -1)
        if params.out is not None:
            features = jax.nn.relu(params.out(features))
        return jnp.concatenate([features, x[..., size:]], axis=-1)

    def _features(self, convs: tuple[Conv, ...], x: Float[Array, "b h w n"]) -> Float[Array, "b y x m"]:
        if self.kind == "impala":
            return _impala(convs, x)
        for layer, (_, _, stride) in zip(convs, _LAYERS[self.kind], strict=True):
            x = jax.nn.relu(layer(x, stride))
        return x


def conv(key: Array, n_in: int, n_out: int, size: int) -> Conv:
    """Orthogonal weights, zero bias."""
    weight = orthogonal(key, size * size * n_in, n_out, _GAIN)
    return Conv(weight.reshape(size, size, n_in, n_out), jnp.zeros(n_out))


def _impala(convs: tuple[Conv, ...], x: Array) -> Array:
    """Three stages of a convolution, a pooling and two residual blocks (Espeholt et al. 2018)."""
    for stage in range(len(_IMPALA)):
        first, *blocks = convs[5 * stage : 5 * stage + 5]
        x = first(x, 1, "SAME")
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for a, b in (blocks[:2], blocks[2:]):
            x = x + b(jax.nn.relu(a(jax.nn.relu(x), 1, "SAME")), 1, "SAME")
    return jax.nn.relu(x)
