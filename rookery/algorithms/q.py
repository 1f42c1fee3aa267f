"""The Q family: DQN, IQL, VDN, QMIX. A single agent is an agent axis of 1; what differs is the mixer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, Fraction, NonNegative, Whole
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import (
    Action,
    Clock,
    Collect,
    Extra,
    Mean,
    Metrics,
    Rollout,
    Spec,
    Step,
    global_state,
)
from rookery.mechanisms import share
from rookery.mechanisms.augment import check_shift, shifted
from rookery.mechanisms.credit import Credit, Keys
from rookery.mechanisms.remember import Remember, Remembered
from rookery.mechanisms.share import Borrowed, Recent, Share
from rookery.mechanisms.values import Aims, Values, check_n_step
from rookery.memory import replay
from rookery.memory.learning import Replayed, Store
from rookery.memory.replay import Draw, Replay
from rookery.memory.sequences import Memory, Sequence, previous_actions, since_reset
from rookery.nets.agent import Net, Params
from rookery.nets.inputs import own_view, view_size
from rookery.nets.mixers import Mixer, MixerParams
from rookery.nets.noisy import Noisy
from rookery.nets.optimiser import Optimiser, Schedule, norm
from rookery.nets.target import Target
from rookery.ops import explore, returns, td


class Weights(eqx.Module):
    agent: Any
    """`Params`, or `Noisy` ones."""
    mixer: MixerParams


class Learner(eqx.Module):
    """What a gradient step moves."""

    online: Weights
    target: Weights
    opt: Any
    """With credit the agents' and the mixer's, else one for all weights."""
    updates: Int[Array, ""]
    priorities: Float[Array, "capacity"] | None
    """Of the stored sequences; None under uniform replay."""
    recent: Recent | None
    """What sharing remembers."""


class Found(eqx.Module):
    """Auxiliary loss outputs; None if unused."""

    sizes: Float[Array, "batch"] | None
    """Mean |TD error| of each sequence."""
    recent: Recent | None
    borrowed: Borrowed | None


class QState(eqx.Module):
    learner: Learner
    store: Store
    remembered: Remembered | None
    """The memory that gives a second target."""


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
        if self.mixer.kind != "none" and not spec.cooperative:
            teams = ", ".join(sorted(set(spec.teams))) or "none"
            raise ConfigError(
                f"mixer '{self.mixer.kind}' needs a cooperative task; {spec.name} rewards its teams differently. "
                f"Try iql or ippo, or one team only: --task.team (teams: {teams})."
            )
        self.replay.check(self.collect, recurrent=bool(self.net.hidden))
        self.net.check()
        self.net.encoder.check(spec.obs_shape)
        self.credit.check(self.mixer.kind)
        individual = self.credit.kind != "none" or self.mixer.kind == "none"
        same = self.net.weights == "shared" and not self.agent_id
        self.share.check(spec, individual=individual, same=same, tokens=self.net.kind == "transformer")
        plain = self.credit.kind == "none" and not self._shares
        alone = plain and self.mixer.kind == "none"
        self.values.check(self.net, alone=alone and not self.huber and not self.td_lambda)
        self.remember.check(spec, self.collect, alone=alone and not self.values.atoms)
        check_shift(spec, self.shift)
        check_n_step(
            self.n_step, self.replay.unit, last_action=self.last_action, other=bool(self.td_lambda) or self._shares
        )
        if self.huber and not plain:
            raise ConfigError("algo.huber is for the team's TD error alone: use it without algo.credit and algo.share.")
        if self.collect.shards > 1 and (self.credit.kind != "none" or self._shares):
            raise ConfigError(
                "algo.credit and algo.share choose among all transitions of a batch, which several shards do not see; "
                "use --algo.collect.shards 1."
            )

    def shard(self) -> Q:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard(), replay=self.replay.shard(self.collect))

    def warmup(self) -> int:
        """Iterations until the first gradient step."""
        return -(-self.replay.least // self.collect.envs)

    def small(self) -> Q:
        """The same algorithm with little of everything."""
        return replace(
            self,
            net=self.net.small(),
            mixer=self.mixer.small(),
            collect=replace(self.collect, envs=2, length=min(self.collect.length, 8)),
            replay=replace(self.replay, capacity=8, batch=4, start=4, steps_per_sequence=1.0),
            target=replace(self.target, every=3),
            remember=self.remember.small(),
        )

    def carry_interval(self, spec: Spec) -> int:
        """One carry per sequence."""
        return 0

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> QState:
        """Fresh weights and an empty store."""
        n_in = view_size(spec, agent_id=self._id(spec), last_action=self.last_action)
        agent = self.values.init(self.net, spec, n_in, stream(key, "agent"))
        mixer = self.mixer.init(stream(key, "mixer"), spec.n_agents, spec.state_size)
        online = Weights(agent, mixer)
        replayed = self._replayed(spec)
        opt = self._optimiser_state(online)
        recent = self.share.init(spec, stream(key, "share")) if self._shares else None
        remembered = self.remember.init(spec, self.collect.envs, stream(key, "remember"))
        learner = Learner(online, online, opt, jnp.int32(0), replayed.priorities(), recent)
        return QState(learner, replayed.empty(self.net.hidden), remembered)

    def _optimiser_state(self, online: Weights) -> Any:
        if self.credit.kind == "none":
            return self.optimiser.init(online)
        return self.optimiser.init(online.agent), self.credit.mixer_optimiser.init(online.mixer)

    def _replayed(self, spec: Spec) -> Replayed:
        return Replayed(self.replay, self.collect, spec, self.n_step, self.gamma)

    @property
    def _shares(self) -> bool:
        return self.share.select != "none"

    def _id(self, spec: Spec) -> bool:
        return self.agent_id and spec.n_agents > 1

    def carry(self, spec: Spec, envs: int) -> Memory:
        """Nothing remembered, nothing done."""
        return Memory(self.net.carry(envs, spec.n_agents), jnp.full((envs, spec.n_agents), -1, jnp.int32))

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
        rows = jax.tree.map(lambda x: x[None], step)
        previous = since_reset(step.first, carry.action)
        params = self.values.weights(policy, None if greedy else lambda: key)
        hidden, y = self._outputs(spec, params, carry.hidden, rows, previous[None])
        q = self.values.expected(y)
        if greedy:
            action = jnp.argmax(td.only_legal(q[0], step.legal), axis=-1).astype(jnp.int32)
        else:
            epsilon = self.epsilon.at(clock.steps, clock.budget)
            action = explore.epsilon_greedy(key, q[0], step.legal, epsilon)
        return Memory(hidden, action), action, {}

    def _outputs(
        self, spec: Spec, params: Params, hidden: Array, step: Step, previous: Int[Array, "time b agent"]
    ) -> tuple[Array, Float[Array, "time b agent action *atom"]]:
        """What the network says of all actions over a sequence; `previous` is the action before each row, -1 at its
        start."""
        x = self._view(spec, step, previous)
        hidden, y = self.net.unroll(params, hidden, x, step.first, spec.entities)
        return hidden, self.values.read(y)

    def _view(self, spec: Spec, step: Step, previous: Array) -> Array:
        return own_view(spec, step, agent_id=self._id(spec), last_action=previous if self.last_action else None)

    # -- learning -----------------------------------------------------------------------------------------------
    def update(self, spec: Spec, state: QState, rollout: Rollout, clock: Clock, key: Array) -> tuple[QState, Metrics]:
        """Store the rollout, then take the configured number of gradient steps."""
        remembered, written = self.remember.write(spec, state.remembered, rollout, self.gamma, clock)

        def step(learner: Learner, batch: Sequence, draw: Draw, k: Array) -> tuple[Learner, Metrics]:
            return self._gradient_step(spec, learner, batch, draw, clock, partial(stream, key, t=k), remembered)

        replayed = self._replayed(spec)
        learner, store, metrics = replayed.update(state.learner, state.store, rollout, clock, key, step)
        metrics["epsilon"] = Mean.of(self.epsilon.at(clock.steps, clock.budget))
        return QState(learner, store, remembered), metrics | written

    def _gradient_step(
        self,
        spec: Spec,
        now: Learner,
        batch: Sequence,
        draw: Draw,
        clock: Clock,
        key: Keys,
        remembered: Remembered | None = None,
    ) -> tuple[Learner, Metrics]:
        batch, about = shifted(batch, self.shift, key)

        def loss(online: Weights) -> tuple[Mean, tuple[Found, Metrics]]:
            return self._loss(spec, online, now, batch, draw, clock, key, remembered)

        grads, (found, metrics) = shards.mean_gradient(loss, now.online)
        online, opt = self._move(now, grads, clock)
        updates = now.updates + 1
        target = self.target.refresh(now.target, online, updates)
        metrics |= {"grad_norm": Mean.of(norm(grads)), **about}
        if found.sizes is not None:
            metrics["priority_spread"] = Mean.of(jnp.max(found.sizes) / jnp.maximum(jnp.mean(found.sizes), 1e-9))
        recent = found.recent
        if recent is not None and found.borrowed is not None:
            q_j, _ = self._read(spec, self._drawn(online, None), self._drawn(target, None), found.borrowed.sequence)
            recent, taught = self.share.look_back(recent, found.borrowed, q_j, clock.progress)
            metrics |= taught
        return Learner(online, target, opt, updates, replay.rate(now.priorities, draw, found.sizes), recent), metrics

    def _move(self, now: Learner, grads: Weights, clock: Clock) -> tuple[Weights, Any]:
        if self.credit.kind == "none":
            return self.optimiser.step(now.online, grads, now.opt, clock.progress)
        agent, opt = self.optimiser.step(now.online.agent, grads.agent, now.opt[0], clock.progress)
        step = self.credit.mixer_optimiser.step
        mixer, opt_mixer = step(now.online.mixer, grads.mixer, now.opt[1], clock.progress)
        return Weights(agent, mixer), (opt, opt_mixer)

    def _drawn(self, weights: Weights, key: Callable[[], Array] | None) -> Weights:
        """Weights with noise, where there is any; without a key their means."""
        return Weights(self.values.weights(weights.agent, key), weights.mixer)

    def _both(self, spec: Spec, online: Weights, target: Weights, batch: Sequence) -> tuple[Array, Array]:
        """What both networks say of all rows [row, b, agent, action, ...]."""
        seen = batch.step, previous_actions(batch)
        read = lambda w, rows: self._outputs(spec, w.agent, batch.memory.hidden, *rows)[1]  # noqa: E731
        if self.replay.unit == "sequence":
            return read(online, seen), read(target, seen)
        # Of a transition, what is not read need not be computed: its second row takes no gradient, and without `double`
        # it is the target network's alone; its first row is the online network's.
        before, after = (jax.tree.map(lambda x, at=at: x[at], seen) for at in (np.s_[:1], np.s_[1:]))
        y, y_target = read(online, before), read(target, after)
        chooser = jax.lax.stop_gradient(read(online, after)) if self.double else y_target
        return jnp.concatenate([y, chooser]), jnp.concatenate([y_target, y_target])

    def _taken(self, batch: Sequence, y: Array, y_target: Array) -> tuple[Array, Array]:
        """Agents' values of the actions taken [time, b, agent], and of the rows that they led to."""
        q, q_target = self.values.expected(y), self.values.expected(y_target)
        v_t = td.next_values(q_target, q, batch.step.legal, double=self.double)[1:]
        return td.take(q[:-1], batch.action), v_t

    def _read(self, spec: Spec, online: Weights, target: Weights, batch: Sequence) -> tuple[Array, Array]:
        return self._taken(batch, *self._both(spec, online, target, batch))

    def _hear(self, spec: Spec, params: Params, batch: Sequence, senders: Array, present: Array) -> Array:
        """Agents' values of the actions taken, with a look at what these senders make of the same moments."""
        x = self._view(spec, batch.step, previous_actions(batch))
        return td.take(share.heard_outputs(self.net, params, batch, x, spec.entities, senders, present), batch.action)

    def _loss(
        self,
        spec: Spec,
        online: Weights,
        now: Learner,
        batch: Sequence,
        draw: Draw,
        clock: Clock,
        key: Keys,
        remembered: Remembered | None = None,
    ) -> tuple[Mean, tuple[Found, Metrics]]:
        """Mean squared TD error over real transitions, or what stands for it."""
        agent = online.agent
        online = self._drawn(online, partial(key, "online"))
        target = self._drawn(now.target, partial(key, "target"))
        y, y_target = self._both(spec, online, target, batch)
        q_i, v_i = self._taken(batch, y, y_target)
        state = global_state(spec, batch.step)
        mix = lambda q_i: self.mixer(online.mixer, q_i, state[:-1])  # noqa: E731
        q_tm1 = mix(q_i if self.credit.kind == "none" else jax.lax.stop_gradient(q_i))
        # Transitions that were drawn singly span n steps already.
        n = self.n_step if self.replay.unit == "sequence" else 1
        aims = Aims.of(batch.step, self.gamma, "none" if self.mixer.kind == "none" else self.team_reward, n)
        v_t = aims.at(self.mixer(target.mixer, v_i, state[1:]))
        targets = returns.targets(aims.r_t, aims.discount_t, v_t, batch.step.last, self.td_lambda)
        targets = jax.lax.stop_gradient(targets)
        # Dead rows too: with the team's discount their values are bootstrapped from, so they must be trained.
        valid = jnp.broadcast_to(batch.filled[..., None], q_tm1.shape)
        q_now = jax.lax.stop_gradient(q_tm1)
        values = {"q_taken": q_now, "q_target": targets, "td_error": jnp.abs(q_now - targets)}
        if self.values.atoms:
            errors = self.values.errors(y, y_target, batch.step.legal, batch.action, aims, double=self.double)
            sizes = draw.sizes(jax.lax.stop_gradient(errors), jnp.zeros_like(errors), valid)
        else:
            errors = td.squared(q_tm1 - targets, self.huber)
            sizes = draw.sizes(q_tm1, targets, valid)
        if self.huber:
            values["huber_linear"] = values["td_error"] > self.huber
        metrics = Mean.of_each({"loss": draw.weigh(errors), **values}, valid)
        metrics |= self.values.metrics(agent, y, batch.filled)
        squared, found = metrics["loss"], Found(sizes, None, None)
        if remembered is not None:
            squares, about = self.remember.penalty(spec, remembered, batch.step, batch.action, q_tm1, valid)
            squared = Mean(squared.total + Mean.of(draw.weigh(squares), valid).total, squared.weight)
            metrics |= about
        if self.credit.kind == "none" and not self._shares:
            return squared, (found, metrics)
        mine, squares, counts, about = self.credit.learn(mix, q_i, v_i, q_tm1 - targets, batch, self.gamma, clock, key)
        own = Mean.of(draw.weigh(squares), counts)
        metrics |= {**about, "own_loss": own}
        if now.recent is not None:
            read, hear = partial(self._read, spec, online, target), partial(self._hear, spec, online.agent, batch)
            # Rewards that `credit` assigns are those of one-step targets.
            aim = partial(returns.targets, lam=self.td_lambda if self.credit.kind == "none" else 0.0)
            squares, accepted, recent, borrowed, about = self.share.learn(
                spec, now.recent, batch, mine, read, hear, aim, key, fresh=self.net.weights == "per_agent"
            )
            taken = Mean.of(draw.weigh(squares), accepted)
            metrics["share_loss"] = Mean.of(jnp.divide(taken.total, jnp.maximum(own.total + taken.total, 1e-12)))
            own = Mean(own.total + taken.total, own.weight + taken.weight)
            found, metrics = Found(found.sizes, recent, borrowed and share.probe(borrowed)), metrics | about
        # Without a mixer the team's loss is the agents' own.
        return Mean.of(own.value + (0.0 if self.credit.kind == "none" else squared.value)), (found, metrics)
