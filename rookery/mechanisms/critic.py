"""The critic of the actor-critic families: values of rollouts, their targets, advantages and loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Fraction, NonNegative, Positive
from rookery.core.types import Entities, Mean, Spec, Step, global_state, team_discount
from rookery.mechanisms import normalise
from rookery.nets import transformer
from rookery.nets.inputs import own_view, view_size
from rookery.ops import returns


@dataclass(frozen=True)
class Value:
    """How the critic learns."""

    sees: Literal["obs", "state", "state_id", "both"] = "state"
    """obs: each agent's own (IPPO); state: the global state, one value for the team; state_id: state and the agent's
    index; both: state and own obs."""
    loss: Literal["mse", "huber"] = "huber"
    """Shape of the value loss."""
    huber: Positive = 10.0
    """Error at which the huber loss becomes linear."""
    clip: NonNegative = 0.2
    """Largest move of a value away from its old one that still has a gradient; 0: no limit."""
    weight: NonNegative = 1.0
    """Weight of the value loss."""
    normalise: Literal["none", "running"] = "running"
    """running: the critic predicts returns normalized by running statistics."""
    memory: Fraction = 0.99999
    """Decay of those statistics per update (debiased)."""

    def check(self, spec: Spec) -> None:
        """Refuse one value for agents that want different things."""
        if not spec.cooperative and self.sees == "state":
            raise ConfigError(
                f"algo.value.sees 'state' gives one value for the whole team, but {spec.name} rewards its agents "
                "differently. Use --algo.value.sees both (or obs)."
            )


@runtime_checkable
class Network(Protocol):
    """What a critic needs of its network: `Net`, or one whose weights are generated."""

    @property
    def weights(self) -> Literal["shared", "per_agent", "per_team"]: ...
    @property
    def hidden(self) -> int: ...
    def init(
        self, key: Array, agents: int, n_in: int, n_out: int, gain: float, entities: Any = (), image: Any = ()
    ) -> Any: ...
    def carry(self, *batch: int) -> Array: ...
    def unroll(
        self, params: Any, carry: Array, x: Array, first: Array, entities: Any = (), *, team: Array | None = None
    ) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Critic:
    """A network and how it learns. Values [row, b, viewer]: one viewer if all agents share one value."""

    net: Network
    value: Value
    agent_id: bool

    def viewers(self, spec: Spec) -> int:
        """Agent axis of the critic: a state that is the same for all agents is read once."""
        return 1 if self.value.sees == "state" and self.net.weights == "shared" else spec.n_agents

    def _entities(self, spec: Spec) -> tuple[Entities, ...]:
        """The entities of the critic's input: a state has none. A critic has no actions to read out of them."""
        return transformer.unbound(spec.entities) if self.value.sees == "obs" else ()

    def check(self, kind: str) -> None:
        """Refuse a transformer over a state, which would be one token."""
        if kind == "transformer" and self.value.sees != "obs":
            raise ConfigError(
                "a transformer critic reads the entities of observations, but algo.value.sees "
                f"'{self.value.sees}' gives it a state, which has none. Use --algo.value.sees obs, "
                "or --algo.critic.kind mlp or gru."
            )

    def image(self, spec: Spec) -> tuple[int, ...]:
        """The shape of the image that the critic's input begins with; a joint state of several agents is none."""
        joint = self.value.sees != "obs" and (spec.state_shape or spec.n_agents > 1)
        return (spec.state_size,) if joint else spec.obs_shape

    def init(self, spec: Spec, key: Array) -> Any:
        """Fresh weights."""
        own, state = view_size(spec, agent_id=self.agent_id), spec.state_size
        seen = {"obs": own, "state": state, "state_id": state + spec.n_agents, "both": state + own}[self.value.sees]
        return self.net.init(stream(key, "critic"), spec.n_agents, seen, 1, 1.0, self._entities(spec), self.image(spec))

    def carry(self, spec: Spec, envs: int) -> Float[Array, "env viewer h"]:
        """A hidden state of zeros."""
        return self.net.carry(envs, self.viewers(spec))

    def inputs(self, spec: Spec, step: Step) -> tuple[Array | None, Array]:
        """What all viewers see alike, if anything, and each one's own input."""
        team = None if self.value.sees == "obs" else global_state(spec, step)
        if self.value.sees in ("obs", "both"):
            return team, own_view(spec, step, agent_id=self.agent_id)
        index = jnp.eye(spec.n_agents) if self.value.sees == "state_id" else jnp.zeros((self.viewers(spec), 0))
        return team, index[None, None]

    def values(self, spec: Spec, params: Any, carry: Array, step: Step) -> tuple[Array, Float[Array, "row b viewer"]]:
        """Values as the critic predicts them (normalized)."""
        team, x = self.inputs(spec, step)
        carry, v = self.net.unroll(params, carry, x, step.first, self._entities(spec), team=team)
        return carry, v[..., 0]

    def value_rollout(
        self, spec: Spec, params: Any, carry: Array, step: Step, rows: int
    ) -> tuple[Array, Array, Float[Array, "row b viewer"]]:
        """Carry into the next rollout, carries into each sequence of `rows` rows, values of all time + 1 rows."""
        last = jax.tree.map(lambda x: x[-1:], step)
        count = (step.first.shape[0] - 1) // rows
        if not self.net.hidden:
            _, values = self.values(spec, params, carry, step)
            return carry, jnp.broadcast_to(carry, (count, *carry.shape)), values
        # `count`, not -1: a task without a state of its own has a `state` of size 0.
        sequences = jax.tree.map(lambda x: x[:-1].reshape(count, rows, *x.shape[1:]), step)

        def one(carry: Array, now: Step) -> tuple[Array, tuple[Array, Array]]:
            after, v = self.values(spec, params, carry, now)
            return after, (carry, v)

        carry, (carries, values) = jax.lax.scan(one, carry, sequences)
        _, final = self.values(spec, params, carry, last)
        return carry, carries, jnp.concatenate([values.reshape(-1, *values.shape[2:]), final])

    def targets(
        self,
        running: normalise.Running,
        step: Step,
        values: Float[Array, "row b viewer"],
        filled: Bool[Array, "time b"],
        gamma: float,
        gae_lambda: float,
    ) -> tuple[Float[Array, "time b agent"], Float[Array, "time b agent"], normalise.Running]:
        """Value targets (as the critic predicts them), advantages, and the return statistics after them.

        Generalized advantage estimation (Schulman et al. 2016) with the team's discount: a dead agent's value is
        bootstrapped from like any other, so it is also trained.
        """
        normal = self.value.normalise == "running"
        v = normalise.denormalise(running, values) if normal else values
        v = jnp.broadcast_to(v, step.reward.shape)
        discount_t = jnp.broadcast_to(gamma * team_discount(step)[1:, :, None], v[1:].shape)
        lambda_t = jnp.broadcast_to(returns.continues(step.last, gae_lambda)[..., None], v[1:].shape)
        target = returns.lambda_returns(step.reward[1:], discount_t, v[1:], lambda_t)
        advantage = target - v[:-1]
        if normal:
            running = normalise.track(running, target, filled[..., None], self.value.memory)
            target = normalise.normalise(running, target)
        return target, advantage, running

    def loss(
        self,
        v: Float[Array, "row b viewer"],
        old: Float[Array, "row b viewer"],
        target: Float[Array, "row b agent"],
        filled: Bool[Array, "row b"],
    ) -> Mean:
        """Squared or huber error of the values, clipped around the old ones, over filled rows."""
        error = self._error(v - target)
        if self.value.clip > 0:
            near = old + jnp.clip(v - old, -self.value.clip, self.value.clip)
            error = jnp.maximum(error, self._error(near - target))
        return Mean.of(error, filled[..., None])

    def _error(self, x: Array) -> Array:
        if self.value.loss == "huber":
            return optax.huber_loss(x, delta=self.value.huber)
        return 0.5 * x**2
