"""The DDPG family: MADDPG, MATD3, MASAC, FACMAC and their independent and single-agent forms.

Actors see what their agent sees; critics, used in training only, see what `critic.sees` says. Inside the family actions
are numbers [..., width]: one-hot for each discrete branch, or -1 to 1 between the bounds of each dimension of a box.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

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
from rookery.mechanisms.action_critic import ActionCritic, Twins, mixed, own_alternatives
from rookery.mechanisms.action_head import ActionHead, Entropy, Smoothing
from rookery.mechanisms.credit import Keys
from rookery.memory import replay
from rookery.memory.learning import Replayed, Store
from rookery.memory.replay import Draw, Replay
from rookery.memory.sequences import Memory, Sequence, no_action, previous_actions, since_reset
from rookery.nets.agent import Net, Params
from rookery.nets.inputs import own_view, view_size
from rookery.nets.mixers import Mixer, MixerParams
from rookery.nets.optimiser import Optimiser, step_groups
from rookery.nets.target import Target
from rookery.ops.gumbel import Gumbel
from rookery.ops.noise import Noise


class ActingCarry(eqx.Module):
    """What acting remembers."""

    memory: Memory
    noise: Float[Array, "env agent n"]
    """State of an Ornstein-Uhlenbeck process; of length 0 without one."""


class Critics(eqx.Module):
    twins: Twins
    mixer: MixerParams


class Learner(eqx.Module):
    """What a gradient step moves."""

    online: dict[str, Any]
    """Weights by optimiser group: "actor", "critic", and "alpha" (log of the entropy weights) if it is learned."""
    target: dict[str, Any]
    opt: dict[str, Any]
    updates: Int[Array, ""]
    priorities: Float[Array, "capacity"] | None
    """Of the stored sequences; None under uniform replay."""


class DDPGState(eqx.Module):
    learner: Learner
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
        self.actor.check()
        self.critic.check()
        if (self.actor.encoder.kind, self.critic.net.encoder.kind) != ("none", "none"):
            raise ConfigError("image encoders are for the Q, PPO and episodic families: use encoder.kind none.")
        self.replay.check(self.collect, recurrent=bool(self.actor.hidden or self.critic.net.hidden))
        if self.mixer.kind != "none" and not spec.cooperative:
            raise ConfigError(
                f"mixer '{self.mixer.kind}' needs a cooperative task; {spec.name} rewards its agents differently. Try "
                "maddpg or masac."
            )

    def shard(self) -> DDPG:
        """The algorithm of one of `collect.shards` shards."""
        return replace(self, collect=self.collect.shard(), replay=self.replay.shard(self.collect))

    def warmup(self) -> int:
        """Iterations until the first gradient step."""
        return -(-self.replay.least // self.collect.envs)

    def small(self) -> DDPG:
        """The same algorithm with little of everything."""
        return replace(
            self,
            actor=self.actor.small(),
            critic=self.critic.small(),
            mixer=self.mixer.small(),
            collect=replace(self.collect, envs=2, length=min(self.collect.length, 8)),
            replay=replace(self.replay, capacity=8, batch=4, start=4, steps_per_sequence=1.0),
            random_steps=min(self.random_steps, 8),
        )

    def carry_interval(self, spec: Spec) -> int:
        """One carry per sequence."""
        return 0

    @property
    def _head(self) -> ActionHead:
        return ActionHead(self.gumbel, self.noise, self.smoothing, self.entropy)

    def _id(self, spec: Spec) -> bool:
        return self.agent_id and spec.n_agents > 1

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> DDPGState:
        """Fresh weights and an empty store."""
        n_in = view_size(spec, agent_id=self._id(spec), last_action=self.last_action)
        width = self._head.parameters(spec.action)
        actor = self.actor.init(stream(key, "actor"), spec.n_agents, n_in, width, 0.01, spec.entities)
        mixer = self.mixer.init(stream(key, "mixer"), spec.n_agents, spec.state_size)
        target = {"actor": actor, "critic": Critics(self.critic.init(spec, key), mixer)}
        online = dict(target)
        if self.entropy.kind == "auto":
            online["alpha"] = jnp.full(spec.n_agents, jnp.log(self.entropy.alpha), jnp.float32)
        opt = {name: self._optimiser(name).init(weights) for name, weights in online.items()}
        replayed = Replayed(self.replay, self.collect, spec)
        learner = Learner(online, target, opt, jnp.int32(0), replayed.priorities())
        return DDPGState(learner, replayed.empty(self.actor.hidden))

    def _optimiser(self, group: str) -> Optimiser:
        return replace(self.optimiser, lr=self.entropy.lr) if group == "alpha" else self.optimiser

    def carry(self, spec: Spec, envs: int) -> ActingCarry:
        """Nothing remembered, nothing done."""
        nothing = no_action(jnp.zeros((envs, spec.n_agents, *spec.action.shape), spec.action.dtype))
        noise = self.noise.carry(envs, spec.n_agents, dim=spec.action.width if spec.action.kind == "box" else 0)
        return ActingCarry(Memory(self.actor.carry(envs, spec.n_agents), nothing), noise)

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
        rows = jax.tree.map(lambda x: x[None], step)
        previous = since_reset(step.first, carry.memory.action)
        hidden, params = self._read(spec, policy, carry.memory.hidden, rows, previous[None])
        if greedy:
            noise, action = carry.noise, self._head.greedy(spec, params[0], step.legal)
        else:
            noise, action = self._head.explore(spec, params[0], step, carry.noise, stream(key, "explore"))
            if self.random_steps:
                at_random = self._head.uniform(spec, step.legal, stream(key, "random"))
                action = jnp.where(clock.steps < self.random_steps, at_random, action)
        return ActingCarry(Memory(hidden, action), noise), action, {}

    def _read(self, spec: Spec, actor: Params, hidden: Array, step: Step, previous: Action) -> tuple[Array, Array]:
        """Actors' outputs over a sequence; `previous` is the action before each row."""
        x = own_view(spec, step, agent_id=self._id(spec), last_action=previous if self.last_action else None)
        return self.actor.unroll(actor, hidden, x, step.first, spec.entities)

    def _outputs(self, spec: Spec, actor: Params, batch: Sequence) -> Float[Array, "time b agent n"]:
        """Actors' outputs for all time + 1 rows of a batch."""
        return self._read(spec, actor, batch.memory.hidden, batch.step, previous_actions(batch))[1]

    # -- learning -----------------------------------------------------------------------------------------------
    def update(
        self, spec: Spec, state: DDPGState, rollout: Rollout, clock: Clock, key: Array
    ) -> tuple[DDPGState, Metrics]:
        """Store the rollout, then take the configured number of gradient steps."""
        replayed = Replayed(self.replay, self.collect, spec)

        def step(learner: Learner, batch: Sequence, draw: Draw, k: Array) -> tuple[Learner, Metrics]:
            # Counted by the clock, which is the same for all members, so that a delayed step stays a branch under vmap.
            number = clock.iteration * replayed.steps + k
            return self._gradient_step(spec, learner, batch, draw, clock, partial(stream, key, t=k), number)

        rollout = replace(rollout, carry=rollout.carry.memory)
        learner, store, metrics = replayed.update(state.learner, state.store, rollout, clock, key, step)
        if spec.action.kind != "box":
            metrics["gumbel_temperature"] = Mean.of(self.gumbel.temperature_at(clock.steps))
        return DDPGState(learner, store), metrics

    def _gradient_step(
        self, spec: Spec, now: Learner, batch: Sequence, draw: Draw, clock: Clock, key: Keys, number: Array
    ) -> tuple[Learner, Metrics]:
        """A critic step, an actor step where one is due, and the target networks after them."""

        def critic_loss(groups: dict[str, Any]) -> tuple[dict[str, Mean], tuple[Any, Metrics]]:
            loss, more = self._critic_loss(spec, groups["critic"], now, batch, draw, key("target"))
            return {"critic": loss}, more

        now, (sizes, metrics) = self._move(now, critic_loss, ("critic",), clock)
        groups = tuple(name for name in now.online if name != "critic")

        def actor_step(now: Learner) -> tuple[Learner, Packed]:
            def loss(groups: dict[str, Any]) -> tuple[dict[str, Mean], tuple[None, Metrics]]:
                found, more = self._actor_loss(spec, groups, now, batch, clock, key("actor"))
                return found, (None, more)

            after, (_, found) = self._move(now, loss, groups, clock)
            return after, Packed.of(found)

        def wait(now: Learner) -> tuple[Learner, Packed]:
            found = jax.eval_shape(actor_step, now)[1]
            return now, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found)

        now, found = (
            actor_step(now) if self.delay == 1 else jax.lax.cond(number % self.delay == 0, actor_step, wait, now)
        )
        updates = now.updates + 1
        target = self.target.refresh(now.target, {name: now.online[name] for name in now.target}, updates)
        priorities = replay.rate(now.priorities, draw, sizes)
        return Learner(now.online, target, now.opt, updates, priorities), {**metrics, **found.metrics()}

    def _move(
        self, now: Learner, loss: Any, groups: tuple[str, ...], clock: Clock
    ) -> tuple[Learner, tuple[Any, Metrics]]:
        """One optimiser step of these groups of weights; the auxiliary outputs of `loss`, with gradient norms."""
        grads, (more, metrics) = shards.mean_gradients(loss, {name: now.online[name] for name in groups})
        online, opt, norms = step_groups(self._optimiser, now.online, now.opt, grads, clock.progress)
        return replace(now, online=online, opt=opt), (more, {**metrics, **norms})

    def _critic_loss(
        self, spec: Spec, critics: Critics, now: Learner, batch: Sequence, draw: Draw, key: Array
    ) -> tuple[Mean, tuple[Array | None, Metrics]]:
        """Squared TD errors of all critics over real transitions (of living agents, unless they are mixed)."""
        before, state = jax.tree.map(lambda x: x[:-1], batch.step), global_state(spec, batch.step)
        taken = self._head.encode(spec, batch.action)[:, :, None]
        q_tm1 = mixed(self.mixer, critics.mixer, self.critic.values(spec, critics.twins, before, taken), state[:-1])
        target = jax.lax.stop_gradient(self._targets(spec, now, batch, taken, state, key))
        active = self._active(batch)
        valid = active if self.mixer.kind == "none" else batch.filled[..., None]
        valid = jnp.broadcast_to(valid, target.shape)
        error = jax.lax.stop_gradient(jnp.abs(q_tm1[0] - target))
        values = {"q_taken": jax.lax.stop_gradient(q_tm1[0]), "q_target": target, "td_error": error}
        loss = draw.weigh(jnp.sum((q_tm1 - target) ** 2, axis=0))
        metrics = Mean.of_each({"critic_loss": loss, **values}, valid)
        return metrics["critic_loss"], (draw.sizes(q_tm1[0], target, valid), metrics)

    def _targets(
        self, spec: Spec, now: Learner, batch: Sequence, taken: Array, state: Array, key: Array
    ) -> Float[Array, "time b team"]:
        """One-step targets: a time limit bootstraps, a termination (or an agent's own death) does not."""
        # The actors of SAC have no slow copy.
        actor = (now.target if self.entropy.kind == "none" else now.online)["actor"]
        params, target = self._outputs(spec, actor, batch), now.target["critic"]
        sampled = self.target_action == "sampled"
        action, entropy = self._head.target(spec, params, batch.step.legal, key, sampled=sampled)
        joint = action[:, :, None]
        q = self.critic.alternatives(spec, target.twins, batch.step, taken, joint)
        v_t = jnp.min(mixed(self.mixer, target.mixer, q[:, 1:], state[1:]), axis=0)
        r_t, discount_t = batch.step.reward[1:], batch.step.discount[1:]
        bonus = self.entropy.worth(now.online) * entropy[1:]
        if self.mixer.kind != "none":
            r_t, bonus = (jnp.mean(x, axis=-1, keepdims=True) for x in (r_t, bonus))
            discount_t = team_discount(batch.step)[1:, :, None]
        return r_t + self.gamma * discount_t * (v_t + bonus)

    def _actor_loss(
        self, spec: Spec, groups: dict[str, Any], now: Learner, batch: Sequence, clock: Clock, key: Array
    ) -> tuple[dict[str, Mean], Metrics]:
        """Minus the critics' values of the actors' own actions, less what entropy is worth, over living agents."""
        step, critics = batch.step, jax.lax.stop_gradient(now.online["critic"])
        params, active = self._outputs(spec, groups["actor"], batch), self._active(batch)
        action, entropy = self._head.differentiable(spec, params, step.legal, key, clock.steps)
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
        metrics = {"actor_value": value}
        total, count = -value.total, value.weight
        if self.logit_penalty:
            penalty = Mean.of(self._head.size(spec, params[:-1], step.legal[:-1]), active)
            # As many times as the values count: all are means over their own rows.
            total, metrics["logit_size"] = total + self.logit_penalty * penalty.value * count, penalty
        losses = {"actor": Mean(total, count)}
        if self.entropy.kind != "none":
            gain = Mean.of(jax.lax.stop_gradient(self.entropy.worth(now.online)) * entropy[:-1], active)
            losses["actor"] = Mean(total - gain.value * count, count)
            metrics["entropy"] = Mean.of(jax.lax.stop_gradient(entropy[:-1]), active)
            metrics["alpha"] = Mean.of(self.entropy.worth(now.online))
        if self.entropy.kind == "auto":
            excess = entropy - self._head.wanted(spec, step.legal)
            losses["alpha"] = Mean.of(groups["alpha"] * jax.lax.stop_gradient(excess)[:-1], active)
        return losses, metrics

    def _active(self, batch: Sequence) -> Bool[Array, "time b agent"]:
        """Real transitions of living agents."""
        return batch.filled[..., None] & batch.step.alive[:-1]
