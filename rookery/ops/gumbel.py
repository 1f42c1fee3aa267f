"""Discrete actions with a gradient: straight-through Gumbel-softmax estimators.

Each estimator draws a one-hot legal action from softmax(logits) and gives it the gradient of a relaxed surrogate. All
draw from the same distribution; they differ in the surrogate only. (`relaxed` returns its surrogate instead.) Where no
gradient is needed (acting, target actions), `distributions.sample` draws the same actions for less.

One example is one agent's action; leading axes are free and share one key. A `vmap` with a key for each example
compiled 2.6 to 6 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.keys import stream
from rookery.core.ranges import Count, NonNegative, Positive
from rookery.ops.explore import weighted
from rookery.ops.td import only_legal

Kind = Literal["st", "gst", "tags", "grmck", "relaxed"]
Number = float | Float[Array, ""]
"""A setting, or a value that a schedule or a sweep computes inside the program."""
TUNED: dict[Kind, float] = {"st": 0.6, "gst": 0.6, "tags": 2.5, "grmck": 1.0, "relaxed": 1.0}
"""Temperature of each estimator as tuned for particle worlds (Tilbury et al. 2023); relaxed: as Lowe et al. 2017."""


def st(
    logits: Float[Array, "*b action"], legal: Bool[Array, "*b action"], key: Array, temperature: Number
) -> Float[Array, "*b action"]:
    """One-hot sample with the gradient of softmax((logits + Gumbel noise) / temperature) (Jang et al. 2017)."""
    perturbed = only_legal(logits + jax.random.gumbel(key, logits.shape), legal)
    # Not the argmax of the softmax: at high temperatures rounding can make its largest entries equal.
    return _straight_through(_one_hot(jnp.argmax(perturbed, axis=-1), logits), _relaxed(perturbed, temperature))


def relaxed(
    logits: Float[Array, "*b action"], legal: Bool[Array, "*b action"], key: Array, temperature: Number
) -> Float[Array, "*b action"]:
    """The surrogate of `st` itself: numbers above 0 that sum to 1, no action that an environment could be given."""
    return _relaxed(only_legal(logits + jax.random.gumbel(key, logits.shape), legal), temperature)


def tags(
    logits: Float[Array, "*b action"],
    legal: Bool[Array, "*b action"],
    key: Array,
    steps: Array,
    *,
    start: Number,
    end: Number,
    period: Number,
) -> Float[Array, "*b action"]:
    """`st` whose temperature falls with the environment steps taken (Tilbury et al. 2023)."""
    return st(logits, legal, key, annealed(steps, start, end, period))


def gst(
    logits: Float[Array, "*b action"],
    legal: Bool[Array, "*b action"],
    key: Array,
    temperature: Number,
    gap: Number = 1.0,
) -> Float[Array, "*b action"]:
    """One-hot sample with the gradient of a softmax in which it leads by at least `gap` (Fan et al. 2022)."""
    masked = only_legal(logits, legal)
    hard = _categorical(masked, key)
    detached = jax.lax.stop_gradient(masked)
    top = jnp.max(detached, axis=-1, keepdims=True)
    raised = (top - detached) * hard
    lowered = jax.nn.relu(detached + gap - top) * (1.0 - hard)
    return _straight_through(hard, _relaxed(masked + raised - lowered, temperature))


def grmck(
    logits: Float[Array, "*b action"],
    legal: Bool[Array, "*b action"],
    key: Array,
    temperature: Number,
    samples: int = 5,
) -> Float[Array, "*b action"]:
    """One-hot sample with the gradient of `st` averaged over noise that leads to this sample (Paulus et al. 2021)."""
    masked = only_legal(logits, legal)
    hard = _categorical(masked, stream(key, "action"))
    noise = jax.random.gumbel(stream(key, "noise"), (samples, *logits.shape))
    given = jax.lax.stop_gradient(_conditioned(masked, hard, noise) - masked)
    return _straight_through(hard, jnp.mean(_relaxed(masked + given, temperature), axis=0))


def annealed(steps: Array, start: Number, end: Number, period: Number) -> Float[Array, ""]:
    """Temperature after so many environment steps: geometric from `start` to `end` over `period`, then `end`."""
    share = jnp.clip(steps.astype(jnp.float32) / period, 0.0, 1.0)
    return start * (jnp.float32(end) / start) ** share


def _conditioned(
    masked: Float[Array, "*b action"], hard: Float[Array, "*b action"], noise: Float[Array, "sample *b action"]
) -> Float[Array, "sample *b action"]:
    """Perturbed logits whose argmax is `hard`, up to a constant; `noise` is -log E with E ~ Exp(1).

    With normalised logits (Z = 1) the chosen entry is -log E_D, and the others are -log(E_i / p_i + E_D). Computed from
    logarithms, so that unlikely and illegal actions do not overflow.
    """
    log_p = jax.nn.log_softmax(masked, axis=-1)
    chosen = jnp.sum(noise * hard, axis=-1, keepdims=True)
    return jnp.where(hard > 0, chosen, -jnp.logaddexp(-noise - log_p, -chosen))


def _categorical(masked: Float[Array, "*b action"], key: Array) -> Float[Array, "*b action"]:
    """One-hot sample of softmax(masked)."""
    masked = jax.lax.stop_gradient(masked)
    return _one_hot(weighted(key, jnp.exp(masked - jnp.max(masked, axis=-1, keepdims=True))), masked)


def _one_hot(index: Array, like: Float[Array, "*b action"]) -> Float[Array, "*b action"]:
    return jax.nn.one_hot(index, like.shape[-1], dtype=like.dtype)


def _relaxed(scores: Float[Array, "*b action"], temperature: Number) -> Float[Array, "*b action"]:
    return jax.nn.softmax(scores / temperature, axis=-1)


def _straight_through(
    hard: Float[Array, "*b action"], surrogate: Float[Array, "*b action"]
) -> Float[Array, "*b action"]:
    # The difference first: it is exactly 0, while (hard + surrogate) - surrogate rounds and is not one-hot.
    return hard + (surrogate - jax.lax.stop_gradient(surrogate))


@dataclass(frozen=True)
class Gumbel:
    """How the gradient passes through a discrete action."""

    kind: Kind = "st"
    """st: straight-through; gst: gapped; tags: st with a falling temperature; grmck: st averaged over `samples` draws
    of the noise, given the action; relaxed: critics get the surrogate of st itself, environments an index."""
    temperature: NonNegative = 0.0
    """Temperature of the surrogate (tags: at step 0); 0: as tuned for MPE (st and gst 0.6, tags 2.5, grmck 1;
    relaxed 1)."""
    end: Positive = 0.5
    """Temperature of tags from `period` on."""
    period: Count = 2_000_000
    """Environment steps over which the temperature of tags falls."""
    gap: NonNegative = 1.0
    """Least lead of the chosen action's logit in the surrogate of gst."""
    samples: Count = 5
    """Noise vectors that the surrogate of grmck is averaged over."""

    @property
    def start(self) -> Float[Array, ""]:
        """Temperature at step 0."""
        # where(), not a branch: a sweep may trace the temperature.
        given = jnp.float32(self.temperature)
        return jnp.where(given > 0, given, TUNED[self.kind])

    def duration(self, budget: float) -> float:
        """Environment steps until the temperature arrives at its end; 0 where it does not move."""
        return float(self.period) if self.kind == "tags" else 0.0

    def temperature_at(self, steps: Array) -> Float[Array, ""]:
        """Temperature after so many environment steps."""
        start = self.start
        return annealed(steps, start, self.end, self.period) if self.kind == "tags" else start

    def draw(
        self,
        key: Array,
        logits: Float[Array, "*b width"],
        legal: Bool[Array, "*b width"],
        steps: Array,
        branches: tuple[int, ...] = (),
    ) -> Float[Array, "*b width"]:
        """Legal samples with the estimator's gradient, one for each of `branches`, which divide the columns.

        One-hot, unless the kind is relaxed.
        """
        estimate = self._estimator(steps)
        edges = list(accumulate(branches))[:-1]
        columns = zip(jnp.split(logits, edges, axis=-1), jnp.split(legal, edges, axis=-1), strict=True)
        drawn = [estimate(scores, ok, stream(key, "branch", i)) for i, (scores, ok) in enumerate(columns)]
        return jnp.concatenate(drawn, axis=-1)

    def _estimator(self, steps: Array) -> Callable[[Array, Array, Array], Array]:
        """(logits, legal, key) -> sample."""
        start = self.start
        estimators: dict[Kind, Callable[[Array, Array, Array], Array]] = {
            "st": lambda logits, legal, key: st(logits, legal, key, start),
            "gst": lambda logits, legal, key: gst(logits, legal, key, start, self.gap),
            "tags": lambda logits, legal, key: tags(
                logits, legal, key, steps, start=start, end=self.end, period=self.period
            ),
            "grmck": lambda logits, legal, key: grmck(logits, legal, key, start, self.samples),
            "relaxed": lambda logits, legal, key: relaxed(logits, legal, key, start),
        }
        return estimators[self.kind]
