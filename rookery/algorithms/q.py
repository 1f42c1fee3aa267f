"""The Q family: DQN, IQL, VDN, QMIX. A single agent is an agent axis of 1; what differs is the mixer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from rookery.algorithms.inputs import own_view, view_size
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import Action, Clock, Collect, Mean, Metrics, Rollout, Spec, Step, global_state, team_discount
from rookery.memory import replay
from rookery.nets.agent import Net, Params
from rookery.nets.mixers import Mixer, MixerParams
from rookery.nets.optimiser import Optimiser, Schedule
from rookery.ops import explore, returns, td


@dataclass(frozen=True)
class Replay:
    """The store of sequences; a sequence is what one environment collects in one iteration."""

    capacity: int = 4096
    """Sequences kept."""
    batch: int = 32
    """Sequences in one gradient step."""
    start: int = 32
    """Sequences collected before the first gradient step."""
    steps_per_sequence: float = 1.0
    """Gradient steps for every sequence collected (PyMARL: 1; "8 environments, one update" is 0.125)."""


@dataclass(frozen=True)
class Target:
    """The slow copy of the weights that targets are computed from."""

    every: int = 200
    """Gradient steps between two refreshes."""
    tau: float = 1.0
    """Share of the way to the online weights that a refresh goes; 1 copies them."""


class Weights(eqx.Module):
    agent: Params
    mixer: MixerParams


class Memory(eqx.Module):
    """The agents' hidden state and last action."""

    hidden: Float[Array, "*b agent h"]
    action: Int[Array, "*b agent"]


class Sequence(eqx.Module):
    """One environment's rollout, as stored: leaves [time, ...]; batched ones are time-major [time, batch, ...]."""

    step: Step  # [time + 1, ...]
    action: Action
    filled: Bool[Array, "time *b"]
    memory: Memory  # no time axis


class Learner(eqx.Module):
    """What a gradient step moves."""

    online: Weights
    target: Weights
    opt: optax.OptState
    updates: Int[Array, ""]


