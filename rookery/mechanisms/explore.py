"""Exploration of policy-gradient families beyond their own distributions: noise on actions, noise on weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import NonNegative
from rookery.core.types import Action, ActionSpec, Carry, Mean, Metrics, Spec
from rookery.mechanisms.actor import Actor, ActorWeights, Distribution, Weights
from rookery.mechanisms.batch import Batch
from rookery.ops import distributions

START, FACTOR = 0.01, 1.02
"""First deviation of the noise on weights, and how much it changes with each update."""


@dataclass(frozen=True)
class Explore:
    """Noise while collecting; evaluation has none."""

    noise: NonNegative = 0.0
    """Deviation of Gaussian noise on continuous actions, which are then clipped to their bounds. Log-probabilities are
    those of the executed actions; 0: none."""
    parameter_noise: NonNegative = 0.0
    """Distance between the actions of noisy and clean weights that the deviation of Gaussian noise on the actor's
    weights is adapted to (Plappert et al. 2018): KL(clean || noisy), of continuous actions the root mean squared
    difference of their means. The noise is constant in a rollout, and gradients are taken at the noisy weights; 0:
    none."""

    def check(self, spec: Spec) -> None:
        """Refuse noise on actions that are not continuous."""
        if self.noise > 0 and spec.action.kind != "box":
            raise ConfigError(
                f"algo.explore.noise is for continuous actions, but those of {spec.name} are {spec.action.kind}; use "
                "--algo.explore.parameter_noise or --algo.entropy."
            )

    def perturb(self, spec: ActionSpec, action: Action, key: Array) -> Action:
        """The action that is executed."""
        return jnp.clip(action + self.noise * jax.random.normal(key, action.shape), *spec.bounds)

    def init(self, weights: Weights, key: Array) -> Weights:
        """The weights, with the first noise on the actor's."""
        if self.parameter_noise <= 0:
            return weights
        return {**weights, "noise": draw(weights["actor"].net, jnp.float32(START), stream(key, "noise"))}

    def renew(
        self, spec: Spec, actor: Actor, weights: Weights, batch: Batch, carry: Carry, key: Array
    ) -> tuple[Weights, Metrics]:
        """The weights with fresh noise, of a scale that follows the distance that the last one made in a batch."""
        if self.parameter_noise <= 0:
            return weights, {}
        clean, now = (actor.read(spec, w, carry, batch.step, batch.action)[1] for w in (weights, noisy(weights)))
        found = distance(spec, clean, now, batch.step.legal, batch.active)
        # All shards must draw the same.
        key, net = stream(shards.total(key), "noise"), weights["actor"].net
        noise, far = adapt(spec, weights["noise"], found, self.parameter_noise, net, key)
        metrics = {"explore/distance": Mean.of(far), "explore/parameter_noise": Mean.of(noise.scale)}
        return {**weights, "noise": noise}, metrics


class ParameterNoise(eqx.Module):
    """Noise on the weights of the actor's network."""

    net: Any
    scale: Float[Array, ""]


def draw(net: Any, scale: Float[Array, ""], key: Array) -> ParameterNoise:
    """Noise of deviation `scale`."""
    flat, restore = ravel_pytree(net)
    return ParameterNoise(restore(scale * jax.random.normal(key, flat.shape)), scale)


def noisy(weights: dict[str, Any]) -> dict[str, Any]:
    """The weights with their noise, if there is any."""
    if "noise" not in weights:
        return weights
    clean: ActorWeights = weights["actor"]
    net = jax.tree.map(jnp.add, clean.net, weights["noise"].net)
    return {**weights, "actor": ActorWeights(net, clean.log_std)}


def distance(spec: Spec, clean: Distribution, noisy: Distribution, legal: Array, active: Array) -> Mean:
    """How far actions of noisy weights are from those of clean ones; of a box, squared."""
    if spec.action.kind == "box":
        return Mean.of(jnp.mean((clean.params - noisy.params) ** 2, axis=-1), active)
    return Mean.of(
        distributions.kl(spec.action, clean.params, clean.log_std, noisy.params, noisy.log_std, legal), active
    )


def adapt(
    spec: Spec, noise: ParameterNoise, found: Mean, target: float, net: Any, key: Array
) -> tuple[ParameterNoise, Float[Array, ""]]:
    """Fresh noise, larger if actions were nearer than `target`, and the distance that was found."""
    far = shards.mean(found)
    far = jnp.sqrt(far) if spec.action.kind == "box" else far
    return draw(net, jnp.where(far < target, noise.scale * FACTOR, noise.scale / FACTOR), key), far
