"""The Q family: DQN, IQL, VDN, QMIX. A single agent is an agent axis of 1; what differs is the mixer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, Fraction, NonNegative, Whole
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import Action, Clock, Collect, Extra, Mean, Metrics, Rollout, Spec, Step, global_state
from rookery.mechanisms.agent_values import AgentValues, Nets, Weights
from rookery.mechanisms.augment import check_shift, shifted
from rookery.mechanisms.credit import Credit
from rookery.mechanisms.remember import Remember, Remembered
from rookery.mechanisms.share import Receivers, Share, Shared
from rookery.mechanisms.values import Aims, Values, check_n_step
from rookery.memory import replay
from rookery.memory.learning import Learner, Minibatch, Replayed, Store
from rookery.memory.reader import Reader
from rookery.memory.replay import Replay
from rookery.memory.sequences import Memory, Sequence
from rookery.nets.agent import Net, Params
from rookery.nets.mixers import Mixer
from rookery.nets.noisy import Noisy
from rookery.nets.optimiser import Optimiser, Schedule, norm
from rookery.nets.target import Target
from rookery.ops import explore, returns, td
from rookery.ops.loops import alone


class QState(eqx.Module):
    learner: Learner[Weights]
    """What it keeps of recent gradient steps is sharing's."""
    store: Store
    remembered: Remembered | None
    """The memory that gives a second target."""


class Found(eqx.Module):
    """Auxiliary loss outputs; None if unused."""

    sizes: Float[Array, "batch"] | None
    """Mean |TD error| of each sequence."""
    shared: Shared | None


