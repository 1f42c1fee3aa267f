"""What Q-learning stores: sequences, each what one environment collected in one iteration."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.types import Action, Rollout, Spec, Step


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


def example(spec: Spec, transitions: int, hidden: int) -> Sequence:
    """One stored sequence, all zeros: for its shapes and dtypes."""
    t, n = transitions, spec.n_agents

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
    memory = Memory(jnp.zeros((n, hidden), "float32"), jnp.zeros((n,), "int32"))
    return Sequence(step, jnp.zeros((t, n), "int32"), jnp.zeros((t,), "bool"), memory)


def by_env(rollout: Rollout) -> Sequence:
    """A rollout as sequences [env, time, ...]."""
    step, action, filled = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (rollout.step, rollout.action, rollout.filled))
    return Sequence(step, action, filled, jax.tree.map(lambda x: x[0], rollout.carry))


def time_major(batch: Sequence) -> Sequence:
    """Sequences [batch, time, ...] as [time, batch, ...]."""
    step, action, filled = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batch.step, batch.action, batch.filled))
    return Sequence(step, action, filled, batch.memory)


def previous_actions(batch: Sequence) -> Int[Array, "time batch agent"]:
    """The action before each of the time + 1 rows, -1 where an episode opens."""
    shifted = jnp.concatenate([batch.memory.action[None], batch.action])
    return jnp.where(batch.step.first[..., None], -1, shifted)


def borrow(batch: Sequence, senders: Int[Array, "batch partner agent"], *, fresh: bool) -> Sequence:
    """The senders' sequences, one for each receiver: [time, batch * partner, receiver, ...]."""
    s, k = batch.step, senders.shape[1]
    own = lambda x: columns(x, senders)  # noqa: E731
    team = lambda x: jnp.repeat(x, k, axis=1)  # noqa: E731
    step = Step(
        obs=own(s.obs),
        state=team(s.state),
        legal=own(s.legal),
        alive=own(s.alive),
        reward=own(s.reward),
        discount=own(s.discount),
        first=team(s.first),
        last=team(s.last),
        success=team(s.success),
    )
    hidden, action = (own(x[None])[0] for x in (batch.memory.hidden, batch.memory.action))
    memory = Memory(jnp.zeros_like(hidden) if fresh else hidden, action)
    return Sequence(step, own(batch.action), team(batch.filled), memory)


def by_partner(x: Array, senders: Int[Array, "batch partner agent"]) -> Array:
    """Each receiver's senders' entries of [time, batch, agent, ...]: [time, batch, partner, receiver, ...]."""
    return x[:, jnp.arange(senders.shape[0])[:, None, None], senders]


def columns(x: Array, senders: Int[Array, "batch partner agent"]) -> Array:
    """The same with every partner a batch entry of its own: [time, batch * partner, receiver, ...]."""
    batch, k, n = senders.shape
    return by_partner(x, senders).reshape(x.shape[0], batch * k, n, *x.shape[3:])
