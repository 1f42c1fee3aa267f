"""The actor slot of the PPO family: from what agents see to the parameters of their action distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.keys import stream
from rookery.core.types import Action, Carry, Clock, Mean, Metrics, Spec, Step
from rookery.nets.agent import Net, Params
from rookery.nets.hypernet import Embedded, EmbeddedNet
from rookery.nets.inputs import own_view, view_size
from rookery.ops import distributions

Weights = dict[str, Any]
"""Arrays by optimiser group ("actor", "hyper"); groups in `UNTRAINED` have no optimiser."""
UNTRAINED = ("hyper_target", "noise")
"""A target hypernetwork, and noise on the weights."""
Aux = dict[str, Array]
"""What reading produced besides the distribution, for `penalty` and for the log. "anchor" holds parameters of the
distributions that the policy is aligned with, if those that acted are not."""


class ActorWeights(eqx.Module):
    net: Params | Embedded
    log_std: Float[Array, "*agent width"]
    """One for all agents, or with per-agent weights one for each."""


class Distribution(eqx.Module):
    """Action distributions of all agents."""

    params: Float[Array, "*b agent width"]
    """Logits, or means of Gaussians."""
    log_std: Float[Array, "*agent width"]


@runtime_checkable
class Actor(Protocol):
    """Reads sequences; may add losses of its own."""

    @property
    def hidden(self) -> bool:
        """Whether it carries anything from step to step."""
        ...

    def init(self, spec: Spec, key: Array) -> Weights: ...
    def carry(self, spec: Spec, envs: int) -> Carry: ...
    def read(
        self, spec: Spec, weights: Weights, carry: Carry, step: Step, action: Action | None = None
    ) -> tuple[Carry, Distribution, Aux]:
        """Distributions for rows [row, b, agent, ...], and auxiliary outputs.

        `action` holds the actions that were taken in these rows; None where they are yet to be chosen (of one row).
        """
        ...

    def took(self, spec: Spec, carry: Carry, action: Action) -> Carry:
        """The carry after an action was chosen [b, agent, ...]."""
        ...

    def penalty(
        self, spec: Spec, aux: Aux, step: Step, active: Bool[Array, "row b agent"]
    ) -> dict[str, tuple[float, Mean]]:
        """Further losses by name: weight and mean."""
        ...

    def updated(self, weights: Weights, clock: Clock) -> tuple[Weights, Metrics]:
        """The weights after an update (all gradient steps of an iteration), and what to log about them."""
        ...


@dataclass(frozen=True)
class PlainActor:
    """One network per agent, or one that all agents share."""

    net: Net | EmbeddedNet
    agent_id: bool

    @property
    def hidden(self) -> bool:
        """Whether the network is recurrent."""
        return bool(self.net.hidden)

    def init(self, spec: Spec, key: Array) -> Weights:
        """Fresh weights."""
        width = distributions.parameters(spec.action)
        n_in = view_size(spec, agent_id=self.agent_id)
        net = self.net.init(stream(key, "actor"), spec.n_agents, n_in, width, 0.01, spec.entities, spec.obs_shape)
        agents = (spec.n_agents,) if self.net.weights == "per_agent" else ()
        return {"actor": ActorWeights(net, jnp.full((*agents, width), -0.5, jnp.float32))}

    def carry(self, spec: Spec, envs: int) -> Float[Array, "env agent h"]:
        """The agents' hidden states."""
        return self.net.carry(envs, spec.n_agents)

    def read(
        self, spec: Spec, weights: Weights, carry: Carry, step: Step, action: Action | None = None
    ) -> tuple[Carry, Distribution, Aux]:
        """Distributions for rows [row, b, agent, ...]."""
        actor: ActorWeights = weights["actor"]
        x = own_view(spec, step, agent_id=self.agent_id)
        # Weights are of the kind that the network has.
        net: Any = self.net
        carry, params = net.unroll(actor.net, carry, x, step.first, spec.entities)
        return carry, Distribution(params, actor.log_std), {}

    def took(self, spec: Spec, carry: Carry, action: Action) -> Carry:
        """Unchanged."""
        return carry

    def penalty(
        self, spec: Spec, aux: Aux, step: Step, active: Bool[Array, "row b agent"]
    ) -> dict[str, tuple[float, Mean]]:
        """None."""
        return {}

    def updated(self, weights: Weights, clock: Clock) -> tuple[Weights, Metrics]:
        """As they are."""
        return weights, {}
