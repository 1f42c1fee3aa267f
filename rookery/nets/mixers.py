"""Mixers: from the agents' values to the team's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, NonNegative
from rookery.core.types import Spec
from rookery.nets.layers import Initializer, Linear, elu, linear


class QmixParams(eqx.Module):
    """Hypernetworks from the state to the weights of a monotonic two-layer network."""

    w1: tuple[Linear, Linear]
    b1: Linear
    w2: tuple[Linear, Linear]
    b2: tuple[Linear, Linear]


MixerParams = QmixParams | tuple[()]


@dataclass(frozen=True)
class Mixer:
    """none: agents learn alone (IQL, DQN). vdn: the team's value is the sum. qmix: a monotonic function of state."""

    kind: Literal["none", "vdn", "qmix"] = "none"
    """How the agents' values become the team's."""
    embed: Count = 32
    """Units of qmix's hidden layer."""
    hyper: Count = 64
    """Units of qmix's two-layer hypernetworks."""
    gain: NonNegative = 1.0
    """Scale of the hypernetworks' initial weights (JaxMARL: 0.001); torch's defaults know none."""
    initializer: Initializer = "orthogonal"
    """How qmix's weights begin: orthogonal, or by torch's defaults (PyMARL)."""

    def check(self, spec: Spec, instead: str) -> None:
        """Refuse to mix values of agents that want different things; `instead` names presets without a mixer."""
        if self.kind != "none" and not spec.cooperative:
            teams = ", ".join(sorted(set(spec.teams))) or "none"
            raise ConfigError(
                f"mixer '{self.kind}' needs a cooperative task; {spec.name} rewards its teams differently. Try "
                f"{instead}, or one team only: --task.team (teams: {teams})."
            )

    def small(self) -> Mixer:
        """The same mixer, narrow."""
        return replace(self, embed=4, hyper=4) if self.kind == "qmix" else self

    def init(self, key: Array, agents: int, state_size: int) -> MixerParams:
        """Fresh weights; none and vdn have none."""
        if self.kind != "qmix":
            return ()
        k = jax.random.split(key, 7)

        def layer(i: int, n_in: int, n_out: int) -> Linear:
            return linear(k[i], n_in, n_out, self.gain, self.initializer)

        return QmixParams(
            w1=(layer(0, state_size, self.hyper), layer(1, self.hyper, agents * self.embed)),
            b1=layer(2, state_size, self.embed),
            w2=(layer(3, state_size, self.hyper), layer(4, self.hyper, self.embed)),
            b2=(layer(5, state_size, self.embed), layer(6, self.embed, 1)),
        )

    def __call__(
        self, params: MixerParams, q: Float[Array, "*b agent"], state: Float[Array, "*b state"]
    ) -> Float[Array, "*b team"]:
        """Team values [..., 1]; with kind none every agent is its own team [..., agent]."""
        if self.kind == "none":
            return q
        if self.kind == "vdn":
            return jnp.sum(q, axis=-1, keepdims=True)
        assert isinstance(params, QmixParams)
        # abs makes dQ_tot / dQ_i >= 0 (Rashid et al. 2018), so that each agent's argmax is the team's.
        w1 = jnp.abs(_two_layers(params.w1, state)).reshape(*q.shape, self.embed)
        hidden = elu(jnp.einsum("...n,...ne->...e", q, w1) + params.b1(state))
        w2 = jnp.abs(_two_layers(params.w2, state))
        return jnp.sum(hidden * w2, axis=-1, keepdims=True) + _two_layers(params.b2, state)


def _two_layers(layers: tuple[Linear, Linear], x: Array) -> Array:
    return layers[1](jax.nn.relu(layers[0](x)))
