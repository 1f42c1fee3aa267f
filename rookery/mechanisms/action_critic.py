"""Critics of actions: Q_i(observations, actions), one value per agent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count
from rookery.core.types import Spec, Step
from rookery.nets.agent import Net, Params
from rookery.nets.mixers import Mixer, MixerParams

Twins = tuple[Params, ...]
Joint = Float[Array, "time b viewer agent width"]
"""The actions of all agents, as the critic of each agent (viewer) is asked about them."""


class Critics(eqx.Module):
    twins: Twins
    mixer: MixerParams


@dataclass(frozen=True)
class ActionCritic:
    """One critic per agent (or one network for several of them), and what it sees."""

    net: Net = field(default_factory=Net)
    sees: Literal["all", "own", "team"] = "all"
    """all: every agent's observation and action (MADDPG); own: only its own (DDPG of each agent); team: those of the
    agent's team."""
    twins: Count = 1
    """Critics of each agent; the least of their values is the target's (2: TD3, SAC)."""

    def check(self) -> None:
        """Refuse what has no meaning."""
        self.net.check(teams=True)
        if self.net.kind == "transformer":
            raise ConfigError("algo.critic.net.kind must be mlp or gru: joint actions are no entities.")

    def small(self) -> ActionCritic:
        """The same critics, narrow."""
        return replace(self, net=self.net.small())

    def _index(self, spec: Spec) -> bool:
        """Whether an agent's index is an input: weights of its own say as much."""
        return self.net.weights != "per_agent" and spec.n_agents > 1

    def init(self, spec: Spec, key: Array) -> Twins:
        """Fresh weights."""
        seen = 1 if self.sees == "own" else spec.n_agents
        n_in = seen * (spec.obs_size + spec.action.width) + self._index(spec) * spec.n_agents
        keys = [stream(key, "critic", i) for i in range(self.twins)]
        return tuple(self.net.init(k, self.net.sets(spec), n_in, 1, 1.0) for k in keys)

    def values(self, spec: Spec, twins: Twins, step: Step, joint: Joint) -> Float[Array, "twin time b agent"]:
        """Values of sequences, read from a hidden state of zeros."""
        team, own = self._inputs(spec, step, joint)
        carry = self.net.carry(own.shape[1], spec.n_agents)
        twins = tuple(self.net.of_agents(spec, params) for params in twins)
        return jnp.stack([self.net.unroll(p, carry, own, step.first, team=team)[1][..., 0] for p in twins])

    def alternatives(
        self, spec: Spec, twins: Twins, step: Step, taken: Float[Array, "past b _ agent width"], joint: Joint
    ) -> Float[Array, "twin time b agent"]:
        """Values of other actions `joint` at each of the time + 1 rows, after a history of the actions `taken`."""
        if not self.net.hidden:
            return self.values(spec, twins, step, joint)
        rows, batch = step.first.shape
        team, own = self._inputs(spec, step, joint)
        past_team, past_own = self._inputs(spec, _rows(step, slice(None, -1)), taken)
        past = past_own if past_team is None else _with_team(past_team, past_own)
        flat = lambda x: x.reshape(1, rows * batch, *x.shape[2:])  # noqa: E731
        found: list[Array] = []
        for params in twins:
            params = self.net.of_agents(spec, params)
            # A GRU's outputs are its hidden states: what it had read before each row.
            hidden = self.net.tokens(params, self.net.carry(batch, spec.n_agents), past, step.first[:-1], ())
            before = jnp.concatenate([jnp.zeros_like(hidden[:1]), hidden])
            args = (flat(before)[0], flat(own), flat(step.first))
            _, q = self.net.unroll(params, *args, team=None if team is None else flat(team))
            found.append(q[0, ..., 0].reshape(rows, batch, spec.n_agents))
        return jnp.stack(found)

    def _inputs(self, spec: Spec, step: Step, joint: Joint) -> tuple[Array | None, Float[Array, "time b agent n"]]:
        """What all critics see alike (None: nothing), and what each sees of its own."""
        batch, n = step.first.shape, spec.n_agents
        obs = step.obs.reshape(*batch, n, -1).astype(jnp.float32)
        index = [jnp.broadcast_to(jnp.eye(n), (*batch, n, n))] if self._index(spec) else []
        if self.sees == "own":
            own = jnp.diagonal(jnp.broadcast_to(joint, (*batch, n, *joint.shape[3:])), axis1=2, axis2=3)
            return None, jnp.concatenate([obs, jnp.moveaxis(own, -1, 2), *index], axis=-1)
        joint = jnp.broadcast_to(joint, (*batch, n, *joint.shape[3:]))
        if self.sees == "team" and spec.teams:
            same = teammates(spec)[..., None]
            seen = jnp.where(same, obs[:, :, None], 0.0).reshape(*batch, n, -1)
            mine = jnp.where(same, joint, 0.0).reshape(*batch, n, -1)
            return None, jnp.concatenate([seen, mine, *index], axis=-1)
        return obs.reshape(*batch, -1), jnp.concatenate([joint.reshape(*batch, n, -1), *index], axis=-1)


def teammates(spec: Spec) -> Bool[np.ndarray, "agent agent"]:
    """Which agents are of one team."""
    teams = np.array(spec.teams or ("",) * spec.n_agents)
    return teams[:, None] == teams


def _with_team(team: Float[Array, "time b n"], own: Float[Array, "time b agent m"]) -> Array:
    wide = jnp.broadcast_to(team[:, :, None], (*own.shape[:3], team.shape[-1]))
    return jnp.concatenate([wide, own], axis=-1)


def _rows(step: Step, rows: slice) -> Step:
    return jax.tree.map(lambda x: x[rows], step)


def mixed(
    mixer: Mixer, params: MixerParams, q: Float[Array, "twin *b agent"], state: Float[Array, "*b n"]
) -> Float[Array, "twin *b team"]:
    """Values of each agent, or of the team, by every twin."""
    return jnp.stack([mixer(params, twin, state) for twin in q])


def own_alternatives(action: Float[Array, "time b agent width"], others: Float[Array, "time b agent width"]) -> Joint:
    """Joint actions in which each agent (viewer) does `action` and the others do theirs."""
    own = jnp.eye(action.shape[-2], dtype=bool)[..., None]
    return jnp.where(own, action[:, :, None], others[:, :, None])
