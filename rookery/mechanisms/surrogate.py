"""The actors' loss of PPO: the clipped surrogate and what is added to it, over the agents that chose an action."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.types import Action, ActionSpec, Carry, Mean, Metrics, Spec
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


def actor_loss(
    spec: Spec, actor: Actor, weights: Weights, batch: Batch, carry: Carry, clip: float, entropy: float | Array
) -> tuple[Mean, Metrics]:
    """Clipped surrogate, entropy bonus and the actor's own penalties."""
    step = batch.step
    _, now, aux = actor.read(spec, weights, carry, step, batch.action)
    before, active = batch.extra["log_prob"], batch.active
    metrics, worst = surrogate(spec.action, now, step.legal, batch.action, before, batch.advantage, active, clip)
    policy = metrics["policy_loss"]
    loss = Mean(policy.total - entropy * metrics["entropy"].total, policy.weight)
    for name, (weight, penalty) in actor.penalty(spec, now, aux, step, batch.extra, batch.active).items():
        metrics[name] = penalty
        if not isinstance(weight, float) or weight > 0:
            loss = loss.plus(penalty, weight)
    metrics["ratio_error"] = worst
    return loss, metrics