@family(ALGORITHMS)
@dataclass(frozen=True)
class Q:
    """Deep Q-learning from replayed sequences, one value per agent, mixed into the team's."""

    family: Literal["q"] = "q"
    mixer: Mixer = field(default_factory=Mixer)
    net: Net = field(default_factory=lambda: Net(kind="gru", layers=1))
    collect: Collect = field(default_factory=lambda: Collect(envs=8))
    replay: Replay = field(default_factory=Replay)
    target: Target = field(default_factory=Target)
    optimiser: Optimiser = field(default_factory=Optimiser)
    credit: Credit = field(default_factory=Credit)
    share: Share = field(default_factory=Share)
    values: Values = field(default_factory=Values)
    remember: Remember = field(default_factory=Remember)
    epsilon: Schedule = field(default_factory=lambda: Schedule(1.0, 0.05))
    """Probability of a random action while collecting."""
    gamma: Fraction = 0.99
    """Discount."""
    double: bool = True
    """Choose the next action by the online values, rate it by the target's."""
    n_step: Count = 1
    """Transitions whose rewards a target adds up before it bootstraps; fewer where an episode or the data end."""
    td_lambda: Fraction = 0.0
    """Mix of n-step targets; 0 is one-step."""
    huber: NonNegative = 0.0
    """TD error beyond which the loss is linear (Mnih et al. 2015: 1); 0: squared everywhere."""
    shift: Whole = 0
    """Pixels by which replayed images are shifted at random, at most (DrQ, Kostrikov et al. 2021: 4)."""
    team_reward: Literal["mean", "sum"] = "mean"
    """What a mixer's target makes of the agents' rewards."""
    agent_id: bool = True
    """Append the agent's index to its observation (where there is more than one agent)."""
    last_action: bool = True
    """Append the agent's last action to its observation."""

    # -- what it needs ------------------------------------------------------------------------------------------
    def check(self, spec: Spec) -> None:
        """Refuse what this family cannot train."""
        if spec.action.kind != "discrete":
            raise ConfigError(f"Q-learning needs discrete actions; {spec.name} has {spec.action.kind}. Try mappo.")
        self.mixer.check(spec, instead="iql or ippo")
        self.replay.check(self.collect, recurrent=bool(self.net.hidden))
        self.net.check()
        self.net.encoder.check(spec.obs_shape)
        self.credit.check(self.mixer.kind, self.collect)
        individual = self.credit.on or self.mixer.kind == "none"
        same = self.net.weights == "shared" and not self.agent_id
        tokens = self.net.kind == "transformer"
        self.share.check(spec, self.collect, individual=individual, same=same, tokens=tokens)
        alone = self._plain and self.mixer.kind == "none"
        self.values.check(self.net, alone=alone and not self.huber and not self.td_lambda)
        self.remember.check(spec, self.collect, alone=alone and not self.values.atoms)
        check_shift(spec, self.shift)
        other = bool(self.td_lambda) or self.share.on
        check_n_step(self.n_step, self.replay.unit, last_action=self.last_action, other=other)
        if self.huber and not self._plain:
            raise ConfigError("algo.huber is for the team's TD error alone: use it without algo.credit and algo.share.")

    @property
    def _plain(self) -> bool:
        """Whether the team's TD error is all that is learned from."""
        return not (self.credit.on or self.share.on)

    def shard(self) -> Q:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard(), replay=self.replay.shard(self.collect))

    def warmup(self) -> int:
        """Iterations until the first gradient step."""
        return self.replay.warmup(self.collect)

    def small(self) -> Q:
        """The same algorithm with little of everything."""
        return replace(
            self,
            net=self.net.small(),
            mixer=self.mixer.small(),
            collect=replace(self.collect, envs=2, length=min(self.collect.length, 8)),
            replay=self.replay.small(),
            target=replace(self.target, every=3),
            remember=self.remember.small(),
        )

    def carry_interval(self, spec: Spec) -> int:
        """One carry per sequence."""
        return 0

    @property
    def _values(self) -> AgentValues:
        reader = Reader(self.net, self.agent_id, self.last_action)
        return AgentValues(reader, self.values, self.double, self.replay.unit)

    def _replayed(self, spec: Spec) -> Replayed:
        return Replayed(self.replay, self.collect, spec, self.n_step, self.gamma)

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> QState:
        """Fresh weights and an empty store."""
        agent = self._values.init(spec, stream(key, "agent"))
        mixer = self.mixer.init(stream(key, "mixer"), spec.n_agents, spec.state_size)
        online, replayed = Weights(agent, mixer), self._replayed(spec)
        opt = self.credit.init(self.optimiser, online)
        recent = self.share.init(spec, stream(key, "share"))
        remembered = self.remember.init(spec, self.collect.envs, stream(key, "remember"))
        learner = Learner(online, online, opt, jnp.int32(0), replayed.priorities(), recent)
        return QState(learner, replayed.empty(self.net.hidden), remembered)

    def carry(self, spec: Spec, envs: int) -> Memory:
        """Nothing remembered, nothing done."""
        return self._values.reader.carry(spec, envs)

    def policy(self, state: QState) -> Params | Noisy:
        """The agents' network."""
        return state.learner.online.agent

    def snapshot(self, state: QState) -> Params | Noisy:
        """The agents' network."""
        return self.policy(state)

    def stores(self, state: QState) -> Any:
        """The replay store, and the memory if there is one."""
        return state.store if state.remembered is None else (state.store, state.remembered.memory)

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: Params | Noisy, carry: Memory, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Memory, Action, Extra]:
        """Epsilon-greedy (or greedy) actions."""
        hidden, q = self._values.row(spec, policy, carry, step, None if greedy else lambda: key)
        if greedy:
            action = jnp.argmax(td.only_legal(q, step.legal), axis=-1).astype(jnp.int32)
        else:
            action = explore.epsilon_greedy(key, q, step.legal, self.epsilon.at(clock.steps, clock.budget))
        return Memory(hidden, action), action, {}

    # -- learning -----------------------------------------------------------------------------------------------
    def update(self, spec: Spec, state: QState, rollout: Rollout, clock: Clock, key: Array) -> tuple[QState, Metrics]:
        """Store the rollout, then take the configured number of gradient steps."""
        remembered, written = self.remember.write(spec, state.remembered, rollout, self.gamma, clock)
        step = partial(self._gradient_step, spec, remembered=remembered)
        replayed = self._replayed(spec)
        learner, store, metrics = replayed.update(state.learner, state.store, rollout, clock, key, step)
        metrics["epsilon"] = Mean.of(self.epsilon.at(clock.steps, clock.budget))
        return QState(learner, store, remembered), metrics | written

    def _gradient_step(
        self, spec: Spec, now: Learner[Weights], sees: Minibatch, remembered: Remembered | None = None
    ) -> tuple[Learner[Weights], Metrics]:
        sees, about = shifted(sees, self.shift)

        def gradient(online: Weights, target: Weights, sees: Minibatch) -> tuple[Weights, tuple[Found, Metrics]]:
            before = replace(now, online=online, target=target)
            return shards.mean_gradient(lambda online: self._loss(spec, online, before, sees, remembered), online)

        grads, (found, metrics) = alone(gradient, now.online, now.target, sees)
        progress, updates = sees.clock.progress, now.updates + 1
        online, opt = self.credit.step(self.optimiser, now.online, grads, now.opt, progress)
        target = self.target.refresh(now.target, online, updates)
        metrics |= {"grad_norm": Mean.of(norm(grads)), **about}
        if found.sizes is not None:
            metrics["priority_spread"] = Mean.of(jnp.max(found.sizes) / jnp.maximum(jnp.mean(found.sizes), 1e-9))
        read = partial(self._values.read, spec, self._values.nets(online, target, None))
        recent, taught = self.share.look_back(found.shared, read, progress)
        priorities = replay.rate(now.priorities, sees.draw, found.sizes)
        return Learner(online, target, opt, updates, priorities, recent), metrics | taught

    def _loss(
        self,
        spec: Spec,
        online: Weights,
        now: Learner[Weights],
        sees: Minibatch,
        remembered: Remembered | None = None,
    ) -> tuple[Mean, tuple[Found, Metrics]]:
        """Mean squared TD error over real transitions, or what stands for it."""
        batch, draw, values = sees.batch, sees.draw, self._values
        nets = values.nets(online, now.target, sees.key)
        y, y_target = values.outputs(spec, nets, batch)
        q_i, v_i = values.taken(batch, y, y_target)
        state = global_state(spec, batch.step)
        mix = lambda q_i: self.mixer(online.mixer, q_i, state[:-1])  # noqa: E731
        q_tm1 = mix(jax.lax.stop_gradient(q_i) if self.credit.on else q_i)
        aims = self._aims(batch)
        v_t = aims.at(self.mixer(now.target.mixer, v_i, state[1:]))
        targets = returns.targets(aims.r_t, aims.discount_t, v_t, batch.step.last, self.td_lambda)
        targets = jax.lax.stop_gradient(targets)
        # Dead rows too: with the team's discount their values are bootstrapped from, so they must be trained.
        valid = jnp.broadcast_to(batch.filled[..., None], q_tm1.shape)
        q_now = jax.lax.stop_gradient(q_tm1)
        about = {"q_taken": q_now, "q_target": targets, "td_error": jnp.abs(q_now - targets)}
        if self.values.atoms:
            errors = self.values.errors(y, y_target, batch.step.legal, batch.action, aims, double=self.double)
            sizes = draw.sizes(jax.lax.stop_gradient(errors), jnp.zeros_like(errors), valid)
        else:
            errors = td.squared(q_tm1 - targets, self.huber)
            sizes = draw.sizes(q_tm1, targets, valid)
        if self.huber:
            about["huber_linear"] = about["td_error"] > self.huber
        metrics = Mean.of_each({"loss": draw.weigh(errors), **about}, valid)
        metrics |= self.values.metrics(online.agent, y, batch.filled)
        team = metrics["loss"]
        if remembered is not None:
            squares, found = self.remember.penalty(spec, remembered, batch.step, batch.action, q_tm1, valid)
            team = Mean(team.total + Mean.of(draw.weigh(squares), valid).total, team.weight)
            metrics |= found
        if self._plain:
            return team, (Found(sizes, None), metrics)
        mine, own, found = self.credit.learn(mix, q_i, v_i, q_tm1 - targets, self.gamma, sees)
        metrics, shared = metrics | found, None
        if now.recent is not None:
            receivers = self._receivers(spec, nets, batch)
            taken, shared, found = self.share.learn(spec, now.recent, mine, receivers, sees)
            own, metrics = Mean(own.total + taken.total, own.weight + taken.weight), metrics | found
            metrics["share_loss"] = Mean.of(jnp.divide(taken.total, jnp.maximum(own.total, 1e-12)))
        # Without a mixer the team's loss is the agents' own.
        return Mean.of(own.value + (team.value if self.credit.on else 0.0)), (Found(sizes, shared), metrics)

    def _aims(self, batch: Sequence) -> Aims:
        # Transitions that were drawn singly span n steps already.
        n = self.n_step if self.replay.unit == "sequence" else 1
        return Aims.of(batch.step, self.gamma, "none" if self.mixer.kind == "none" else self.team_reward, n)

    def _receivers(self, spec: Spec, nets: Nets, batch: Sequence) -> Receivers:
        values = self._values
        # Rewards that `credit` assigns are those of one-step targets.
        aim = partial(returns.targets, lam=0.0 if self.credit.on else self.td_lambda)
        read, hear = partial(values.read, spec, nets), partial(values.hear, spec, nets, batch)
        return Receivers(read, hear, aim, fresh=self.net.weights == "per_agent")
