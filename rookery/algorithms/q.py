"""The Q family: DQN, IQL, VDN, QMIX. A single agent is an agent axis of 1; what differs is the mixer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Fraction
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
    team_discount,
)
from rookery.mechanisms import share
from rookery.mechanisms.credit import Credit, Keys
from rookery.mechanisms.remember import Remember, Remembered
from rookery.mechanisms.share import Borrowed, Recent, Share
from rookery.memory import replay
from rookery.memory.learning import Replayed
from rookery.memory.replay import Draw, Replay
from rookery.memory.sequences import Memory, Sequence, by_partner, example, previous_actions, since_reset
from rookery.nets.agent import Net, Params
from rookery.nets.inputs import own_view, view_size
from rookery.nets.mixers import Mixer, MixerParams
from rookery.nets.optimiser import Optimiser, Schedule, norm
from rookery.nets.target import Target
from rookery.nets.transformer import Heard
from rookery.ops import explore, returns, td


class Weights(eqx.Module):
    agent: Params
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
    store: Sequence
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
    remember: Remember = field(default_factory=Remember)
    epsilon: Schedule = field(default_factory=lambda: Schedule(1.0, 0.05))
    """Probability of a random action while collecting."""
    gamma: Fraction = 0.99
    """Discount."""
    double: bool = True
    """Choose the next action by the online values, rate it by the target's."""
    td_lambda: Fraction = 0.0
    """Mix of n-step targets; 0 is one-step."""
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
        self.credit.check(self.mixer.kind)
        individual = self.credit.kind != "none" or self.mixer.kind == "none"
        same = self.net.weights == "shared" and not self.agent_id
        self.share.check(spec, individual=individual, same=same, tokens=self.net.kind == "transformer")
        alone = self.mixer.kind == "none" and self.credit.kind == "none" and self.share.select == "none"
        self.remember.check(spec, self.collect, alone=alone)
        if self.collect.shards > 1 and (self.credit.kind != "none" or self.share.select != "none"):
            raise ConfigError(
                "algo.credit and algo.share choose among all transitions of a batch, which several shards do not see; "
                "use --algo.collect.shards 1."
            )

    def shard(self) -> Q:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard(), replay=self.replay.shard(self.collect))

    def warmup(self) -> int:
        """Iterations until the store is full."""
        return self.replay.capacity // self.collect.envs

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
        shapes = (spec.entities, spec.obs_shape)
        agent = self.net.init(stream(key, "agent"), spec.n_agents, n_in, spec.action.width, 0.1, *shapes)
        mixer = self.mixer.init(stream(key, "mixer"), spec.n_agents, spec.state_size)
        online = Weights(agent, mixer)
        item = jax.eval_shape(lambda: example(spec, self.collect.transitions(spec), self.net.hidden))
        store = replay.empty(item, self.replay.capacity)
        opt = self._optimiser_state(online)
        recent = self.share.init(spec, stream(key, "share")) if self.share.select != "none" else None
        remembered = self.remember.init(spec, self.collect.envs, stream(key, "remember"))
        return QState(Learner(online, online, opt, jnp.int32(0), self.replay.priorities(), recent), store, remembered)

    def _optimiser_state(self, online: Weights) -> Any:
        if self.credit.kind == "none":
            return self.optimiser.init(online)
        return self.optimiser.init(online.agent), self.credit.mixer_optimiser.init(online.mixer)

    def _id(self, spec: Spec) -> bool:
        return self.agent_id and spec.n_agents > 1

    def carry(self, spec: Spec, envs: int) -> Memory:
        """Nothing remembered, nothing done."""
        return Memory(self.net.carry(envs, spec.n_agents), jnp.full((envs, spec.n_agents), -1, jnp.int32))

    def policy(self, state: QState) -> Params:
        """The agents' network."""
        return state.learner.online.agent

    def snapshot(self, state: QState) -> Params:
        """The agents' network."""
        return self.policy(state)

    def stores(self, state: QState) -> Any:
        """The replay store, and the memory if there is one."""
        return state.store if state.remembered is None else (state.store, state.remembered.memory)

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: Params, carry: Memory, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Memory, Action, Extra]:
        """Epsilon-greedy (or greedy) actions."""
        rows = jax.tree.map(lambda x: x[None], step)
        previous = since_reset(step.first, carry.action)
        hidden, q = self._values(spec, policy, carry.hidden, rows, previous[None])
        if greedy:
            action = jnp.argmax(td.only_legal(q[0], step.legal), axis=-1).astype(jnp.int32)
        else:
            epsilon = self.epsilon.at(clock.steps, clock.budget)
            action = explore.epsilon_greedy(key, q[0], step.legal, epsilon)
        return Memory(hidden, action), action, {}

    def _values(
        self, spec: Spec, params: Params, hidden: Array, step: Step, previous: Int[Array, "time b agent"]
    ) -> tuple[Array, Float[Array, "time b agent action"]]:
        """Values of all actions over a sequence; `previous` is the action before each row, -1 at its start."""
        x = self._view(spec, step, previous)
        return self.net.unroll(params, hidden, x, step.first, spec.entities)

    def _view(self, spec: Spec, step: Step, previous: Array) -> Array:
        return own_view(spec, step, agent_id=self._id(spec), last_action=previous if self.last_action else None)

    # -- learning -----------------------------------------------------------------------------------------------
    def update(self, spec: Spec, state: QState, rollout: Rollout, clock: Clock, key: Array) -> tuple[QState, Metrics]:
        """Store the rollout, then take the configured number of gradient steps."""
        remembered, written = self.remember.write(spec, state.remembered, rollout, self.gamma, clock)

        def step(learner: Learner, batch: Sequence, draw: Draw, k: Array) -> tuple[Learner, Metrics]:
            return self._gradient_step(spec, learner, batch, draw, clock, partial(stream, key, t=k), remembered)

        replayed = Replayed(self.replay, self.collect)
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
        remembered: Remembered | None,
    ) -> tuple[Learner, Metrics]:
        def loss(online: Weights) -> tuple[Mean, tuple[Found, Metrics]]:
            return self._loss(spec, online, now, batch, draw, clock, key, remembered)

        grads, (found, metrics) = shards.mean_gradient(loss, now.online)
        online, opt = self._move(now, grads, clock)
        updates = now.updates + 1
        target = self.target.refresh(now.target, online, updates)
        metrics["grad_norm"] = Mean.of(norm(grads))
        if found.sizes is not None:
            metrics["priority_spread"] = Mean.of(jnp.max(found.sizes) / jnp.maximum(jnp.mean(found.sizes), 1e-9))
        recent = found.recent
        if recent is not None and found.borrowed is not None:
            q_j, _ = self._read(spec, online, target, found.borrowed.sequence)
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

    def _read(self, spec: Spec, online: Weights, target: Weights, batch: Sequence) -> tuple[Array, Array]:
        """Agents' values of the actions taken [time, b, agent], and of the rows that they led to."""
        previous = previous_actions(batch)
        _, q = self._values(spec, online.agent, batch.memory.hidden, batch.step, previous)
        _, q_target = self._values(spec, target.agent, batch.memory.hidden, batch.step, previous)
        v_t = td.next_values(q_target, q, batch.step.legal, double=self.double)[1:]
        return td.take(q[:-1], batch.action), v_t

    def _hear(self, spec: Spec, params: Params, batch: Sequence, senders: Array, present: Array) -> Array:
        """Agents' values of the actions taken, with a look at what these senders make of the same moments."""
        x, hidden, first = self._view(spec, batch.step, previous_actions(batch)), batch.memory.hidden, batch.step.first
        tokens = jax.lax.stop_gradient(self.net.tokens(params, hidden, x, first, spec.entities))
        present = jnp.concatenate([present, jnp.zeros_like(present[:1])])  # nothing is done at the last row
        heard = Heard(*(jnp.swapaxes(y, 2, 3) for y in (by_partner(tokens, senders), present)))
        _, q = self.net.unroll(params, hidden, x, first, spec.entities, heard)
        return td.take(q[:-1], batch.action)

    def _loss(
        self,
        spec: Spec,
        online: Weights,
        now: Learner,
        batch: Sequence,
        draw: Draw,
        clock: Clock,
        key: Keys,
        remembered: Remembered | None,
    ) -> tuple[Mean, tuple[Found, Metrics]]:
        """Mean squared TD error over real transitions."""
        q_i, v_i = self._read(spec, online, now.target, batch)
        state = global_state(spec, batch.step)
        mix = lambda q_i: self.mixer(online.mixer, q_i, state[:-1])  # noqa: E731
        q_tm1 = mix(q_i if self.credit.kind == "none" else jax.lax.stop_gradient(q_i))
        targets = jax.lax.stop_gradient(self._targets(batch.step, self.mixer(now.target.mixer, v_i, state[1:])))
        # Dead rows too: with the team's discount their values are bootstrapped from, so they must be trained.
        valid = jnp.broadcast_to(batch.filled[..., None], q_tm1.shape)
        q_now = jax.lax.stop_gradient(q_tm1)
        values = {"q_taken": q_now, "q_target": targets, "td_error": jnp.abs(q_now - targets)}
        metrics = Mean.of_each({"loss": draw.weigh((q_tm1 - targets) ** 2), **values}, valid)
        squared = metrics["loss"]
        found = Found(draw.sizes(q_tm1, targets, valid), None, None)
        if remembered is not None:
            squares, about = self.remember.penalty(spec, remembered, batch.step, batch.action, q_tm1, valid)
            squared = Mean(squared.total + Mean.of(draw.weigh(squares), valid).total, squared.weight)
            metrics |= about
        if self.credit.kind == "none" and self.share.select == "none":
            return squared, (found, metrics)
        mine, squares, counts, about = self.credit.learn(mix, q_i, v_i, q_tm1 - targets, batch, self.gamma, clock, key)
        own = Mean.of(draw.weigh(squares), counts)
        metrics |= {**about, "own_loss": own}
        if now.recent is not None:
            read, hear = partial(self._read, spec, online, now.target), partial(self._hear, spec, online.agent, batch)
            # Rewards that `credit` assigns are those of one-step targets.
            aim = partial(_backup, lam=self.td_lambda if self.credit.kind == "none" else 0.0)
            squares, accepted, recent, borrowed, about = self.share.learn(
                spec, now.recent, batch, mine, read, hear, aim, key, fresh=self.net.weights == "per_agent"
            )
            taken = Mean.of(draw.weigh(squares), accepted)
            metrics["share_loss"] = Mean.of(jnp.divide(taken.total, jnp.maximum(own.total + taken.total, 1e-12)))
            own = Mean(own.total + taken.total, own.weight + taken.weight)
            found, metrics = Found(found.sizes, recent, borrowed and share.probe(borrowed)), metrics | about
        # Without a mixer the team's loss is the agents' own.
        return Mean.of(own.value + (0.0 if self.credit.kind == "none" else squared.value)), (found, metrics)

    def _targets(self, step: Step, v_t: Float[Array, "time b team"]) -> Float[Array, "time b team"]:
        """One-step or TD(lambda) targets of each team."""
        r_t = step.reward[1:]
        if self.mixer.kind != "none":
            r_t = (jnp.mean if self.team_reward == "mean" else jnp.sum)(r_t, axis=-1, keepdims=True)
        discount_t = jnp.broadcast_to(self.gamma * team_discount(step)[1:, :, None], v_t.shape)
        return _backup(r_t, discount_t, v_t, step.last, self.td_lambda)


def _backup(r_t: Array, discount_t: Array, v_t: Array, last: Array, lam: float) -> Array:
    """One-step or TD(lambda) targets."""
    if lam == 0.0:
        return r_t + discount_t * v_t
    lambda_t = returns.continues(last, lam)[..., None]
    return returns.lambda_returns(r_t, discount_t, v_t, jnp.broadcast_to(lambda_t, v_t.shape))
