"""What the replay store holds: sequences, each what one environment collected in one iteration."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.types import Action, Rollout, Spec, Step
from rookery.ops import returns


class Memory(eqx.Module):
    """The agents' hidden state and last action."""

    hidden: Float[Array, "*b agent h"]
    action: Action  # [*b, agent, ...]; `no_action` where nothing was done


class Sequence(eqx.Module):
    """One environment's rollout, as stored: leaves [time, ...]; batched ones are time-major [time, batch, ...]."""

    step: Step  # [time + 1, ...]
    action: Action
    filled: Bool[Array, "time *b"]
    memory: Memory  # no time axis

    @property
    def active(self) -> Bool[Array, "time *b agent"]:
        """Real transitions of living agents."""
        return self.filled[..., None] & self.step.alive[:-1]


def example(spec: Spec, transitions: int, hidden: int, *, framed: bool = False) -> Sequence:
    """One stored sequence, all zeros: for its shapes and dtypes. One that is `framed` has no observations."""
    t, n = transitions, spec.n_agents

    step = Step(
        obs=jnp.zeros((t + 1, n, *((0,) if framed else spec.obs_shape)), spec.obs_dtype),
        state=jnp.zeros((t + 1, *(spec.state_shape or (0,))), "float32"),
        legal=jnp.zeros((t + 1, n, spec.action.width), "bool"),
        alive=jnp.zeros((t + 1, n), "bool"),
        reward=jnp.zeros((t + 1, n), "float32"),
        discount=jnp.zeros((t + 1, n), "float32"),
        first=jnp.zeros((t + 1,), "bool"),
        last=jnp.zeros((t + 1,), "bool"),
        success=jnp.zeros((t + 1,), "float32"),
    )
    action = jnp.zeros((t, n, *spec.action.shape), spec.action.dtype)
    return Sequence(step, action, jnp.zeros((t,), "bool"), Memory(jnp.zeros((n, hidden), "float32"), action[0]))


def by_env(rollout: Rollout) -> Sequence:
    """A rollout as sequences [env, time, ...]."""
    step, action, filled = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (rollout.step, rollout.action, rollout.filled))
    return Sequence(step, action, filled, jax.tree.map(lambda x: x[0], rollout.carry))


def time_major(batch: Sequence) -> Sequence:
    """Sequences [batch, time, ...] as [time, batch, ...]."""
    step, action, filled = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (batch.step, batch.action, batch.filled))
    return Sequence(step, action, filled, batch.memory)


def transitions(store: Sequence, index: Int[Array, "batch"], time: Int[Array, "batch"]) -> Sequence:
    """Single transitions, each a sequence of its two rows: [2, batch, ...], actions and `filled` [1, batch, ...].

    The action before the first row is kept, the hidden state is not: only a sequence's first row has one.
    """
    rows = time + jnp.arange(2)[:, None]
    step = jax.tree.map(lambda x: x[index, rows], store.step)
    action, filled = store.action[index, time][None], store.filled[index, time][None]
    before = store.action[index, jnp.maximum(time - 1, 0)]
    opens = (time == 0).reshape(-1, *[1] * (before.ndim - 1))
    memory = Memory(store.memory.hidden[index, :, :0], jnp.where(opens, store.memory.action[index], before))
    return Sequence(step, action, filled, memory)


def spans(
    store: Sequence,
    index: Int[Array, "batch"],
    time: Int[Array, "batch"],
    newer: Int[Array, "batch"],
    envs: int,
    n: int,
    gamma: float,
) -> tuple[Sequence, Int[Array, "batch"]]:
    """`n` transitions as one: as `transitions`, but the second row is the one that they lead to; and how many they are.

    They are fewer where an episode ends or where the store does: `newer` sequences of the same environment follow, each
    `envs` further on in the ring. The second row's reward is their n-step return, its discount that of what follows.
    """
    capacity, length = store.filled.shape
    row = time + jnp.arange(n)[:, None]
    ahead, t = row // length, row % length
    at = (index + ahead * envs) % capacity
    reward, discount, last = (x[at, t + 1] for x in (store.step.reward, store.step.discount, store.step.last))
    goes_on = jnp.logical_not(last) & (jnp.concatenate([ahead[1:], ahead[-1:]]) <= newer)
    # Rewards count while the team's return goes on; the discount of the last row is each agent's own.
    wide = lambda x: jnp.broadcast_to(x[..., None], reward.shape)  # noqa: E731
    power = gamma ** jnp.arange(n, dtype=jnp.float32)
    on = (wide(jnp.max(discount, axis=-1)), wide(goes_on))
    returned, follows, steps = (x[0] for x in returns.n_step(reward * power[:, None, None], *on, n))
    steps = steps[:, 0]
    at_n, t_n = (jnp.take_along_axis(x, steps[None] - 1, axis=0)[0] for x in (at, t))
    opening = jax.tree.map(lambda x: x[index, time], store.step)
    closing = jax.tree.map(lambda x: x[at_n, t_n + 1], store.step)
    after = power[steps - 1][:, None] * follows * closing.discount
    closing = replace(closing, reward=returned, discount=after)
    step = jax.tree.map(lambda *x: jnp.stack(x), opening, closing)
    return replace(transitions(store, index, time), step=step), steps


def no_action(action: Action) -> Action:
    """What stands for "nothing was done": -1 for an index (an empty one-hot), 0 for numbers and bits."""
    return jnp.full_like(action, -1 if jnp.issubdtype(action.dtype, jnp.integer) else 0)


def since_reset(first: Bool[Array, "*b"], action: Action) -> Action:
    """The last action, forgotten where an episode opens."""
    opens = first.reshape(*first.shape, *[1] * (action.ndim - first.ndim))
    return jnp.where(opens, no_action(action), action)


def previous_actions(batch: Sequence) -> Action:
    """The action before each of the time + 1 rows; `no_action` where an episode opens."""
    return since_reset(batch.step.first, jnp.concatenate([batch.memory.action[None], batch.action]))


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
