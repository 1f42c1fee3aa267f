"""Gradient steps whose learning rate follows the run's progress (so that a sweep can trace it)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rookery.core.ranges import Fraction, NonNegative, Positive, Whole
from rookery.core.types import Mean, Metrics


@dataclass(frozen=True)
class Optimiser:
    """Clip the gradient's norm, rescale, step."""

    kind: Literal["adam", "rmsprop", "radam"] = "adam"
    """How gradients are rescaled."""
    lr: NonNegative = 5e-4
    """Learning rate at the start."""
    decay: Literal["none", "linear"] = "none"
    """linear: the rate falls to 0 at the end of the budget."""
    clip: Positive = 10.0
    """Largest gradient norm; larger ones are scaled down to it."""
    eps: NonNegative = 1e-5
    """Added to the denominator."""
    rms_decay: Fraction = 0.99
    """Memory of rmsprop's squared gradients."""
    rms_start: NonNegative = 0.0
    """Mean of rmsprop's squared gradients at the start: 0 in torch, 1 in TensorFlow."""
    rms_eps: Literal["after_root", "in_root"] = "after_root"
    """Where rmsprop adds `eps`: after_root: sqrt(mean) + eps (torch, PyMARL); in_root: sqrt(mean + eps) (TensorFlow,
    A3C). The latter divides by no less than sqrt(eps)."""

    def _transform(self) -> optax.GradientTransformation:
        scale = {
            "adam": lambda: optax.scale_by_adam(eps=self.eps),
            "radam": lambda: optax.scale_by_radam(eps=self.eps),
            "rmsprop": lambda: optax.scale_by_rms(
                self.rms_decay, self.eps, self.rms_start, eps_in_sqrt=self.rms_eps == "in_root"
            ),
        }[self.kind]()
        return optax.chain(optax.clip_by_global_norm(self.clip), scale)

    # Gradients are one long vector here: otherwise each layer has small programs of its own, to be compiled and called.
    def init(self, params: Any) -> Any:
        return self._transform().init(ravel_pytree(params)[0])

    def step(self, params: Any, grads: Any, state: Any, progress: Float[Array, ""]) -> tuple[Any, Any]:
        """New parameters and optimiser state; `progress` is the share of the budget used."""
        flat, restore = ravel_pytree(grads)
        updates: Any
        updates, state = self._transform().update(flat, state)
        rate = self.lr * (1.0 - progress) if self.decay == "linear" else self.lr
        return jax.tree.map(lambda p, u: p - rate * u, params, restore(updates)), state


def norm(grads: Any) -> Float[Array, ""]:
    """Length of a gradient, computed as clipping does it, so that XLA does it once."""
    return optax.tree.norm(ravel_pytree(grads)[0])


Groups = dict[str, Any]
"""Weights, gradients or optimiser states by the name of their group."""


def step_groups(
    optimiser: Callable[[str], Optimiser], nets: Groups, opt: Groups, grads: Groups, progress: Float[Array, ""]
) -> tuple[Groups, Groups, Metrics]:
    """Weights and optimiser states after a step of the groups that have gradients, each by its own optimiser, and the
    lengths of the gradients."""
    nets, opt = dict(nets), dict(opt)
    for name, grad in grads.items():
        nets[name], opt[name] = optimiser(name).step(nets[name], grad, opt[name], progress)
    return nets, opt, gradient_norms(grads)


def gradient_norms(grads: Groups) -> Metrics:
    """Lengths of the gradients, by group."""
    return {f"grad_norm_{name}": Mean.of(norm(grad)) for name, grad in grads.items()}


@dataclass(frozen=True)
class Schedule:
    """A probability or a share that moves linearly from `start` to `end` and stays there."""

    start: Fraction
    """Value at step 0."""
    end: Fraction
    """Value from `steps` on."""
    steps: Whole = 50_000
    """Environment steps of the way; 0: `share` of the budget instead."""
    share: Fraction = 0.1
    """Share of the budget that the way takes if `steps` is 0."""

    def at(self, steps: Array, budget: Array) -> Float[Array, ""]:
        """Value after so many environment steps."""
        way = self.duration(budget)
        return self.start + (self.end - self.start) * jnp.clip(steps.astype(jnp.float32) / way, 0.0, 1.0)

    def duration(self, budget: Any) -> Any:
        """Environment steps until `end` is reached."""
        return float(self.steps) if self.steps else self.share * budget
