"""How a network reads what agents see: one row while they act, whole sequences when they learn from replay."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.types import Action, Spec, Step
from rookery.memory.sequences import Memory, Sequence, by_partner, no_action, previous_actions, since_reset
from rookery.nets.agent import Net, Params
from rookery.nets.inputs import own_view, view_size
from rookery.nets.transformer import Heard


@dataclass(frozen=True)
class Reader:
    """A network, and what it reads of each agent: the observation [, the last action] [, the agent's index]."""

    net: Net
    agent_id: bool
    last_action: bool

    def inputs(self, spec: Spec) -> int:
        """Numbers that the network reads of one agent."""
        return view_size(spec, agent_id=self.agent_id, last_action=self.last_action)

    def carry(self, spec: Spec, envs: int) -> Memory:
        """Nothing remembered, nothing done."""
        nothing = no_action(jnp.zeros((envs, spec.n_agents, *spec.action.shape), spec.action.dtype))
        return Memory(self.net.carry(envs, spec.n_agents), nothing)

    def row(self, spec: Spec, params: Params, memory: Memory, step: Step) -> tuple[Array, Float[Array, "b agent n"]]:
        """The hidden state after one row, and the outputs for it."""
        rows = jax.tree.map(lambda x: x[None], step)
        previous = since_reset(step.first, memory.action)
        hidden, y = self.rows(spec, params, memory.hidden, rows, previous[None])
        return hidden, y[0]

    def rows(
        self, spec: Spec, params: Params, hidden: Array, step: Step, previous: Action
    ) -> tuple[Array, Float[Array, "row b agent n"]]:
        """The hidden state after consecutive rows, and the outputs for each; `previous` is the action before each."""
        x, params = self._view(spec, step, previous), self.net.of_agents(spec, params)
        return self.net.unroll(params, hidden, x, step.first, spec.entities)

    def sequences(self, spec: Spec, params: Params, batch: Sequence) -> Float[Array, "row b agent n"]:
        """The outputs for all time + 1 rows of a batch."""
        return self.rows(spec, params, batch.memory.hidden, batch.step, previous_actions(batch))[1]

    def hearing(
        self,
        spec: Spec,
        params: Params,
        batch: Sequence,
        senders: Int[Array, "b partner agent"],
        present: Bool[Array, "time b partner agent"],
    ) -> Float[Array, "time b agent n"]:
        """The outputs of a transformer that also looks at the tokens which these senders make of the same moments."""
        x, hidden, first = self._view(spec, batch.step, previous_actions(batch)), batch.memory.hidden, batch.step.first
        tokens = jax.lax.stop_gradient(self.net.tokens(params, hidden, x, first, spec.entities))
        present = jnp.concatenate([present, jnp.zeros_like(present[:1])])  # nothing is done at the last row
        heard = Heard(*(jnp.swapaxes(y, 2, 3) for y in (by_partner(tokens, senders), present)))
        return self.net.unroll(params, hidden, x, first, spec.entities, heard)[1][:-1]

    def _view(self, spec: Spec, step: Step, previous: Action) -> Float[Array, "*b agent n"]:
        return own_view(spec, step, agent_id=self.agent_id, last_action=previous if self.last_action else None)
