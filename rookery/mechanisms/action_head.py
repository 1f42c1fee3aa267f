"""From the outputs of actors to actions, for every kind of action space that critics of actions can be trained on.

Critics read actions as numbers [..., width]: one-hot for each discrete branch; -1 to 1 between the bounds of each
dimension of a box, 0 in dimensions that an agent does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rookery.core.errors import ConfigError
from rookery.core.ranges import NonNegative, Positive
from rookery.core.types import Action, ActionSpec, Mean, Metrics, Spec, Step
from rookery.nets.inputs import encode_action
from rookery.ops import distributions, squash
from rookery.ops.gumbel import Gumbel
from rookery.ops.noise import Noise, smoothed

Encoded = Float[Array, "*b agent width"]
Params = Float[Array, "*b agent n"]
Legal = Bool[Array, "*b agent width"]


@dataclass(frozen=True)
class Smoothing:
    """Noise on the target actors' continuous actions (TD3)."""

    scale: NonNegative = 0.0
    """Its standard deviation, in units of half the range of a dimension; 0: none."""
    limit: NonNegative = 0.5
    """Its largest size, in the same units."""


@dataclass(frozen=True)
class Entropy:
    """What the entropy of a policy is worth (SAC)."""

    kind: Literal["none", "fixed", "auto"] = "none"
    """fixed: `alpha` for each unit of entropy; auto: alpha is learned, so that the entropy stays near its target."""
    alpha: Positive = 0.1
    """Worth of a unit of entropy (auto: at the start)."""
    share: NonNegative = 0.3
    """Target of discrete actions, as a share of the entropy of uniformly random legal ones. (That of a box is minus its
    number of dimensions, measured between -1 and 1.)"""
    lr: NonNegative = 0.01
    """Learning rate of alpha."""

    @property
    def fixed(self) -> float:
        """Worth of a unit of entropy that is not learned."""
        return self.alpha if self.kind == "fixed" else 0.0

    def worth(self, weights: dict[str, Any]) -> Array:
        """Worth of a unit of each agent's entropy; weights of "alpha" are its learned logarithm."""
        return jnp.exp(weights["alpha"]) if self.kind == "auto" else jnp.float32(self.fixed)

    def gain(
        self, weights: dict[str, Any], entropy: Float[Array, "*b agent"], active: Bool[Array, "*b agent"]
    ) -> tuple[Mean, Metrics]:
        """What the actors' entropy is worth to them, and what to log about it."""
        worth = self.worth(weights)
        gain = Mean.of(jax.lax.stop_gradient(worth) * entropy, active)
        return gain, {"entropy": Mean.of(jax.lax.stop_gradient(entropy), active), "alpha": Mean.of(worth)}


