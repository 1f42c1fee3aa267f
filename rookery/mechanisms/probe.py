"""How much an update changes the policy: measured on a fixed set of stored rows, the probe set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int

from rookery.core.errors import ConfigError
from rookery.core.ranges import Whole
from rookery.core.types import Carry, Mean, Metrics, Rollout, Spec, Step
from rookery.mechanisms.actor import Actor, Distribution, Weights
from rookery.memory.sequences import example
from rookery.ops import batches, distributions


@dataclass(frozen=True)
class Probe:
    """Metrics of the policy's change per update."""

    states: Whole = 0
    """Rows of the first rollout that the policies before and after each update are compared on; 0: none, at no cost."""

    def check(self, available: int, sequences: int, shards: int) -> None:
        """Refuse a set that the first rollout does not hold."""
        if self.states > available:
            raise ConfigError(
                f"algo.probe.states must be at most {available}, the rows of one rollout (of recurrent actors: its "
                f"training sequences); got {self.states}."
            )
        if self.states and sequences < 2 * shards:
            raise ConfigError(
                "algo.probe measures the variance of gradients over minibatches: it needs at least two training "
                "sequences per shard. Raise algo.collect.envs, or lower algo.bptt_length."
            )

    def shard(self, shards: int) -> Probe:
        """The share of one shard."""
        return Probe(-(-self.states // shards))

    def small(self) -> Probe:
        """The same, of few rows."""
        return Probe(min(self.states, 2))

    def init(self, spec: Spec, actor: Actor) -> ProbeSet | None:
        """A set to be filled by the first iteration; None where nothing is measured."""
        if not self.states:
            return None
        return ProbeSet(example(spec, self.states - 1, 0).step, actor.carry(spec, self.states))

    def keep_first(
        self, kept: ProbeSet | None, actor: Actor, rollout: Rollout, rows: int, iteration: Int[Array, ""]
    ) -> ProbeSet | None:
        """The set of the first iteration: evenly spaced rows, of actors with a carry among those that open a training
        sequence of `rows`.

        Without a carry any row will do: the set then depends on what was collected, not on how it is learned from.
        """
        if kept is None:
            return None
        among = batches.join_axes(jax.tree.map(lambda x: x[: -1 : rows if actor.hidden else 1], rollout.step))
        at = (jnp.arange(self.states) * among.first.shape[0]) // self.states
        carry = batches.join_axes(rollout.carry) if actor.hidden else None
        step, carry = jax.tree.map(lambda x: x[at], (among, carry))
        new = ProbeSet(step, carry if actor.hidden else kept.carry)
        return jax.tree.map(lambda old, new: jnp.where(iteration == 0, new, old), kept, new)


class ProbeSet(eqx.Module):
    """Rows [state, ...], with the carries that were read with them."""

    step: Step
    carry: Carry


def policy_change(spec: Spec, actor: Actor, old: Weights, new: Weights, seen: ProbeSet) -> Metrics:
    """Between the policies before and after an update, on the probe set."""
    rows = jax.tree.map(lambda x: x[None], seen.step)
    was, now = (actor.read(spec, weights, seen.carry, rows)[1] for weights in (old, new))
    return change(spec, was, now, rows)


def change(spec: Spec, old: Distribution, new: Distribution, step: Step) -> Metrics:
    """KL(old || new) of the joint policies, and churn: how often the greedy joint action changes [row, b, agent]."""
    kl = distributions.kl(spec.action, old.params, old.log_std, new.params, new.log_std, step.legal)
    # Agents choose independently of each other: the KL of joint policies is the sum.
    metrics = {"probe/joint_kl": Mean.of(jnp.sum(jnp.where(step.alive, kl, 0.0), axis=-1))}
    if spec.action.kind != "box":  # a continuous greedy action changes always
        was, now = (_greedy(spec, x, step.legal) for x in (old, new))
        moved = (was != now).reshape(*step.alive.shape, -1).any(axis=-1) & step.alive
        metrics["probe/churn"] = Mean.of(jnp.any(moved, axis=-1))
    return metrics


def _greedy(spec: Spec, now: Distribution, legal: Bool[Array, "*b action"]) -> Array:
    return distributions.sample(spec.action, now.params, now.log_std, legal, jax.random.PRNGKey(0), greedy=True)


def minibatches(key: Array, count: int, parts: int) -> Int[Array, "part item"]:
    """All sequences in random order, in `parts` minibatches; in as few as possible if `parts` is 1."""
    if parts == 1:
        parts = next(n for n in range(2, count + 1) if count % n == 0)
    return batches.shuffled(key, count).reshape(parts, -1)


def gradient_variance(gradient: Callable[[Array], Any], minibatches: Int[Array, "part item"]) -> Metrics:
    """Variance of the policy gradient over minibatches at the weights before an update.

    The trace of the covariance, and the same relative to the squared norm of the mean gradient.
    """
    each = jax.lax.map(lambda chosen: ravel_pytree(gradient(chosen))[0], minibatches)
    mean = jnp.mean(each, axis=0)
    variance = jnp.sum((each - mean) ** 2) / (each.shape[0] - 1)
    relative = variance / jnp.maximum(jnp.sum(mean**2), 1e-12)
    return {"probe/gradient_variance": Mean.of(variance), "probe/gradient_noise": Mean.of(relative)}
