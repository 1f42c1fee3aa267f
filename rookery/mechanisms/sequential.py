"""Sequential updates (HAPPO, Kuba et al. 2022): agents learn one after the other, in a random order.

An agent's advantage is multiplied by the product of the probability ratios of those that learned before it, so that it
improves the policy that they left behind. Agents have weights of their own: one agent's step must not move another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.types import Carry, Extra, Mean, Packed, Spec
from rookery.mechanisms.actor import ActorWeights, Distribution, PlainActor
from rookery.mechanisms.batch import Batch
from rookery.mechanisms.explore import Explore
from rookery.mechanisms.hyper import Hyper
from rookery.mechanisms.surrogate import Objective
from rookery.nets.agent import Net
from rookery.nets.inputs import own_view
from rookery.nets.optimiser import Optimiser, norm
from rookery.ops import batches, distributions


def check(actor: Net, hyper: Hyper, explore: Explore) -> None:
    """Refuse agents whose weights are not their own, and noise on them."""
    if actor.weights == "shared" or hyper.generate != "none":
        raise ConfigError(
            "algo.order sequential needs agents with weights of their own: set --algo.actor.weights per_agent and "
            "--algo.hyper.generate none."
        )
    if explore.parameter_noise > 0:
        raise ConfigError("algo.explore.parameter_noise works with --algo.order simultaneous only.")


class Turn(NamedTuple):
    """One agent's share of a batch; the agent axis has length 1."""

    x: Float[Array, "row sequence one n"]
    first: Bool[Array, "row sequence"]
    legal: Bool[Array, "row sequence one action"]
    action: Array
    extra: Extra
    active: Bool[Array, "row sequence one"]
    factor: Float[Array, "row sequence one"]


class Learner(NamedTuple):
    """How one agent learns."""

    actor: PlainActor
    optimiser: Optimiser
    objective: Objective

    def policy(self, spec: Spec, weights: ActorWeights, carry: Carry, turn: Turn) -> Distribution:
        """The agent's distributions."""
        net: Any = self.actor.net
        _, params = net.unroll(weights.net, carry, turn.x, turn.first, spec.entities)
        return Distribution(params, weights.log_std)

    def step(
        self, spec: Spec, state: tuple[ActorWeights, Any], carry: Carry, turn: Turn, advantage: Array, progress: Array
    ) -> tuple[tuple[ActorWeights, Any], Packed]:
        """Weights and optimiser state after one gradient step, and its metrics."""

        def loss(weights: ActorWeights) -> tuple[Mean, Any]:
            now = self.policy(spec, weights, carry, turn)
            given = (turn.legal, turn.action, turn.extra, turn.factor * advantage, turn.active)
            return self.objective.loss(spec.action, now, *given)

        weights, opt = state
        alone = jax.tree.map(lambda x: x[None], weights)
        grads, metrics = shards.mean_gradient(loss, alone)
        grads = jax.tree.map(lambda x: x[0], grads)
        metrics["grad_norm_actor"] = Mean.of(norm(grads))
        return self.optimiser.step(weights, grads, opt, progress), Packed.of(metrics)


def in_turn(
    spec: Spec,
    learner: Learner,
    state: tuple[ActorWeights, Any],
    batch: Batch,
    carry: Carry,
    minibatches: tuple[Int[Array, "step part"], Float[Array, "step row part agent"]],
    progress: Float[Array, ""],
    key: Array,
) -> tuple[tuple[ActorWeights, Any], Packed, Mean]:
    """All agents' weights and optimiser states (leading with an agent axis) after each has learned, the metrics of all
    gradient steps, and how far the last factor is from 1."""
    x = own_view(spec, batch.step, agent_id=learner.actor.agent_id)
    data = (x, batch.step.legal, batch.action, batch.extra, batch.active)

    def one(now: tuple[Any, Array], agent: Array) -> tuple[tuple[Any, Array], Packed]:
        everyone, factor = now
        x, legal, action, extra, active = jax.tree.map(lambda x: _only(x, agent, 2), data)
        turn = Turn(x, batch.step.first, legal, action, extra, active, factor)
        hidden = _only(carry, agent, 1)

        def minibatch(state: Any, now: tuple[Array, Array]) -> tuple[Any, Packed]:
            chosen, advantage = now
            part = jax.tree.map(lambda x: x[:, chosen], turn)
            return learner.step(spec, state, hidden[chosen], part, _only(advantage, agent, 2), progress)

        own = jax.tree.map(lambda x: x[agent], everyone)
        own, steps = jax.lax.scan(minibatch, own, minibatches)
        everyone = jax.tree.map(lambda all_, x: all_.at[agent].set(x), everyone, own)
        policy = learner.policy(spec, jax.tree.map(lambda x: x[None], own[0]), hidden, turn)
        new = distributions.log_prob(spec.action, policy.params, policy.log_std, legal, action)
        return (everyone, next_factor(factor, new, extra["log_prob"], active)), steps

    # All shards must agree on the order.
    order = batches.shuffled(stream(shards.total(key), "agents"), spec.n_agents)
    start = jnp.ones((*batch.filled.shape, 1))
    (state, factor), steps = jax.lax.scan(one, (state, start), order)
    flat = Packed(steps.values.reshape(-1, *steps.values.shape[2:]), steps.names)
    return state, flat, Mean.of(jnp.abs(factor[..., 0] - 1.0), batch.filled)


def next_factor(
    factor: Float[Array, "row sequence one"],
    new: Float[Array, "row sequence one"],
    old: Float[Array, "row sequence one"],
    active: Bool[Array, "row sequence one"],
) -> Float[Array, "row sequence one"]:
    """The product of ratios with one more agent's in it; an agent that chose nothing leaves it as it was."""
    return factor * jnp.where(active, jnp.exp(new - old), 1.0)


def _only(x: Array, agent: Array, axis: int) -> Array:
    """One agent's entries; the axis stays."""
    return jax.lax.dynamic_index_in_dim(x, agent, axis, keepdims=True)