@dataclass(frozen=True)
class ActionHead:
    """How actors explore and how gradients pass through their actions."""

    gumbel: Gumbel
    noise: Noise
    smoothing: Smoothing
    entropy: Entropy

    def check(self, spec: Spec) -> None:
        """Refuse action spaces and noise that have no meaning here."""
        kind, (low, high) = spec.action.kind, spec.action.bounds
        if kind == "multi_binary":
            raise ConfigError(f"this family has no gradient through bits; {spec.name} has {kind} actions. Try mappo.")
        if kind == "box" and not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ConfigError(
                f"actors end in a tanh between the bounds of each dimension, but {spec.name} has dimensions without "
                "finite bounds. Try mappo."
            )
        self.noise.check()

    @property
    def _soft(self) -> bool:
        return self.entropy.kind != "none"

    def parameters(self, spec: ActionSpec) -> int:
        """Numbers that an actor must output: logits, the action before tanh, or mean and log std of a Gaussian."""
        return spec.width * (2 if spec.kind == "box" and self._soft else 1)

    # -- actions as numbers, and back -------------------------------------------------------------------------------
    def encode(self, spec: Spec, action: Action) -> Encoded:
        """Actions of the environment as critics read them."""
        if spec.action.kind != "box":
            return encode_action(spec.action, action)
        low, high = spec.action.bounds
        return jnp.where(real(spec), (2.0 * action - (high + low)) / (high - low), 0.0)

    def _decode(self, spec: Spec, u: Encoded) -> Action:
        """Continuous actions for the environment."""
        low, high = (jnp.asarray(bound) for bound in spec.action.bounds)
        return 0.5 * ((high + low) + (high - low) * u)

    # -- acting -----------------------------------------------------------------------------------------------------
    def greedy(self, spec: Spec, params: Params, legal: Legal) -> Action:
        """The most likely (discrete) or the mean (continuous) action."""
        if spec.action.kind == "box":
            return self._decode(spec, self._mean(spec, params))
        return _sample(spec, params, legal, None)

    def explore(self, spec: Spec, params: Params, step: Step, noise: Array, key: Array) -> tuple[Array, Action]:
        """The state of the noise process, and a sample (discrete, or of SAC's Gaussian) or the mean plus noise."""
        if spec.action.kind != "box":
            return noise, _sample(spec, params, step.legal, key)
        if self._soft:
            return noise, self._decode(spec, self._gaussian(spec, params, key)[0])
        one, first = jnp.ones(spec.action.width), jnp.broadcast_to(step.first[:, None], step.alive.shape)
        noise, u = self.noise.add(key, self._mean(spec, params), noise, first, -one, one)
        return noise, self._decode(spec, u)

    def uniform(self, spec: Spec, legal: Legal, key: Array) -> Action:
        """Uniformly random legal actions."""
        if spec.action.kind == "box":
            return self._decode(spec, jax.random.uniform(key, legal.shape, minval=-1.0, maxval=1.0))
        return _sample(spec, jnp.zeros(legal.shape), legal, key)

    # -- learning ---------------------------------------------------------------------------------------------------
    def differentiable(
        self, spec: Spec, params: Params, legal: Legal, key: Array, steps: Array
    ) -> tuple[Encoded, Float[Array, "*b agent"]]:
        """Actions of the actors with a gradient, and the entropy of their distributions (0 if it is worth nothing)."""
        if spec.action.kind == "box":
            return self._gaussian(spec, params, key) if self._soft else _certain(self._mean(spec, params))
        return self.gumbel.draw(key, params, legal, steps, spec.action.sizes), self._discrete_entropy(
            spec, params, legal
        )

    def target(
        self, spec: Spec, params: Params, legal: Legal, key: Array, *, sampled: bool
    ) -> tuple[Encoded, Float[Array, "*b agent"]]:
        """Actions that targets are computed with, and the entropy of their distributions. They have no gradient."""
        if spec.action.kind == "box":
            if self._soft:
                return self._gaussian(spec, params, key)
            u = self._mean(spec, params)
            if self.smoothing.scale:
                one = jnp.ones(spec.action.width)
                u = jnp.where(real(spec), smoothed(key, u, self.smoothing.scale, self.smoothing.limit, -one, one), 0.0)
            return _certain(u)
        entropy = self._discrete_entropy(spec, params, legal)
        if sampled and self.gumbel.kind == "relaxed":
            return self.gumbel.draw(key, params, legal, jnp.uint32(0), spec.action.sizes), entropy
        # One index for each branch, so that ties give one action.
        chosen = _sample(spec, params, legal, key if sampled else None)
        return encode_action(spec.action, chosen), entropy

    def wanted(self, spec: Spec, legal: Legal) -> Float[Array, "*b agent"]:
        """The entropy that an automatic weight aims at."""
        if spec.action.kind == "box":
            return jnp.broadcast_to(-jnp.sum(real(spec), axis=-1), legal.shape[:-1]).astype(jnp.float32)
        return self.entropy.share * _entropy(spec, jnp.zeros(legal.shape), legal)

    def size(self, spec: Spec, params: Params, legal: Legal) -> Float[Array, "*b agent"]:
        """Mean square of the outputs that matter: those of legal actions, or of dimensions that an agent has."""
        used = real(spec) if spec.action.kind == "box" else legal
        x = jnp.where(used, params[..., : spec.action.width], 0.0)
        return jnp.sum(x**2, axis=-1) / jnp.maximum(jnp.sum(used, axis=-1), 1)

    def _mean(self, spec: Spec, params: Params) -> Encoded:
        return jnp.where(real(spec), jnp.tanh(params[..., : spec.action.width]), 0.0)

    def _gaussian(self, spec: Spec, params: Params, key: Array) -> tuple[Encoded, Float[Array, "*b agent"]]:
        """A squashed sample, and minus its log-density."""
        mean, log_std = jnp.split(params, 2, axis=-1)
        u, log_density = squash.sample(key, mean, log_std)
        return jnp.where(real(spec), u, 0.0), -jnp.sum(jnp.where(real(spec), log_density, 0.0), axis=-1)

    def _discrete_entropy(self, spec: Spec, params: Params, legal: Legal) -> Float[Array, "*b agent"]:
        if not self._soft:
            return jnp.zeros(params.shape[:-1])
        return _entropy(spec, params, legal)


def real(spec: Spec) -> Bool[np.ndarray, "agent width"]:
    """Dimensions of a box that each agent has."""
    sizes = np.array(spec.action_sizes or (spec.action.width,) * spec.n_agents)
    return np.arange(spec.action.width) < sizes[:, None]


def _certain(u: Encoded) -> tuple[Encoded, Float[Array, "*b agent"]]:
    return u, jnp.zeros(u.shape[:-1])


def _sample(spec: Spec, logits: Params, legal: Legal, key: Array | None) -> Action:
    """Discrete actions drawn from softmax(logits); without a key the most likely ones."""
    unused = jnp.zeros(2, jnp.uint32)
    return distributions.sample(
        spec.action, logits, jnp.zeros(spec.action.width), legal, unused if key is None else key, greedy=key is None
    )


def _entropy(spec: Spec, logits: Params, legal: Legal) -> Float[Array, "*b agent"]:
    """Entropy of discrete actions."""
    return distributions.entropy(spec.action, logits, jnp.zeros(spec.action.width), legal)
