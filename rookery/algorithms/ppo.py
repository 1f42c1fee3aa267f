"""The PPO family: IPPO, MAPPO, A2C. What differs is what the critic sees, and whether the ratio is clipped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from rookery.algorithms.inputs import own_view, view_size
from rookery.core import parts
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import (
    Action,
    Clock,
    Collect,
    Entities,
    Mean,
    Metrics,
    Packed,
    Rollout,
    Spec,
    Step,
    global_state,
    team_discount,
)
from rookery.mechanisms import normalise
from rookery.nets.agent import Net, Params
from rookery.nets.optimiser import Optimiser, norm
from rookery.ops import batches, distributions, returns


@dataclass(frozen=True)
class Value:
    """How the critic learns."""

    sees: Literal["obs", "state", "state_id", "both"] = "state"
    """obs: each agent's own (IPPO); state: the global state, one value for the team; state_id: state and the agent's
    index; both: state and own obs."""
    loss: Literal["mse", "huber"] = "huber"
    """Shape of the value loss."""
    huber: float = 10.0
    """Where the huber loss turns linear."""
    clip: float = 0.2
    """Largest move of a value away from its old one that still earns gradient; 0: no limit."""
    weight: float = 1.0
    """Weight of the value loss."""
    normalise: Literal["none", "running"] = "running"
    """running: the critic predicts returns that running statistics bring to mean 0 and deviation 1."""
    memory: float = 0.99999
    """Share of those statistics kept at every update (debiased)."""


class Actor(eqx.Module):
    net: Params
    log_std: Float[Array, "width"]


class Nets(eqx.Module):
    actor: Actor
    critic: Params


class PPOState(eqx.Module):
    nets: Nets
    opt: tuple[optax.OptState, optax.OptState]
    returns: normalise.Running
    critic_carry: Float[Array, "env viewer h"]


class Batch(eqx.Module):
    """What one gradient step reads: sequences [row, sequence, ...]."""

    step: Step
    action: Action
    log_prob: Float[Array, "row sequence agent"]
    advantage: Float[Array, "row sequence agent"]
    goal: Float[Array, "row sequence agent"]
    value: Float[Array, "row sequence viewer"]
    active: Bool[Array, "row sequence agent"]


Carries = tuple[Array, Array]
"""The actor's and the critic's, at the start of each sequence [sequence, ...]."""


@family(ALGORITHMS)
@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation with decentralised actors."""

    family: Literal["ppo"] = "ppo"
    actor: Net = field(default_factory=Net)
    critic: Net = field(default_factory=Net)
    value: Value = field(default_factory=Value)
    collect: Collect = field(default_factory=lambda: Collect(envs=64, length=26))
    optimiser: Optimiser = field(default_factory=Optimiser)
    """Used for the actor and, with a state of its own, for the critic."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Generalised advantage estimation; 1: n-step returns."""
    clip: float = 0.2
    """Largest move of the probability ratio away from 1 that still earns gradient; 0: no limit (A2C)."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int = 1
    """Gradient steps of each pass."""
    chunk: int = 0
    """Rows that a recurrent net is unrolled over in training; 0: the whole rollout."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    advantages: Literal["rollout", "minibatch", "raw"] = "rollout"
    """Over what advantages are brought to mean 0 and deviation 1."""
    agent_id: bool = True
    """Append the agent's index to what actor and critic see of its observation (where there is more than one agent)."""

    # -- what it needs ------------------------------------------------------------------------------------------
    def check(self, spec: Spec) -> None:
        """Refuse what this family cannot train."""
        self.actor.check()
        self.critic.check()
        length = self.collect.transitions(spec)
        rows = self.segment(spec)
        if length % rows:
            raise ConfigError(f"algo.chunk ({self.chunk}) must divide the {length} transitions of a rollout.")
        if self.collect.alike:
            raise ConfigError(
                f"several parts ({self.collect.parts}) need several environments: PPO learns from what they collect, "
                "and has nothing to replay. Raise algo.collect.envs."
            )
        sequences = self.collect.envs * (length // rows)
        if sequences % (self.minibatches * self.collect.parts):
            raise ConfigError(
                f"{sequences} sequences (algo.collect.envs {self.collect.envs} x {length // rows} chunks) cannot be "
                f"split into {self.minibatches} equal minibatches of {self.collect.parts} equal parts; change "
                "algo.minibatches or algo.collect.parts."
            )
        if not spec.cooperative and self.value.sees == "state":
            raise ConfigError(
                f"algo.value.sees 'state' gives one value for the whole team, but {spec.name} rewards its agents "
                "differently. Use --algo.value.sees both (or obs)."
            )
        if self.collect.restart:
            raise ConfigError("algo.collect.restart is for replayed episodes; PPO goes on where its rollout ended.")

    def part(self) -> PPO:
        """What one of `collect.parts` parts computes."""
        return replace(self, collect=self.collect.part())

    def _recurrent(self) -> bool:
        return bool(self.actor.hidden or self.critic.hidden)

    def segment(self, spec: Spec) -> int:
        """Rows of one training sequence: 1 for feed-forward nets."""
        return (self.chunk or self.collect.transitions(spec)) if self._recurrent() else 1

    def _id(self, spec: Spec) -> bool:
        return self.agent_id and spec.n_agents > 1

    def _viewers(self, spec: Spec) -> int:
        """Agent axis of the critic: a state that is the same for all agents is read once."""
        return 1 if self.value.sees == "state" and self.critic.weights == "shared" else spec.n_agents

    def _critic_entities(self, spec: Spec) -> tuple[Entities, ...]:
        """What is known of the critic's input: nothing of a state."""
        return spec.entities if self.value.sees == "obs" else ()

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> PPOState:
        """Fresh weights."""
        own = view_size(spec, agent_id=self._id(spec))
        state = spec.state_size
        seen = {"obs": own, "state": state, "state_id": state + spec.n_agents, "both": state + own}[self.value.sees]
        width = distributions.parameters(spec.action)
        net = self.actor.init(stream(key, "actor"), spec.n_agents, own, width, 0.01, spec.entities)
        actor = Actor(net, jnp.full(width, -0.5, jnp.float32))
        critic = self.critic.init(stream(key, "critic"), spec.n_agents, seen, 1, 1.0, self._critic_entities(spec))
        opt = (self.optimiser.init(actor), self.optimiser.init(critic))
        carry = self.critic.carry(self.collect.envs, self._viewers(spec))
        return PPOState(Nets(actor, critic), opt, normalise.fresh(), carry)

    def carry(self, spec: Spec, envs: int) -> Float[Array, "env agent h"]:
        """The actors' hidden state."""
        return self.actor.carry(envs, spec.n_agents)

    def policy(self, state: PPOState) -> Actor:
        """The actors; the critic is for training only."""
        return state.nets.actor

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: Actor, carry: Array, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Array, Action, Float[Array, "env agent"]]:
        """Sampled (or most likely) actions and their log-probabilities."""
        rows = jax.tree.map(lambda x: x[None], step)
        carry, params = self._distribution(spec, policy, carry, rows)
        args = (spec.action, params[0], policy.log_std, step.legal)
        action = distributions.sample(*args, key, greedy=greedy)
        return carry, action, distributions.log_prob(*args, action)

    def _distribution(self, spec: Spec, actor: Actor, carry: Array, step: Step) -> tuple[Array, Array]:
        x = own_view(spec, step, agent_id=self._id(spec))
        return self.actor.unroll(actor.net, carry, x, step.first, spec.entities)

    def _values(
        self, spec: Spec, critic: Params, carry: Array, step: Step
    ) -> tuple[Array, Float[Array, "row b viewer"]]:
        """Values as the critic predicts them (normalised)."""
        team = None if self.value.sees == "obs" else global_state(spec, step).astype(jnp.float32)
        if self.value.sees in ("obs", "both"):
            x = own_view(spec, step, agent_id=self._id(spec))
        else:
            index = jnp.eye(spec.n_agents) if self.value.sees == "state_id" else jnp.zeros((self._viewers(spec), 0))
            x = index[None, None]
        carry, v = self.critic.unroll(critic, carry, x, step.first, self._critic_entities(spec), team=team)
        return carry, v[..., 0]

    # -- learning -----------------------------------------------------------------------------------------------
    def update(
        self, spec: Spec, state: PPOState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[PPOState, Metrics]:
        """Advantages of the rollout, then `epochs` passes over it in `minibatches` gradient steps each."""
        critic_carry, critic_carries, values = self._value_rollout(spec, state, rollout.step)
        active = rollout.filled[..., None] & rollout.step.alive[:-1]
        goal, advantage, running = self._advantages(state.returns, rollout.step, values, active)
        data = (jax.tree.map(lambda x: x[:-1], rollout.step), rollout.action, rollout.extra, advantage, goal)
        data = (*data, values[:-1], active)
        rows = self.segment(spec)
        batch = Batch(*batches.to_sequences(data, rows))
        carries = batches.join_axes((rollout.carry, critic_carries))
        state = PPOState(state.nets, state.opt, running, critic_carry)

        def whole(state: PPOState, _: None) -> tuple[PPOState, Packed]:
            return self._gradient_step(spec, state, batch, carries, clock)

        def minibatch(state: PPOState, now: tuple[Array, Array]) -> tuple[PPOState, Packed]:
            chosen, advantage = now
            picked, starts = jax.tree.map(lambda x: x[:, chosen], batch), jax.tree.map(lambda x: x[chosen], carries)
            picked = eqx.tree_at(lambda b: b.advantage, picked, advantage)
            return self._gradient_step(spec, state, picked, starts, clock)

        if self.minibatches == 1:
            state, steps = jax.lax.scan(whole, state, None, length=self.epochs)
        else:
            state, steps = jax.lax.scan(minibatch, state, self._minibatches(batch, key))
        metrics = steps.summed().metrics()
        del metrics["ratio_error"]
        # Before any gradient step the new policy is the old one: anything but 0 here is a bug in unrolling or masks.
        metrics["check/first_ratio_error"] = steps.at(0).metrics()["ratio_error"]
        metrics["advantage_std"] = Mean.of(jnp.std(advantage, where=active))
        return state, metrics

    def _minibatches(self, batch: Batch, key: Array) -> tuple[Array, Array]:
        """Sequences of every gradient step [step, sequence], and their advantages [step, row, sequence, agent].

        Found for all steps at once: parts of a run must meet to scale advantages, and each meeting costs them time.
        """
        sequences = batch.active.shape[1]
        keys = jax.vmap(lambda k: stream(key, "shuffle", k))(jnp.arange(self.epochs))
        order = jax.vmap(lambda k: batches.shuffled(k, sequences))(keys)
        order = order.reshape(self.epochs * self.minibatches, -1)
        advantage, active = (jnp.moveaxis(x[:, order], 1, 0) for x in (batch.advantage, batch.active))
        if self.advantages == "minibatch":
            advantage = jax.vmap(batches.standardise)(advantage, active)
        return order, advantage

    def _value_rollout(self, spec: Spec, state: PPOState, step: Step) -> tuple[Array, Array, Array]:
        """Carry into the next rollout, carries into each segment [segment, env, ...], values of all time + 1 rows."""
        rows = self.segment(spec)
        last = jax.tree.map(lambda x: x[-1:], step)
        count = (step.first.shape[0] - 1) // rows
        if not self.critic.hidden:
            _, values = self._values(spec, state.nets.critic, state.critic_carry, step)
            carries = jnp.broadcast_to(state.critic_carry, (count, *state.critic_carry.shape))
            return state.critic_carry, carries, values
        # `count`, not -1: a task without a state of its own has a `state` of size 0.
        segments = jax.tree.map(lambda x: x[:-1].reshape(count, rows, *x.shape[1:]), step)

        def one(carry: Array, now: Step) -> tuple[Array, tuple[Array, Array]]:
            after, v = self._values(spec, state.nets.critic, carry, now)
            return after, (carry, v)

        carry, (carries, values) = jax.lax.scan(one, state.critic_carry, segments)
        _, final = self._values(spec, state.nets.critic, carry, last)
        return carry, carries, jnp.concatenate([values.reshape(-1, *values.shape[2:]), final])

    def _advantages(
        self, running: normalise.Running, step: Step, values: Array, active: Array
    ) -> tuple[Array, Array, normalise.Running]:
        """Value targets (as the critic predicts them), advantages and the return statistics after them."""
        normal = self.value.normalise == "running"
        v = normalise.denormalise(running, values) if normal else values
        v = jnp.broadcast_to(v, step.reward.shape)
        discount_t = jnp.broadcast_to(self.gamma * team_discount(step)[1:, :, None], v[1:].shape)
        lambda_t = jnp.broadcast_to(returns.continues(step.last, self.gae_lambda)[..., None], v[1:].shape)
        goal = returns.lambda_returns(step.reward[1:], discount_t, v[1:], lambda_t)
        advantage = goal - v[:-1]
        if self.advantages == "rollout" or (self.advantages == "minibatch" and self.minibatches == 1):
            advantage = batches.standardise(advantage, active)
        if normal:
            running = normalise.track(running, goal, active, self.value.memory)
            goal = normalise.normalise(running, goal)
        return goal, advantage, running

    def _gradient_step(
        self, spec: Spec, state: PPOState, batch: Batch, carries: Carries, clock: Clock
    ) -> tuple[PPOState, Packed]:
        def loss(nets: Nets) -> tuple[Mean, Metrics]:
            metrics = self._actor_losses(spec, nets.actor, batch, carries[0])
            policy, entropy = metrics["policy_loss"], metrics["entropy"]
            value = self._critic_loss(spec, nets.critic, batch, carries[1])
            # All three are means over the active agents.
            total = policy.total - self.entropy * entropy.total + self.value.weight * value.total
            return Mean(total, policy.weight), {**metrics, "value_loss": value}

        grads, metrics = parts.mean_gradient(loss, state.nets)
        actor, opt_a = self.optimiser.step(state.nets.actor, grads.actor, state.opt[0], clock.progress)
        critic, opt_c = self.optimiser.step(state.nets.critic, grads.critic, state.opt[1], clock.progress)
        metrics["grad_norm_actor"] = Mean.of(norm(grads.actor))
        metrics["grad_norm_critic"] = Mean.of(norm(grads.critic))
        return PPOState(Nets(actor, critic), (opt_a, opt_c), state.returns, state.critic_carry), Packed.of(metrics)

    def _actor_losses(self, spec: Spec, actor: Actor, batch: Batch, carry: Array) -> Metrics:
        """Clipped surrogate, entropy and how far the policy has moved, over active agents."""
        _, params = self._distribution(spec, actor, carry, batch.step)
        legal = batch.step.legal
        log_ratio = distributions.log_prob(spec.action, params, actor.log_std, legal, batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        gain = ratio * batch.advantage
        if self.clip > 0:
            gain = jnp.minimum(gain, jnp.clip(ratio, 1 - self.clip, 1 + self.clip) * batch.advantage)
        move, log_move = jax.lax.stop_gradient((ratio - 1.0, log_ratio))
        values = {
            "policy_loss": -gain,
            "entropy": distributions.entropy(spec.action, params, actor.log_std, legal),
            "kl": move - log_move,
        }
        if self.clip > 0:
            values["clipped"] = jnp.abs(move) > self.clip
        ratio_error = Mean.of(jnp.max(jnp.where(batch.active, jnp.abs(move), 0.0)))
        return {**Mean.of_each(values, batch.active), "ratio_error": ratio_error}

    def _critic_loss(self, spec: Spec, critic: Params, batch: Batch, carry: Array) -> Mean:
        """Squared or huber error of the values, clipped around the old ones, over active agents."""
        _, v = self._values(spec, critic, carry, batch.step)
        error = self._value_error(v - batch.goal)
        if self.value.clip > 0:
            near = batch.value + jnp.clip(v - batch.value, -self.value.clip, self.value.clip)
            error = jnp.maximum(error, self._value_error(near - batch.goal))
        return Mean.of(error, batch.active)

    def _value_error(self, x: Array) -> Array:
        if self.value.loss == "huber":
            return optax.huber_loss(x, delta=self.value.huber)
        return 0.5 * x**2
