"""From an observation to the key of a memory: as it is, projected at random, or through a trained network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, NonNegative
from rookery.core.types import Spec, as_float
from rookery.nets import encoder as images
from rookery.nets.layers import Linear, linear
from rookery.ops.latent import kl_to_normal, sample, symlog

_SMALL = 32
"""Images up to this size are read whole (MinAtar, mazes); larger ones with the strides of Mnih et al. 2015."""
_GAIN = 2**0.5


class VaeParams(eqx.Module):
    """What a variational autoencoder has besides its encoder; only training reads it."""

    log_var: Linear
    decoder: tuple[Linear, ...]
    value: Linear | None
    """None without a value head."""


class EncoderParams(eqx.Module):
    """Arrays of an encoder; none for the identity."""

    image: images.EncoderParams | None
    layers: tuple[Linear, ...]
    vae: VaeParams | None = None


@dataclass(frozen=True)
class Vae:
    """The losses of a variational autoencoder."""

    kl: NonNegative = 1e-2
    """Weight of the KL divergence of keys from a standard normal. Reconstruction is half the squared error, summed
    over an observation whose numbers are about 0 to 1."""
    value: NonNegative = 0.0
    """Weight of the value head, which predicts an example's target from its key; 0: no head."""


@dataclass(frozen=True)
class Encoder:
    """observation -> key."""

    kind: Literal["identity", "random", "mlp", "conv", "resnet", "vae"] = "identity"
    """identity: the flat observation. random: a fixed Gaussian projection of it. mlp, conv, resnet: trained through
    the memory's gradient. vae: the mean of a variational autoencoder's latent (conv for images, else mlp)."""
    dim: Count = 64
    """Length of a key, unless it is the observation itself."""
    width: Count = 128
    """Units of the hidden layers."""
    hidden: Count = 1
    """Hidden dense layers."""
    through: bool = False
    """Train a vae through the memory's gradient as well."""
    vae: Vae = field(default_factory=Vae)

    @property
    def trained(self) -> bool:
        """Whether it has weights that learn."""
        return self.kind not in ("identity", "random")

    @property
    def by_memory(self) -> bool:
        """Whether the memory's gradient trains it."""
        return self.trained and (self.kind != "vae" or self.through)

    def size(self, spec: Spec) -> int:
        """Length of a key."""
        return spec.obs_size if self.kind == "identity" else self.dim

    def small(self) -> Encoder:
        """The same encoder, narrow."""
        return replace(self, dim=4, width=8)

    def check(self, spec: Spec) -> None:
        """Refuse an encoder that cannot read such observations."""
        if self.kind in ("conv", "resnet") and len(spec.obs_shape) != 3:
            raise ConfigError(
                f"algo.encoder.kind {self.kind} reads images [height, width, channel]; {spec.name} has observations of "
                f"shape {spec.obs_shape}. Use mlp, vae, random or identity."
            )

    def _image(self, spec: Spec) -> images.Encoder:
        """What reads images before the dense layers; kind none for other observations."""
        if self.kind == "mlp" or len(spec.obs_shape) != 3:
            return images.Encoder("none")
        if self.kind == "resnet":
            return images.Encoder("impala", self.width)
        return images.Encoder("small" if spec.obs_shape[0] <= _SMALL else "nature", self.width)

    def init(self, spec: Spec, key: Array) -> EncoderParams:
        """Fresh weights."""
        if self.kind == "identity":
            return EncoderParams(None, ())
        if self.kind == "random":
            weight = jax.random.normal(stream(key, "projection"), (spec.obs_size, self.dim)) / self.dim**0.5
            return EncoderParams(None, (Linear(weight, jnp.zeros(self.dim)),))
        image = self._image(spec).init(stream(key, "image"), spec.obs_shape)
        # Convolutions end with a dense layer of their own.
        sizes = [spec.obs_size] * (image is None) + [self.width] * self.hidden
        layers = [linear(stream(key, "dense", i), a, b, _GAIN) for i, (a, b) in enumerate(pairwise(sizes))]
        layers.append(linear(stream(key, "key"), self.width, self.dim))
        return EncoderParams(image, tuple(layers), self._init_vae(spec, key) if self.kind == "vae" else None)

    def _init_vae(self, spec: Spec, key: Array) -> VaeParams:
        sizes = [self.dim] + [self.width] * self.hidden
        decoder = [linear(stream(key, "decoder", i), a, b, _GAIN) for i, (a, b) in enumerate(pairwise(sizes))]
        decoder.append(linear(stream(key, "reconstruction"), self.width, spec.obs_size))
        value = linear(stream(key, "value"), self.dim, 1) if self.vae.value else None
        return VaeParams(linear(stream(key, "log_var"), self.width, self.dim, 0.1), tuple(decoder), value)

    def __call__(self, spec: Spec, params: EncoderParams, obs: Array) -> Float[Array, "*b dim"]:
        """Keys of observations [*b, agent, *obs] of a single agent."""
        batch = obs.shape[: obs.ndim - len(spec.obs_shape) - 1]
        x = self._features(spec, params, obs)
        return (params.layers[-1](x) if params.layers else x).reshape(*batch, -1)

    def _features(self, spec: Spec, params: EncoderParams, obs: Array) -> Float[Array, "n features"]:
        """What the last layer reads."""
        x = as_float(obs.reshape(-1, spec.obs_size))
        if params.image is not None:
            x = self._image(spec)(params.image, x)
        for layer in params.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return x

    def losses(
        self, spec: Spec, params: EncoderParams, obs: Array, target: Float[Array, "n"], key: Array
    ) -> dict[str, tuple[float, Float[Array, ""]]]:
        """Losses of its own: weight and mean over observations [n, agent, *obs], by name; none but for a vae."""
        if params.vae is None:
            return {}
        x = self._features(spec, params, obs)
        mean, log_var = params.layers[-1](x), params.vae.log_var(x)
        y = sample(key, mean, log_var)
        for i, layer in enumerate(params.vae.decoder):
            y = layer(jax.nn.relu(y) if i else y)
        missed = 0.5 * jnp.sum(jnp.square(y - as_float(obs.reshape(y.shape))), axis=1)
        kl = jax.vmap(kl_to_normal)(mean, log_var)
        losses = {"vae/reconstruction": (1.0, jnp.mean(missed)), "vae/kl": (self.vae.kl, jnp.mean(kl))}
        if params.vae.value is not None:
            error = params.vae.value(mean)[:, 0] - symlog(target)
            losses["vae/value"] = (self.vae.value, 0.5 * jnp.mean(jnp.square(error)))
        return losses
