"""The actors' loss of PPO: the clipped surrogate and what is added to it, over the agents that chose an action."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.types import Action, ActionSpec, Carry, Extra, Mean, Metrics, Spec
from rookery.mechanisms.actor import Actor, Distribution, Weights
from rookery.mechanisms.batch import Batch
from rookery.ops import distributions


def surrogate(
    spec: ActionSpec,
    now: Distribution,
    legal: Bool[Array, "row b agent action"],
    action: Action,
    old_log_prob: Float[Array, "row b agent"],
    advantage: Float[Array, "row b agent"],
    active: Bool[Array, "row b agent"],
    clip: float,
) -> tuple[Metrics, Mean]:
    """Means of policy loss, entropy and approximate KL over active agents, and the largest |ratio - 1|."""
    log_prob = distributions.log_prob(spec, now.params, now.log_std, legal, action)
    log_ratio = log_prob - old_log_prob
    ratio = jnp.exp(log_ratio)
    gain = ratio * advantage
    if clip > 0:
        gain = jnp.minimum(gain, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
    move, log_move = jax.lax.stop_gradient((ratio - 1.0, log_ratio))
    values = {
        "policy_loss": -gain,
        "entropy": distributions.entropy(spec, now.params, now.log_std, legal),
        "kl": move - log_move,
    }
    if clip > 0:
        values["clipped"] = jnp.abs(move) > clip
    return Mean.of_each(values, active), Mean.of(jnp.max(jnp.where(active, jnp.abs(move), 0.0)))


@dataclass(frozen=True)
class Objective:
    """What actors learn: the clipped surrogate, an entropy bonus, and closeness to the policy that acted."""

    clip: float
    entropy: float | Array
    align: float | Array

    @property
    def aligns(self) -> bool:
        """Whether the policy that acted is compared with; a swept weight always counts."""
        return not isinstance(self.align, float) or self.align > 0

    def remember(self, now: Distribution) -> Extra:
        """What learning wants of the policy that acted, besides log-probabilities."""
        if not self.aligns:
            return {}
        return {"params": now.params, "log_std": jnp.broadcast_to(now.log_std, now.params.shape)}

    def loss(
        self,
        spec: ActionSpec,
        now: Distribution,
        legal: Bool[Array, "row b agent action"],
        action: Action,
        old: Extra,
        advantage: Float[Array, "row b agent"],
        active: Bool[Array, "row b agent"],
        anchor: Float[Array, "row b agent width"] | None = None,
    ) -> tuple[Mean, Metrics]:
        """The loss and its parts; `old` is what acting left. With an `anchor`, that policy is aligned with instead."""
        metrics, worst = surrogate(spec, now, legal, action, old["log_prob"], advantage, active, self.clip)
        policy = metrics["policy_loss"]
        loss = Mean(policy.total - self.entropy * metrics["entropy"].total, policy.weight)
        if self.aligns:
            before = (old["params"], old["log_std"])
            if anchor is not None:
                before = (anchor, jax.lax.stop_gradient(now.log_std))
            metrics["align"] = Mean.of(distributions.kl(spec, *before, now.params, now.log_std, legal), active)
            loss = loss.plus(metrics["align"], self.align)
        return loss, {**metrics, "ratio_error": worst}


def actor_loss(
    spec: Spec, actor: Actor, weights: Weights, batch: Batch, carry: Carry, objective: Objective
) -> tuple[Mean, Metrics]:
    """The objective's loss and the actor's own penalties."""
    step, active = batch.step, batch.active
    _, now, aux = actor.read(spec, weights, carry, step, batch.action)
    given = (step.legal, batch.action, batch.extra, batch.advantage, active)
    loss, metrics = objective.loss(spec.action, now, *given, aux.get("anchor"))
    for name, (weight, penalty) in actor.penalty(spec, aux, step, active).items():
        metrics[name] = penalty
        if not isinstance(weight, float) or weight > 0:
            loss = loss.plus(penalty, weight)
    return loss, metrics
