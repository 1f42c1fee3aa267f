"""The PPO family: IPPO, MAPPO, A2C. They differ in what the critic sees and in whether the ratio is clipped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import Action, Arrays, Carry, Clock, Collect, Extra, Mean, Metrics, Packed, Rollout, Spec, Step
from rookery.mechanisms import normalise
from rookery.mechanisms.actor import Actor, PlainActor, Weights
from rookery.mechanisms.critic import Critic, Value
from rookery.nets.agent import Net
from rookery.nets.optimiser import Optimiser, norm
from rookery.ops import batches, distributions


class PPOState(eqx.Module):
    nets: dict[str, Any]
    """Weights by optimiser group: "critic", and the groups of the actor."""
    opt: dict[str, optax.OptState]
    returns: normalise.Running
    critic_carry: Float[Array, "env viewer h"]


class Batch(eqx.Module):
    """The data of one gradient step: sequences [row, sequence, ...]."""

    step: Step
    action: Action
    extra: Extra
    advantage: Float[Array, "row sequence agent"]
    target: Float[Array, "row sequence agent"]
    value: Float[Array, "row sequence viewer"]
    filled: Bool[Array, "row sequence"]

    @property
    def active(self) -> Bool[Array, "row sequence agent"]:
        """Transitions that a living agent chose."""
        return self.filled[..., None] & self.step.alive


Carries = tuple[Carry, Array]
"""The actor's and the critic's, at the start of each sequence [sequence, ...]."""


@family(ALGORITHMS)
@dataclass(frozen=True)
class PPO:
    """Proximal policy optimization with decentralized actors."""

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
    """Generalized advantage estimation; 1: n-step returns."""
    clip: float = 0.2
    """Largest move of the probability ratio away from 1 that still has a gradient; 0: no limit (A2C)."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int = 1
    """Gradient steps per pass."""
    bptt_length: int = 0
    """Rows that a recurrent net is unrolled over in training; 0: the whole rollout."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    advantages: Literal["rollout", "minibatch", "raw"] = "rollout"
    """Over what advantages are normalized to mean 0 and standard deviation 1."""
    agent_id: bool = True
    """Append the agent's index to what actor and critic see of its observation (if there are several agents)."""

    # -- requirements -------------------------------------------------------------------------------------------
    def check(self, spec: Spec) -> None:
        """Refuse what this family cannot train."""
        self.actor.check()
        self.critic.check()
        length = self.collect.transitions(spec)
        rows = self.carry_interval(spec)
        if length % rows:
            raise ConfigError(
                f"algo.bptt_length ({self.bptt_length}) must divide the {length} transitions of a rollout."
            )
        if self.collect.replicated:
            raise ConfigError(
                f"{self.collect.shards} shards need several environments: PPO has no replay store to divide. Raise "
                "algo.collect.envs."
            )
        sequences = self.collect.envs * (length // rows)
        if sequences % (self.minibatches * self.collect.shards):
            raise ConfigError(
                f"{sequences} sequences (algo.collect.envs {self.collect.envs} x {length // rows}) cannot be "
                f"split into {self.minibatches} equal minibatches of {self.collect.shards} equal shards; change "
                "algo.minibatches or algo.collect.shards."
            )
        if not spec.cooperative and self.value.sees == "state":
            raise ConfigError(
                f"algo.value.sees 'state' gives one value for the whole team, but {spec.name} rewards its agents "
                "differently. Use --algo.value.sees both (or obs)."
            )
        if self.collect.restart:
            raise ConfigError("algo.collect.restart is for replayed episodes; PPO continues where its rollout ended.")

    def shard(self) -> PPO:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard())

    def warmup(self) -> int:
        """Every iteration learns."""
        return 0

    def small(self) -> PPO:
        """The same algorithm with little of everything."""
        return replace(
            self,
            actor=self.actor.small(),
            critic=self.critic.small(),
            collect=Collect(envs=4, length=8),
            bptt_length=4 if self.bptt_length else 0,
            epochs=min(self.epochs, 2),
            minibatches=min(self.minibatches, 2),
        )

    def carry_interval(self, spec: Spec) -> int:
        """Rows of one training sequence: 1 for feed-forward nets."""
        recurrent = self.actor.hidden or self.critic.hidden
        return (self.bptt_length or self.collect.transitions(spec)) if recurrent else 1

    def _actor(self, spec: Spec) -> Actor:
        return PlainActor(self.actor, self.agent_id and spec.n_agents > 1)

    def _critic(self, spec: Spec) -> Critic:
        return Critic(self.critic, self.value, self.agent_id and spec.n_agents > 1)

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> PPOState:
        """Fresh weights."""
        critic = self._critic(spec)
        nets = {**self._actor(spec).init(spec, key), "critic": critic.init(spec, key)}
        opt = {name: self.optimiser.init(weights) for name, weights in nets.items()}
        return PPOState(nets, opt, normalise.fresh(), critic.carry(spec, self.collect.envs))

    def carry(self, spec: Spec, envs: int) -> Carry:
        """The actors' hidden states."""
        return self._actor(spec).carry(spec, envs)

    def policy(self, state: PPOState) -> Weights:
        """The actors; the critic is for training only."""
        return {name: weights for name, weights in state.nets.items() if name != "critic"}

    def snapshot(self, state: PPOState) -> Weights:
        """The actors."""
        return self.policy(state)

    def stores(self, state: PPOState) -> Arrays:
        """None."""
        return ()

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: Weights, carry: Carry, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Carry, Action, Extra]:
        """Sampled (or most likely) actions, and their log-probabilities."""
        actor, rows = self._actor(spec), jax.tree.map(lambda x: x[None], step)
        carry, now, aux = actor.read(spec, policy, carry, rows)
        args = (spec.action, now.params[0], now.log_std, step.legal)
        action = distributions.sample(*args, key, greedy=greedy)
        kept = jax.tree.map(lambda x: x[0], actor.remember(now, aux))
        return carry, action, {"log_prob": distributions.log_prob(*args, action), **kept}

    # -- learning -----------------------------------------------------------------------------------------------
    def update(
        self, spec: Spec, state: PPOState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[PPOState, Metrics]:
        """Advantages of the rollout, then `epochs` passes over it in `minibatches` gradient steps each."""
        rows = self.carry_interval(spec)
        batch, carries, state, spread = self._prepare(spec, state, rollout, rows)

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
            normalized = self.advantages == "minibatch"
            order = batches.epochs(key, self.epochs, self.minibatches, batch.filled.shape[1])
            advantage = batches.minibatch_advantages(batch.advantage, batch.active, order, normalized=normalized)
            state, steps = jax.lax.scan(minibatch, state, (order, advantage))
        metrics = steps.summed().metrics()
        del metrics["ratio_error"]
        # Before any gradient step the new policy is the old one: anything but 0 here is a bug in unrolling or masks.
        metrics["check/first_ratio_error"] = steps.at(0).metrics()["ratio_error"]
        metrics["advantage_std"] = spread
        weights, about = self._actor(spec).updated(self.policy(state), clock)
        return replace(state, nets={**state.nets, **weights}), {**metrics, **about}

    def _prepare(
        self, spec: Spec, state: PPOState, rollout: Rollout, rows: int
    ) -> tuple[Batch, Carries, PPOState, Mean]:
        """Sequences of `rows` rows, the carries into each, the state after the rollout, the spread of advantages."""
        critic, step, filled = self._critic(spec), rollout.step, rollout.filled
        carry, carries, values = critic.value_rollout(spec, state.nets["critic"], state.critic_carry, step, rows)
        target, advantage, running = critic.targets(state.returns, step, values, filled, self.gamma, self.gae_lambda)
        active = filled[..., None] & step.alive[:-1]
        if self.advantages == "rollout" or (self.advantages == "minibatch" and self.minibatches == 1):
            advantage = batches.standardise(advantage, active)
        before = jax.tree.map(lambda x: x[:-1], step)
        data = (before, rollout.action, rollout.extra, advantage, target, values[:-1], filled)
        batch = Batch(*batches.to_sequences(data, rows))
        state = replace(state, returns=running, critic_carry=carry)
        return batch, batches.join_axes((rollout.carry, carries)), state, Mean.of(jnp.std(advantage, where=active))

    def _gradient_step(
        self, spec: Spec, state: PPOState, batch: Batch, carries: Carries, clock: Clock
    ) -> tuple[PPOState, Packed]:
        def loss(nets: dict[str, Any]) -> tuple[dict[str, Mean], Metrics]:
            actor, metrics = self._actor_loss(spec, nets, batch, carries[0])
            _, v = self._critic(spec).values(spec, nets["critic"], carries[1], batch.step)
            value = self._critic(spec).loss(v, batch.value, batch.target, batch.filled)
            losses = {name: actor if name == "actor" else Mean(jnp.float32(0), actor.weight) for name in nets}
            losses["critic"] = Mean(self.value.weight * value.total, value.weight)
            return losses, {**metrics, "value_loss": value}

        grads, metrics = shards.mean_gradients(loss, state.nets)
        nets, opt = {}, {}
        for name, grad in grads.items():
            nets[name], opt[name] = self.optimiser.step(state.nets[name], grad, state.opt[name], clock.progress)
            metrics[f"grad_norm_{name}"] = Mean.of(norm(grad))
        return PPOState(nets, opt, state.returns, state.critic_carry), Packed.of(metrics)

    def _actor_loss(self, spec: Spec, nets: Weights, batch: Batch, carry: Carry) -> tuple[Mean, Metrics]:
        """Clipped surrogate, entropy bonus and the actor's own penalties, over active agents."""
        actor, legal = self._actor(spec), batch.step.legal
        _, now, aux = actor.read(spec, nets, carry, batch.step)
        log_prob = distributions.log_prob(spec.action, now.params, now.log_std, legal, batch.action)
        log_ratio = log_prob - batch.extra["log_prob"]
        ratio = jnp.exp(log_ratio)
        gain = ratio * batch.advantage
        if self.clip > 0:
            gain = jnp.minimum(gain, jnp.clip(ratio, 1 - self.clip, 1 + self.clip) * batch.advantage)
        move, log_move = jax.lax.stop_gradient((ratio - 1.0, log_ratio))
        values = {
            "policy_loss": -gain,
            "entropy": distributions.entropy(spec.action, now.params, now.log_std, legal),
            "kl": move - log_move,
        }
        if self.clip > 0:
            values["clipped"] = jnp.abs(move) > self.clip
        metrics = Mean.of_each(values, batch.active)
        policy, entropy = metrics["policy_loss"], metrics["entropy"]
        total = policy.total - self.entropy * entropy.total
        for name, (weight, penalty) in actor.penalty(spec, now, aux, batch.step, batch.extra, batch.active).items():
            metrics[name] = penalty
            # As many times as the policy loss counts: all are means over their own rows.
            total = total + weight * penalty.value * policy.weight
        metrics["ratio_error"] = Mean.of(jnp.max(jnp.where(batch.active, jnp.abs(move), 0.0)))
        return Mean(total, policy.weight), metrics
