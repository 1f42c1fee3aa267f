"""The DDPG family: MADDPG, MATD3, MASAC, FACMAC and their independent and single-agent forms.

Actors see what their agent sees; critics, used in training only, see what `critic.sees` says. Inside the family actions
are numbers [..., width]: one-hot for each discrete branch, or -1 to 1 between the bounds of each dimension of a box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
    Packed,
    Rollout,
    Spec,
    Step,
    global_state,
    team_discount,
)
from rookery.mechanisms.action_critic import ActionCritic, Critics, mixed, own_alternatives
from rookery.mechanisms.action_head import ActionHead, Entropy, Smoothing
from rookery.memory import replay
from rookery.memory.learning import Learner, Minibatch, Replayed, Store
from rookery.memory.reader import Reader
from rookery.memory.replay import Replay
from rookery.memory.sequences import Memory
from rookery.nets.agent import Net, Params
from rookery.nets.mixers import Mixer
from rookery.nets.optimiser import Groups, Optimiser, step_groups
from rookery.nets.target import Target
from rookery.ops.gumbel import Gumbel
from rookery.ops.loops import when
from rookery.ops.noise import Noise

Losses = tuple[dict[str, Mean], tuple[Float[Array, "batch"] | None, Metrics]]
"""Losses by group of weights; the mean |TD error| of each sequence where priorities are made of it; metrics."""


class ActingCarry(eqx.Module):
    """What acting remembers."""

    memory: Memory
    noise: Float[Array, "env agent n"]
    """State of an Ornstein-Uhlenbeck process; of length 0 without one."""


class DDPGState(eqx.Module):
    learner: Learner[Groups]
    """Groups: "actor", "critic", and "alpha" (log of the entropy weights) if it is learned."""
    store: Store


@family(ALGORITHMS)
@dataclass(frozen=True)
class DDPG:
    """Actors that follow the gradient of critics of their actions, from replayed experience."""

    family: Literal["ddpg"] = "ddpg"
    actor: Net = field(default_factory=Net)
    critic: ActionCritic = field(default_factory=ActionCritic)
    mixer: Mixer = field(default_factory=Mixer)
    """Mixes the critics of all agents into the team's value; actors then follow its gradient together (FACMAC)."""
    collect: Collect = field(default_factory=lambda: Collect(envs=32, length=32))
    replay: Replay = field(default_factory=lambda: Replay(batch=1024, unit="transition", steps_per_sequence=0.25))
    target: Target = field(default_factory=lambda: Target(every=1, tau=0.01))
    optimiser: Optimiser = field(default_factory=Optimiser)
    """Used for actors and, with a state of its own, for critics."""
    gumbel: Gumbel = field(default_factory=Gumbel)
    noise: Noise = field(default_factory=Noise)
    smoothing: Smoothing = field(default_factory=Smoothing)
    entropy: Entropy = field(default_factory=Entropy)
    gamma: Fraction = 0.95
    """Discount."""
    delay: Count = 1
    """Critic steps for every actor step (TD3: 2)."""
    target_action: Literal["sampled", "argmax"] = "sampled"
    """Which discrete action of the target actors the targets are computed with."""
    others: Literal["buffer", "current"] = "buffer"
    """The other agents' actions in an actor's loss: those that were taken, or those of the current actors."""
    logit_penalty: NonNegative = 1e-3
    """Weight of the mean square of the actors' outputs: keeps distributions from collapsing."""
    random_steps: Whole = 0
    """Environment steps of uniformly random actions before the actors act."""
    agent_id: bool = True
    """Append the agent's index to what its actor sees (if there are several agents)."""
    last_action: bool = False
    """Append the agent's last action to what its actor sees."""

    # -- requirements -------------------------------------------------------------------------------------------
    def check(self, spec: Spec) -> None:
        """Refuse what this family cannot train."""
        self._head.check(spec)
        self.actor.check(teams=True)
        self.critic.check()
        if (self.actor.encoder.kind, self.critic.net.encoder.kind) != ("none", "none"):
            raise ConfigError("image encoders are for the Q, PPO and episodic families: use encoder.kind none.")
        self.replay.check(self.collect, recurrent=bool(self.actor.hidden or self.critic.net.hidden))
        self.mixer.check(spec, instead="maddpg or masac")

    def shard(self) -> DDPG:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard(), replay=self.replay.shard(self.collect))

    def warmup(self) -> int:
        """Iterations until the first gradient step."""
        return self.replay.warmup(self.collect)

    def small(self) -> DDPG:
        """The same algorithm with little of everything."""
        return replace(
            self,
            actor=self.actor.small(),
            critic=self.critic.small(),
            mixer=self.mixer.small(),
            collect=replace(self.collect, envs=2, length=min(self.collect.length, 8)),
            replay=self.replay.small(),
            random_steps=min(self.random_steps, 8),
        )

    def carry_interval(self, spec: Spec) -> int:
        """One carry per sequence."""
        return 0

    @property
    def _reader(self) -> Reader:
        return Reader(self.actor, self.agent_id, self.last_action)

    @property
    def _head(self) -> ActionHead:
        return ActionHead(self.gumbel, self.noise, self.smoothing, self.entropy)

    def _replayed(self, spec: Spec) -> Replayed:
        return Replayed(self.replay, self.collect, spec)

    def _optimiser(self, group: str) -> Optimiser:
        return replace(self.optimiser, lr=self.entropy.lr) if group == "alpha" else self.optimiser

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> DDPGState:
        """Fresh weights and an empty store."""
        n_in, n_out = self._reader.inputs(spec), self._head.parameters(spec.action)
        actor = self.actor.init(stream(key, "actor"), self.actor.sets(spec), n_in, n_out, 0.01, spec.entities)
        mixer = self.mixer.init(stream(key, "mixer"), spec.n_agents, spec.state_size)
        target = {"actor": actor, "critic": Critics(self.critic.init(spec, key), mixer)}
        online = dict(target)
        if self.entropy.kind == "auto":
            online["alpha"] = jnp.full(spec.n_agents, jnp.log(self.entropy.alpha), jnp.float32)
        opt = {name: self._optimiser(name).init(weights) for name, weights in online.items()}
        replayed = self._replayed(spec)
        learner = Learner(online, target, opt, jnp.int32(0), replayed.priorities())
        return DDPGState(learner, replayed.empty(self.actor.hidden))

    def carry(self, spec: Spec, envs: int) -> ActingCarry:
        """Nothing remembered, nothing done."""
        noise = self.noise.carry(envs, spec.n_agents, dim=spec.action.width if spec.action.kind == "box" else 0)
        return ActingCarry(self._reader.carry(spec, envs), noise)

    def policy(self, state: DDPGState) -> Params:
        """The actors."""
        return state.learner.online["actor"]

    def snapshot(self, state: DDPGState) -> Params:
        """The actors."""
        return self.policy(state)

    def stores(self, state: DDPGState) -> Store:
        """The replay store."""
        return state.store

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: Params, carry: ActingCarry, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[ActingCarry, Action, Extra]:
        """Exploring (or greedy) actions."""
        hidden, params = self._reader.row(spec, policy, carry.memory, step)
        if greedy:
            noise, action = carry.noise, self._head.greedy(spec, params, step.legal)
        else:
            noise, action = self._head.explore(spec, params, step, carry.noise, stream(key, "explore"))
            if self.random_steps:
                at_random = self._head.uniform(spec, step.legal, stream(key, "random"))
                action = jnp.where(clock.steps < self.random_steps, at_random, action)
        return ActingCarry(Memory(hidden, action), noise), action, {}

    # -- learning -----------------------------------------------------------------------------------------------
    def update(
        self, spec: Spec, state: DDPGState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[DDPGState, Metrics]:
        """Store the rollout, then take the configured number of gradient steps."""
        replayed, step = self._replayed(spec), partial(self._gradient_step, spec)
        rollout = replace(rollout, carry=rollout.carry.memory)
        learner, store, metrics = replayed.update(state.learner, state.store, rollout, clock, key, step)
        if spec.action.kind != "box":
            metrics["gumbel_temperature"] = Mean.of(self.gumbel.temperature_at(clock.steps))
        return DDPGState(learner, store), metrics

    def _gradient_step(self, spec: Spec, now: Learner[Groups], sees: Minibatch) -> tuple[Learner[Groups], Metrics]:
        """A critic step, an actor step where one is due, and the target networks after them."""
        progress, actors = sees.clock.progress, tuple(name for name in now.online if name != "critic")
        now, (sizes, metrics) = self._move(now, partial(self._critic_loss, spec, now, sees), ("critic",), progress)

        def actor_step(now: Learner[Groups]) -> tuple[Learner[Groups], Packed]:
            after, (_, found) = self._move(now, partial(self._actor_loss, spec, now, sees), actors, progress)
            return after, Packed.of(found)

        # Counted by the clock, which is the same for all members, so that a delayed step stays a branch under vmap; and
        # both alike, so that targets follow the step that moved the actors (TD3).
        count = sees.clock.iteration * self._replayed(spec).steps + sees.step + 1
        now, found = actor_step(now) if self.delay == 1 else when(count % self.delay == 0, actor_step, now)
        target = self.target.refresh(now.target, {name: now.online[name] for name in now.target}, count)
        priorities = replay.rate(now.priorities, sees.draw, sizes)
        return Learner(now.online, target, now.opt, now.updates + 1, priorities), {**metrics, **found.metrics()}

    def _move(
        self, now: Learner[Groups], loss: Callable[[Groups], Losses], groups: tuple[str, ...], progress: Array
    ) -> tuple[Learner[Groups], tuple[Array | None, Metrics]]:
        """One optimiser step of these groups of weights; the auxiliary outputs of `loss`, with gradient norms."""
        grads, (sizes, metrics) = shards.mean_gradients(loss, {name: now.online[name] for name in groups})
        online, opt, norms = step_groups(self._optimiser, now.online, now.opt, grads, progress)
        return replace(now, online=online, opt=opt), (sizes, {**metrics, **norms})

    def _critic_loss(self, spec: Spec, now: Learner[Groups], sees: Minibatch, groups: Groups) -> Losses:
        """Squared TD errors of all critics over real transitions (of living agents, unless they are mixed)."""
        batch, draw, critics = sees.batch, sees.draw, groups["critic"]
        before, state = jax.tree.map(lambda x: x[:-1], batch.step), global_state(spec, batch.step)
        taken = self._head.encode(spec, batch.action)[:, :, None]
        q_tm1 = mixed(self.mixer, critics.mixer, self.critic.values(spec, critics.twins, before, taken), state[:-1])
        target = jax.lax.stop_gradient(self._targets(spec, now, sees, taken, state))
        valid = batch.active if self.mixer.kind == "none" else batch.filled[..., None]
        valid = jnp.broadcast_to(valid, target.shape)
        error = jax.lax.stop_gradient(jnp.abs(q_tm1[0] - target))
        values = {"q_taken": jax.lax.stop_gradient(q_tm1[0]), "q_target": target, "td_error": error}
        loss = draw.weigh(jnp.sum((q_tm1 - target) ** 2, axis=0))
        metrics = Mean.of_each({"critic_loss": loss, **values}, valid)
        return {"critic": metrics["critic_loss"]}, (draw.sizes(q_tm1[0], target, valid), metrics)

    def _targets(
        self, spec: Spec, now: Learner[Groups], sees: Minibatch, taken: Array, state: Array
    ) -> Float[Array, "time b team"]:
        """One-step targets: a time limit bootstraps, a termination (or an agent's own death) does not."""
        step, target = sees.batch.step, now.target["critic"]
        # The actors of SAC have no slow copy.
        actor = (now.target if self.entropy.kind == "none" else now.online)["actor"]
        params, sampled = self._reader.sequences(spec, actor, sees.batch), self.target_action == "sampled"
        action, entropy = self._head.target(spec, params, step.legal, sees.key("target"), sampled=sampled)
        q = self.critic.alternatives(spec, target.twins, step, taken, action[:, :, None])
        v_t = jnp.min(mixed(self.mixer, target.mixer, q[:, 1:], state[1:]), axis=0)
        r_t, discount_t = step.reward[1:], step.discount[1:]
        bonus = self.entropy.worth(now.online) * entropy[1:]
        if self.mixer.kind != "none":
            bonus = jnp.where(step.alive[1:], bonus, 0.0)  # the entropy of a dead agent is worth nothing to its team
            r_t, bonus = (jnp.mean(x, axis=-1, keepdims=True) for x in (r_t, bonus))
            discount_t = team_discount(step)[1:, :, None]
        return r_t + self.gamma * discount_t * (v_t + bonus)

    def _actor_loss(self, spec: Spec, now: Learner[Groups], sees: Minibatch, groups: Groups) -> Losses:
        """Minus the critics' values of the actors' own actions, less what entropy is worth, over living agents."""
        batch, step, active = sees.batch, sees.batch.step, sees.batch.active
        critics = jax.lax.stop_gradient(now.online["critic"])
        params = self._reader.sequences(spec, groups["actor"], batch)
        action, entropy = self._head.differentiable(spec, params, step.legal, sees.key("actor"), sees.clock.steps)
        # A dead agent's action is an input of the others' critics at most.
        action = jnp.where(step.alive[..., None], action, jax.lax.stop_gradient(action))
        taken = self._head.encode(spec, batch.action)
        taken = jnp.concatenate([taken, jnp.zeros_like(taken[:1])])  # nothing is done at the last row
        others = taken if self.others == "buffer" and self.mixer.kind == "none" else jax.lax.stop_gradient(action)
        joint = own_alternatives(action, others)
        q = self.critic.alternatives(spec, critics.twins, step, taken[:-1, :, None], joint)[:, :-1]
        q = mixed(self.mixer, critics.mixer, q, global_state(spec, step)[:-1])
        q = q[0] if self.entropy.kind == "none" else jnp.min(q, axis=0)
        valid = active if self.mixer.kind == "none" else jnp.broadcast_to(batch.filled[..., None], q.shape)
        value = Mean.of(q, valid)
        loss, metrics = Mean(-value.total, value.weight), {"actor_value": value}
        if self.logit_penalty:
            metrics["logit_size"] = Mean.of(self._head.size(spec, params[:-1], step.legal[:-1]), active)
            loss = loss.plus(metrics["logit_size"], self.logit_penalty)
        if self.entropy.kind != "none":
            gain, found = self.entropy.gain(now.online, entropy[:-1], active)
            loss, metrics = loss.plus(gain, -1.0), metrics | found
        losses = {"actor": loss}
        if self.entropy.kind == "auto":
            excess = entropy - self._head.wanted(spec, step.legal)
            losses["alpha"] = Mean.of(groups["alpha"] * jax.lax.stop_gradient(excess)[:-1], active)
        return losses, (None, metrics)
