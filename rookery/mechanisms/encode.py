"""From an observation to the key of a memory: as it is, projected at random, or through a trained network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count
from rookery.core.types import Spec, as_float
from rookery.nets.encoder import Conv, conv
from rookery.nets.layers import Linear, linear

_SMALL = 32
"""Images up to this size are read whole (MinAtar, mazes); larger ones with the strides of Mnih et al. 2015."""


class EncoderParams(eqx.Module):
    """Arrays of an encoder; none for the identity."""

    convs: tuple[Conv, ...]
    layers: tuple[Linear, ...]


@dataclass(frozen=True)
class Encoder:
    """observation -> key."""

    kind: Literal["identity", "random", "mlp", "conv"] = "identity"
    """identity: the flat observation. random: a fixed Gaussian projection of it. mlp, conv: trained through the
    memory's gradient."""
    dim: Count = 64
    """Length of a key, unless it is the observation itself."""
    width: Count = 128
    """Units of the hidden layers."""
    hidden: Count = 1
    """Hidden dense layers."""

    @property
    def trained(self) -> bool:
        """Whether it has weights that learn."""
        return self.kind in ("mlp", "conv")

    def size(self, spec: Spec) -> int:
        """Length of a key."""
        return spec.obs_size if self.kind == "identity" else self.dim

    def small(self) -> Encoder:
        """The same encoder, narrow."""
        return replace(self, dim=4, width=8)

    def check(self, spec: Spec) -> None:
        """Refuse an encoder that cannot read such observations."""
        if self.kind == "conv" and len(spec.obs_shape) != 3:
            raise ConfigError(
                f"algo.encoder.kind conv reads images [height, width, channel]; {spec.name} has observations of shape "
                f"{spec.obs_shape}. Use mlp, random or identity."
            )

    def init(self, spec: Spec, key: Array) -> EncoderParams:
        """Fresh weights."""
        if self.kind == "identity":
            return EncoderParams((), ())
        if self.kind == "random":
            weight = jax.random.normal(stream(key, "projection"), (spec.obs_size, self.dim)) / self.dim**0.5
            return EncoderParams((), (Linear(weight, jnp.zeros(self.dim)),))
        convs = tuple(conv(stream(key, "kernel", i), *s) for i, s in enumerate(self._sizes(spec)))
        features = jax.eval_shape(lambda: self._features(convs, jnp.zeros((1, *spec.obs_shape)))).shape[-1]
        sizes = [features] + [self.width] * self.hidden
        layers = [linear(stream(key, "dense", i), a, b, 2**0.5) for i, (a, b) in enumerate(pairwise(sizes))]
        return EncoderParams(convs, (*layers, linear(stream(key, "key"), sizes[-1], self.dim)))

    def _sizes(self, spec: Spec) -> list[tuple[int, int, int]]:
        """Input and output channels and size of each convolution."""
        if self.kind != "conv":
            return []
        channels = spec.obs_shape[2]
        if spec.obs_shape[0] <= _SMALL:
            return [(channels, 16, 3)]
        return [(channels, 32, 8), (32, 64, 4), (64, 64, 3)]

    def __call__(self, spec: Spec, params: EncoderParams, obs: Array) -> Float[Array, "*b dim"]:
        """Keys of observations [*b, agent, *obs] of a single agent."""
        batch = obs.shape[: obs.ndim - len(spec.obs_shape) - 1]
        x = self._features(params.convs, as_float(obs.reshape(-1, *spec.obs_shape)))
        for i, layer in enumerate(params.layers):
            x = layer(jax.nn.relu(x) if i else x)
        return x.reshape(*batch, -1)

    def _features(self, convs: tuple[Conv, ...], x: Float[Array, "n *obs"]) -> Float[Array, "n features"]:
        for layer in convs:
            x = jax.nn.relu(layer(x, stride={8: 4, 4: 2, 3: 1}[layer.weight.shape[0]]))
        return x.reshape(x.shape[0], -1)
