"""Agents' values of their own actions, as the Q family acts by and learns: an online network and its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.keys import Keys
from rookery.core.types import Spec, Step
from rookery.mechanisms.values import Values
from rookery.memory.reader import Reader
from rookery.memory.sequences import Memory, Sequence, previous_actions
from rookery.nets.agent import Params
from rookery.nets.mixers import MixerParams
from rookery.nets.noisy import Noisy
from rookery.ops import td


class Weights(eqx.Module):
    """What the Q family learns."""

    agent: Any
    """`Params`, or `Noisy` ones."""
    mixer: MixerParams


class Nets(NamedTuple):
    """Agents' networks as they are read: noise, if there is any, has been drawn."""

    online: Params
    target: Params


@dataclass(frozen=True)
class AgentValues:
    """A network, and what its outputs mean."""

    reader: Reader
    values: Values
    double: bool
    """Choose the next action by the online values, rate it by the target's."""
    unit: Literal["sequence", "transition"]
    """What batches are made of."""

    def init(self, spec: Spec, key: Array) -> Params | Noisy:
        """Fresh weights."""
        return self.values.init(self.reader.net, spec, self.reader.inputs(spec), key)

    def row(
        self, spec: Spec, agent: Params | Noisy, memory: Memory, step: Step, key: Callable[[], Array] | None
    ) -> tuple[Array, Float[Array, "b agent action"]]:
        """The hidden state after one row, and the values of all actions in it; without a key there is no noise."""
        hidden, y = self.reader.row(spec, self.values.weights(agent, key), memory, step)
        return hidden, self.values.expected(self.values.read(y))

    def nets(self, online: Weights, target: Weights, key: Keys | None) -> Nets:
        """The networks of these weights; without a key there is no noise."""

        def drawn(weights: Weights, purpose: str) -> Params:
            return self.values.weights(weights.agent, None if key is None else partial(key, purpose))

        return Nets(drawn(online, "online"), drawn(target, "target"))

    def outputs(self, spec: Spec, nets: Nets, batch: Sequence) -> tuple[Array, Array]:
        """What both networks say of all rows [row, b, agent, action, ...]."""
        seen = batch.step, previous_actions(batch)

        def read(net: Params, rows: tuple[Step, Array]) -> Float[Array, "row b agent action *atom"]:
            return self.values.read(self.reader.rows(spec, net, batch.memory.hidden, *rows)[1])

        if self.unit == "sequence":
            return read(nets.online, seen), read(nets.target, seen)
        # Of a transition, what is not read need not be computed: its second row takes no gradient, and without `double`
        # it is the target network's alone; its first row is the online network's.
        before, after = (jax.tree.map(lambda x, at=at: x[at], seen) for at in (np.s_[:1], np.s_[1:]))
        y, y_target = read(nets.online, before), read(nets.target, after)
        chooser = jax.lax.stop_gradient(read(nets.online, after)) if self.double else y_target
        return jnp.concatenate([y, chooser]), jnp.concatenate([y_target, y_target])

    def taken(
        self, batch: Sequence, y: Array, y_target: Array
    ) -> tuple[Float[Array, "time b agent"], Float[Array, "time b agent"]]:
        """From what both networks say: values of the actions taken, and of the rows that they led to."""
        q, q_target = self.values.expected(y), self.values.expected(y_target)
        v_t = td.next_values(q_target, q, batch.step.legal, double=self.double)[1:]
        return td.take(q[:-1], batch.action), v_t

    def read(self, spec: Spec, nets: Nets, batch: Sequence) -> tuple[Array, Array]:
        """The same of a batch."""
        return self.taken(batch, *self.outputs(spec, nets, batch))

    def hear(
        self,
        spec: Spec,
        nets: Nets,
        batch: Sequence,
        senders: Int[Array, "b partner agent"],
        present: Bool[Array, "time b partner agent"],
    ) -> Float[Array, "time b agent"]:
        """Values of the actions taken, with a look at what these senders make of the same moments."""
        return td.take(self.reader.hearing(spec, nets.online, batch, senders, present), batch.action)
