"""The PPO family: IPPO, MAPPO, A2C, HAPPO, Hyper-MAPPO, HyperMARL.

They differ in what the critic sees, whether the ratio is clipped, who learns when, and where the weights come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, Fraction, NonNegative, Whole
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import Action, Arrays, Carry, Clock, Collect, Extra, Mean, Metrics, Packed, Rollout, Spec, Step
from rookery.mechanisms import explore, normalise, probe, sequential
from rookery.mechanisms.actor import UNTRAINED, Actor, PlainActor, Weights
from rookery.mechanisms.batch import Batch, Carries, Passes, pick, sequences_of
from rookery.mechanisms.critic import Critic, Value
from rookery.mechanisms.explore import Explore
from rookery.mechanisms.hyper import CRITIC, ChangedNet, Hyper, critic_groups, critic_of
from rookery.mechanisms.probe import Probe
from rookery.mechanisms.surrogate import Objective, actor_loss
from rookery.nets.agent import Net
from rookery.nets.optimiser import Optimiser, gradient_norms, step_groups
from rookery.ops import batches, distributions


class PPOState(eqx.Module):
    nets: dict[str, Any]
    """Weights by optimiser group: those of the critic, and those of the actor (also those that are not trained)."""
    opt: dict[str, optax.OptState]
    returns: normalise.Running
    critic_carry: Float[Array, "env viewer h"]
    probe: probe.ProbeSet | None


Common = tuple[Weights, dict[str, Any], normalise.Running]
"""What asynchronous learners share."""


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
    gamma: Fraction = 0.99
    """Discount."""
    gae_lambda: Fraction = 0.95
    """Generalized advantage estimation; 1: n-step returns."""
    clip: NonNegative = 0.2
    """Largest move of the probability ratio away from 1 that still has a gradient; 0: no limit (A2C)."""
    epochs: Count = 5
    """Passes over each rollout."""
    minibatches: Count = 1
    """Gradient steps per pass."""
    bptt_length: Whole = 0
    """Rows that a recurrent net is unrolled over in training; 0: the whole rollout."""
    entropy: NonNegative = 0.01
    """Weight of the entropy bonus."""
    align: NonNegative = 0.0
    """Weight of KL(policy that acted || new policy); 0: none."""
    advantages: Literal["rollout", "minibatch", "raw"] = "rollout"
    """Over what advantages are normalized to mean 0 and standard deviation 1."""
    agent_id: bool = True
    """Append the agent's index to what actor and critic see of its observation (if there are several agents)."""
    order: Literal["simultaneous", "sequential"] = "simultaneous"
    """sequential: agents learn one after the other in a random order, each with the ratios of those before it in its
    advantage (HAPPO); needs per-agent weights."""
    hyper: Hyper = field(default_factory=Hyper)
    """Hypernetwork of the actor."""
    explore: Explore = field(default_factory=Explore)
    """Noise while collecting."""
    probe: Probe = field(default_factory=Probe)
    """Metrics of how much each update changes the policy."""

    # -- requirements -------------------------------------------------------------------------------------------
    def check(self, spec: Spec) -> None:
        """Refuse what this family cannot train."""
        self.actor.check()
        self.critic.check()
        self.actor.encoder.check(spec.obs_shape)
        self.critic.encoder.check(self._critic.image(spec))
        self._critic.check(self.critic.kind)
        self.hyper.check(self.actor, self.critic, spec)
        if self.hyper.changes and self.hyper.target == "anchor" and self.align == 0:
            raise ConfigError(
                "algo.hyper.target anchor is what algo.align aligns with: set --algo.align above 0, or "
                "--algo.hyper.target none."
            )
        self.explore.check(spec)
        length, rows = self.collect.transitions(spec), self.carry_interval(spec)
        sequences = sequences_of(self.collect, length, rows, self.minibatches)
        self.value.check(spec)
        readable = sequences if self._actor.hidden else sequences * rows
        self.probe.check(readable, sequences, self.collect.shards)
        if self.order == "sequential":
            sequential.check(self.actor, self.hyper, self.explore)
        if self.collect.restart:
            raise ConfigError("algo.collect.restart is for replayed episodes; PPO continues where its rollout ended.")
        if self.collect.learners:
            self._check_learners()

    def _check_learners(self) -> None:
        """Refuse what is more than one gradient step for each rollout."""
        needed = {
            "algo.epochs 1": self.epochs == 1,
            "algo.minibatches 1": self.minibatches == 1,
            "algo.order simultaneous": self.order == "simultaneous",
            "algo.hyper.generate none": self.hyper.generate == "none",
            "algo.explore.parameter_noise 0": self.explore.parameter_noise == 0,
            "algo.probe.states 0": self.probe.states == 0,
        }
        missing = [f"--{setting}" for setting, given in needed.items() if not given]
        if missing:
            raise ConfigError(
                "algo.collect.learners: asynchronous learners take one gradient step for each rollout; set "
                f"{' '.join(missing)}."
            )

    def shard(self) -> PPO:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard(), probe=self.probe.shard(self.collect.shards))

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
            hyper=self.hyper.small(),
            probe=self.probe.small(),
        )

    def carry_interval(self, spec: Spec) -> int:
        """Rows of one training sequence: 1 for feed-forward nets, several if consecutive increments are compared."""
        if self._actor.hidden or self.critic.hidden:
            return self.bptt_length or self.collect.transitions(spec)
        return (self.bptt_length or self.hyper.rows(self.collect.transitions(spec))) if self.hyper.changes else 1

    @property
    def _actor(self) -> Actor:
        return self.hyper.actor(self.actor, agent_id=self.agent_id)

    @property
    def _critic(self) -> Critic:
        return Critic(self.hyper.critic_net(self.critic), self.value, self.agent_id)

    @property
    def _passes(self) -> Passes:
        return Passes(self.epochs, self.minibatches, self.advantages)

    @property
    def _objective(self) -> Objective:
        return Objective(self.clip, self.entropy, self.align)

    def _optimiser(self, group: str) -> Optimiser:
        return replace(self.optimiser, lr=self.hyper.lr) if group in ("hyper", "critic_hyper") else self.optimiser

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> PPOState:
        """Fresh weights."""
        actor, critic = self._actor, self._critic
        nets = self.explore.init({**actor.init(spec, key), **critic_groups(critic.init(spec, key))}, key)
        opt = {name: self._optimiser(name).init(weights) for name, weights in nets.items() if name not in UNTRAINED}
        if self.order == "sequential":
            opt["actor"] = jax.vmap(self.optimiser.init)(nets["actor"])
        seen = self.probe.init(spec, actor)
        return PPOState(nets, opt, normalise.fresh(), critic.carry(spec, self.collect.envs), seen)

    def carry(self, spec: Spec, envs: int) -> Carry:
        """The actors' hidden states."""
        return self._actor.carry(spec, envs)

    def policy(self, state: PPOState) -> Weights:
        """The actors; the critic and targets are for training only."""
        return {name: weights for name, weights in state.nets.items() if name not in (*CRITIC, "hyper_target")}

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
        actor, rows = self._actor, jax.tree.map(lambda x: x[None], step)
        carry, now, _ = actor.read(spec, policy if greedy else explore.noisy(policy), carry, rows)
        args = (spec.action, now.params[0], now.log_std, step.legal)
        action = distributions.sample(*args, key, greedy=greedy)
        if self.explore.noise > 0 and not greedy:
            action = self.explore.perturb(spec.action, action, stream(key, "noise"))
        kept = jax.tree.map(lambda x: x[0], self._objective.remember(now))
        return actor.took(spec, carry, action), action, {"log_prob": distributions.log_prob(*args, action), **kept}

    # -- learning -----------------------------------------------------------------------------------------------
    def update(
        self, spec: Spec, state: PPOState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[PPOState, Metrics]:
        """Advantages of the rollout, then `epochs` passes over it in `minibatches` gradient steps each."""
        rows, actor = self.carry_interval(spec), self._actor
        batch, carries, state, spread = self._prepare(spec, state, rollout, rows)
        about = {"advantage_std": spread}
        state = replace(state, probe=self.probe.keep_first(state.probe, actor, rollout, rows, clock.iteration))
        old = state.nets
        if state.probe is not None:
            groups = tuple(name for name in state.opt if name not in CRITIC)
            about |= probe.gradient_variance(
                lambda chosen: self._gradients(spec, old, *pick(batch, carries, chosen), groups)[0],
                probe.minibatches(stream(key, "probe"), batch.filled.shape[1], self.minibatches),
            )
        learn = self._in_turn if self.order == "sequential" else self._learn
        state, steps, more = learn(spec, state, batch, carries, clock, key)
        metrics = steps.summed().metrics()
        del metrics["ratio_error"]
        # Before any gradient step the new policy is the old one: anything but 0 here is a bug in unrolling or masks.
        metrics["check/first_ratio_error"] = steps.at(0).metrics()["ratio_error"]
        weights = {name: w for name, w in state.nets.items() if name not in CRITIC}
        weights, of_actor = actor.updated(weights, clock)
        if state.probe is not None:
            about |= probe.policy_change(spec, actor, old, weights, state.probe)
        weights, noise = self.explore.renew(spec, actor, weights, batch, carries[0], key)
        state = replace(state, nets={**state.nets, **weights})
        return state, {**metrics, **about, **of_actor, **more, **noise}

    def _learn(
        self, spec: Spec, state: PPOState, batch: Batch, carries: Carries, clock: Clock, key: Array
    ) -> tuple[PPOState, Packed, Metrics]:
        """The state after `epochs` passes over a batch, and the metrics of all gradient steps."""
        trained = tuple(state.opt) if self.order == "simultaneous" else ("critic",)

        def step(state: PPOState, batch: Batch, carries: Carries) -> tuple[PPOState, Packed]:
            grads, metrics = self._gradients(spec, state.nets, batch, carries, trained)
            nets, opt, norms = step_groups(self._optimiser, state.nets, state.opt, grads, clock.progress)
            return replace(state, nets=nets, opt=opt), Packed.of({**metrics, **norms})

        return *self._passes.take(step, state, batch, carries, key), {}

    def _in_turn(
        self, spec: Spec, state: PPOState, batch: Batch, carries: Carries, clock: Clock, key: Array
    ) -> tuple[PPOState, Packed, Metrics]:
        """The same for agents that learn one after the other; the critic learns as ever."""
        actor = self._actor
        assert isinstance(actor, PlainActor)
        start = (state.nets["actor"], state.opt["actor"])
        state, critic, _ = self._learn(spec, state, batch, carries, clock, key)
        learner = sequential.Learner(actor, self.optimiser, self._objective)
        minibatches = self._passes.steps(batch, key)
        (weights, opt), steps, factor = sequential.in_turn(
            spec, learner, start, batch, carries[0], minibatches, clock.progress, key
        )
        state = replace(state, nets={**state.nets, "actor": weights}, opt={**state.opt, "actor": opt})
        return state, steps, {**critic.summed().metrics(), "happo_factor": factor}

    # -- one gradient step, taken where other learners take theirs (A3C, Mnih et al. 2016) ----------------------
    def common(self, state: PPOState) -> Common:
        """Weights, optimiser statistics and return statistics."""
        return state.nets, state.opt, state.returns

    def gradient(
        self, spec: Spec, state: PPOState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[PPOState, tuple[Weights, normalise.Running], Metrics]:
        """Gradients of a rollout, and how it changes the return statistics."""
        batch, carries, after, spread = self._prepare(spec, state, rollout, self.carry_interval(spec))
        grads, metrics = self._gradients(spec, state.nets, batch, carries, tuple(state.opt))
        metrics["check/first_ratio_error"] = metrics.pop("ratio_error")
        change = jax.tree.map(jnp.subtract, after.returns, state.returns)
        return after, (grads, change), {**metrics, **gradient_norms(grads), "advantage_std": spread}

    def apply(self, common: Common, gradient: tuple[Weights, normalise.Running], clock: Clock) -> Common:
        """One optimiser step."""
        (nets, opt, returns), (grads, change) = common, gradient
        nets, opt, _ = step_groups(self._optimiser, nets, opt, grads, clock.progress)
        return nets, opt, jax.tree.map(jnp.add, returns, change)

    def _prepare(
        self, spec: Spec, state: PPOState, rollout: Rollout, rows: int
    ) -> tuple[Batch, Carries, PPOState, Mean]:
        """Sequences of `rows` rows, the carries into each, the state after the rollout, the spread of advantages."""
        critic, step, filled = self._critic, rollout.step, rollout.filled
        carry, carries, values = critic.value_rollout(spec, critic_of(state.nets), state.critic_carry, step, rows)
        target, advantage, running = critic.targets(state.returns, step, values, filled, self.gamma, self.gae_lambda)
        active = filled[..., None] & step.alive[:-1]
        advantage = self._passes.normalized(advantage, active)
        before = jax.tree.map(lambda x: x[:-1], step)
        data = (before, rollout.action, rollout.extra, advantage, target, values[:-1], filled)
        batch = Batch(*batches.to_sequences(data, rows))
        state = replace(state, returns=running, critic_carry=carry)
        return batch, batches.join_axes((rollout.carry, carries)), state, Mean.of(jnp.std(advantage, where=active))

    # -- losses -------------------------------------------------------------------------------------------------
    def _gradients(
        self, spec: Spec, nets: Weights, batch: Batch, carries: Carries, trained: tuple[str, ...]
    ) -> tuple[Weights, Metrics]:
        """Gradients of some groups of weights, and the metrics of their losses."""

        def loss(some: Weights) -> tuple[dict[str, Mean], Metrics]:
            now, losses, metrics = {**nets, **some}, {}, {}
            if "actor" in some:
                weights = (self._actor, explore.noisy(now))
                actor, metrics = actor_loss(spec, *weights, batch, carries[0], self._objective)
                # All groups of the actor have the same loss; its total must count once.
                losses = {name: Mean(jnp.float32(0), actor.weight) for name in some} | {"actor": actor}
            if "critic" in some:
                critic, read = self._critic, critic_of(now)
                _, v = critic.values(spec, read, carries[1], batch.step)
                value = critic.loss(v, batch.value, batch.target, batch.filled)
                losses |= {name: Mean(jnp.float32(0), value.weight) for name in CRITIC if name in some}
                losses["critic"] = Mean(self.value.weight * value.total, value.weight)
                metrics = {**metrics, "value_loss": value}
                if isinstance(critic.net, ChangedNet):
                    team, x = critic.inputs(spec, batch.step)
                    size = critic.net.increment(read, x, batch.step.first, team)
                    metrics["hyper/critic_increment"] = Mean.of(size, batch.filled[..., None])
            return losses, metrics

        return shards.mean_gradients(loss, {name: nets[name] for name in trained})