class QState(eqx.Module):
    learner: Learner
    store: Sequence


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
    epsilon: Schedule = field(default_factory=lambda: Schedule(1.0, 0.05))
    """Probability of a random action while collecting."""
    gamma: float = 0.99
    """Discount."""
    double: bool = True
    """Choose the next action by the online values, rate it by the target's."""
    td_lambda: float = 0.0
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
        if self.replay.capacity % self.collect.envs:
            raise ConfigError(
                f"algo.replay.capacity ({self.replay.capacity}) must be a multiple of algo.collect.envs "
                f"({self.collect.envs})."
            )
        if max(self.replay.batch, self.replay.start) > self.replay.capacity:
            raise ConfigError(
                f"algo.replay.batch ({self.replay.batch}) and algo.replay.start ({self.replay.start}) must fit into "
                f"algo.replay.capacity ({self.replay.capacity})."
            )
        per_iteration = self.replay.steps_per_sequence * self.collect.envs
        if per_iteration < 1 or abs(per_iteration - round(per_iteration)) > 1e-6:
            raise ConfigError(
                f"algo.replay.steps_per_sequence ({self.replay.steps_per_sequence}) times algo.collect.envs "
                f"({self.collect.envs}) must be a whole number of gradient steps, at least 1; it is {per_iteration:g}."
            )

    def segment(self, spec: Spec) -> int:
        """One carry per sequence."""
        return 0

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> QState:
        """Fresh weights and an empty store."""
        n_in = view_size(spec, agent_id=self._id(spec), last_action=self.last_action)
        agent = self.net.init(stream(key, "agent"), spec.n_agents, n_in, spec.action.width, gain=0.1)
        mixer = self.mixer.init(stream(key, "mixer"), spec.n_agents, spec.state_size)
        online = Weights(agent, mixer)
        store = replay.empty(jax.eval_shape(lambda: self._example(spec)), self.replay.capacity)
        return QState(Learner(online, online, self.optimiser.init(online), jnp.int32(0)), store)

    def _id(self, spec: Spec) -> bool:
        return self.agent_id and spec.n_agents > 1

    def _example(self, spec: Spec) -> Sequence:
        """One stored sequence, all zeros: for its shapes and dtypes."""
        t, n = self.collect.transitions(spec), spec.n_agents

        step = Step(
            obs=jnp.zeros((t + 1, n, *spec.obs_shape), spec.obs_dtype),
            state=jnp.zeros((t + 1, *(spec.state_shape or (0,))), "float32"),
            legal=jnp.zeros((t + 1, n, spec.action.width), "bool"),
            alive=jnp.zeros((t + 1, n), "bool"),
            reward=jnp.zeros((t + 1, n), "float32"),
            discount=jnp.zeros((t + 1, n), "float32"),
            first=jnp.zeros((t + 1,), "bool"),
            last=jnp.zeros((t + 1,), "bool"),
            success=jnp.zeros((t + 1,), "float32"),
        )
        memory = Memory(jnp.zeros((n, self.net.hidden), "float32"), jnp.zeros((n,), "int32"))
        return Sequence(step, jnp.zeros((t, n), "int32"), jnp.zeros((t,), "bool"), memory)

    def carry(self, spec: Spec, envs: int) -> Memory:
        """Nothing remembered, nothing done."""
        return Memory(self.net.carry(envs, spec.n_agents), jnp.full((envs, spec.n_agents), -1, jnp.int32))

    def policy(self, state: QState) -> Params:
        """The agents' network."""
        return state.learner.online.agent

    # -- acting -------------------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: Params, carry: Memory, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Memory, Action, tuple[()]]:
        """Epsilon-greedy (or greedy) actions."""
        rows = jax.tree.map(lambda x: x[None], step)
        previous = jnp.where(step.first[:, None], -1, carry.action)
        hidden, q = self._values(spec, policy, carry.hidden, rows, previous[None])
        if greedy:
            action = jnp.argmax(td.only_legal(q[0], step.legal), axis=-1).astype(jnp.int32)
        else:
            epsilon = self.epsilon.at(clock.steps, clock.budget)
            action = explore.epsilon_greedy(key, q[0], step.legal, epsilon)
        return Memory(hidden, action), action, ()

    def _values(
        self, spec: Spec, params: Params, hidden: Array, step: Step, previous: Int[Array, "time b agent"]
    ) -> tuple[Array, Float[Array, "time b agent action"]]:
        """Values of all actions over a sequence; `previous` is the action before each row, -1 at its start."""
        x = own_view(spec, step, agent_id=self._id(spec), last_action=previous if self.last_action else None)
        return self.net.unroll(params, hidden, x, step.first)

    # -- learning -----------------------------------------------------------------------------------------------
    def update(self, spec: Spec, state: QState, rollout: Rollout, clock: Clock, key: Array) -> tuple[QState, Metrics]:
        """Store the rollout, then take the configured number of gradient steps."""
        envs, capacity = self.collect.envs, self.replay.capacity
        store = replay.add(state.store, _by_env(rollout), replay.slot(clock.iteration, envs, capacity))
        stored = replay.filled(clock.iteration, envs, capacity)
        steps = round(self.replay.steps_per_sequence * envs)

        def learn(learner: Learner) -> tuple[Learner, Metrics]:
            def one(learner: Learner, k: Array) -> tuple[Learner, Metrics]:
                batch = _time_major(replay.sample(store, stream(key, "replay", k), self.replay.batch, stored))
                return self._gradient_step(spec, learner, batch, clock)

            learner, metrics = jax.lax.scan(one, learner, jnp.arange(steps))
            return learner, jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)

        def wait(learner: Learner) -> tuple[Learner, Metrics]:
            shapes = jax.eval_shape(learn, learner)[1]
            return learner, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        # The condition is the same for all members, so it stays a branch under vmap; the store stays out of it,
        # because a branch copies what it returns.
        ready = stored >= max(self.replay.batch, self.replay.start)
        learner, metrics = jax.lax.cond(ready, learn, wait, state.learner)
        metrics["epsilon"] = Mean.of(self.epsilon.at(clock.steps, clock.budget))
        metrics["gradient_steps"] = Mean.of(jnp.where(ready, float(steps), 0.0))
        return QState(learner, store), metrics

    def _gradient_step(self, spec: Spec, now: Learner, batch: Sequence, clock: Clock) -> tuple[Learner, Metrics]:
        grads, metrics = jax.grad(self._loss, argnums=1, has_aux=True)(spec, now.online, now.target, batch)
        online, opt = self.optimiser.step(now.online, grads, now.opt, clock.progress)
        updates = now.updates + 1
        weight = jnp.where(updates % self.target.every == 0, self.target.tau, 0.0)
        target = jax.tree.map(lambda new, old: weight * new + (1.0 - weight) * old, online, now.target)
        metrics["grad_norm"] = Mean.of(optax.global_norm(grads))
        return Learner(online, target, opt, updates), metrics

    def _loss(self, spec: Spec, online: Weights, target: Weights, batch: Sequence) -> tuple[Array, Metrics]:
        """Mean squared TD error over real transitions."""
        previous = _previous_actions(batch)
        _, q = self._values(spec, online.agent, batch.memory.hidden, batch.step, previous)
        _, q_target = self._values(spec, target.agent, batch.memory.hidden, batch.step, previous)
        state = global_state(spec, batch.step)
        q_tm1 = self.mixer(online.mixer, td.take(q[:-1], batch.action), state[:-1])
        v_t = td.next_values(q_target, q, batch.step.legal, double=self.double)[1:]
        goal = jax.lax.stop_gradient(self._targets(batch.step, self.mixer(target.mixer, v_t, state[1:])))
        valid = jnp.broadcast_to(batch.filled[..., None], q_tm1.shape)
        if self.mixer.kind == "none":
            valid = valid & batch.step.alive[:-1]
        squared = Mean.of((q_tm1 - goal) ** 2, valid)
        return squared.value, {
            "loss": squared,
            "q_taken": Mean.of(q_tm1, valid),
            "q_target": Mean.of(goal, valid),
            "td_error": Mean.of(jnp.abs(q_tm1 - goal), valid),
        }

    def _targets(self, step: Step, v_t: Float[Array, "time b team"]) -> Float[Array, "time b team"]:
        """One-step or TD(lambda) targets of each team."""
        r_t = step.reward[1:]
        if self.mixer.kind != "none":
            r_t = (jnp.mean if self.team_reward == "mean" else jnp.sum)(r_t, axis=-1, keepdims=True)
        discount_t = jnp.broadcast_to(self.gamma * team_discount(step)[1:, :, None], v_t.shape)
        if self.td_lambda == 0.0:
            return r_t + discount_t * v_t
        lambda_t = returns.continues(step.last, self.td_lambda)[..., None]
        return returns.lambda_returns(r_t, discount_t, v_t, jnp.broadcast_to(lambda_t, v_t.shape))


def _by_env(rollout: Rollout) -> Sequence:
    """A rollout as sequences [env, time, ...]."""
    step, action, filled = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (rollout.step, rollout.action, rollout.filled))
    return Sequence(step, action, filled, jax.tree.map(lambda x: x[0], rollout.carry))


def _time_major(batch: Sequence) -> Sequence:
    """Sequences [batch, time, ...] as [time, batch, ...]."""
    step, action, filled = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batch.step, batch.action, batch.filled))
    return Sequence(step, action, filled, batch.memory)


def _previous_actions(batch: Sequence) -> Int[Array, "time batch agent"]:
    """The action before each of the time + 1 rows, -1 where an episode opens."""
    shifted = jnp.concatenate([batch.memory.action[None], batch.action])
    return jnp.where(batch.step.first[..., None], -1, shifted)
