"""The network that reads one agent's input over time: `Net` is its config, `Params` its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, Whole
from rookery.core.types import Entities, Spec
from rookery.nets import recurrent, transformer
from rookery.nets.encoder import Encoder, EncoderParams
from rookery.nets.increments import Changes, Modes, changed
from rookery.nets.layers import ACTIVATIONS, GAINS, Activation, Initializer, Linear, Norm, linear, norm


class Params(eqx.Module):
    """Arrays of one network; with weights per agent or team every leaf leads with an axis of agents or teams."""

    norm_in: Norm | None
    before: tuple[Linear, ...]
    norms: tuple[Norm, ...]
    core: recurrent.Gru | transformer.Transformer | None
    after: tuple[Linear, ...]
    head: Linear
    bound: tuple[Linear, ...] = ()
    """Of a transformer: what reads the actions about entities out of their tokens, one for each kind."""
    norm_core: Norm | None = None
    encoder: EncoderParams | None = None
    aside: tuple[Linear, ...] = ()
    """A second stream beside `after` and `head`; its outputs follow theirs."""


@dataclass(frozen=True)
class Net:
    """input -> `layers` dense layers -> [GRU -> `layers_after` dense layers] -> linear head.

    A transformer has `layers` of attention over the observation's entities instead of dense layers and GRU; what an
    action about an entity is worth is read out of that entity's token.
    """

    kind: Literal["mlp", "gru", "transformer"] = "mlp"
    """mlp sees one step; gru and transformer carry a hidden state (a token) over the episode."""
    width: Count = 64
    """Units of every layer and of the hidden state."""
    layers: Whole = 2
    """Dense layers before the GRU or the head; layers of attention of a transformer."""
    layers_after: Whole = 0
    """Dense layers between the GRU or transformer and the head."""
    heads: Count = 4
    """Attention heads of a transformer."""
    activation: Activation = "relu"
    """Activation of the dense layers."""
    layer_norm: bool = False
    """Normalize the input, the output of every dense layer before the GRU, and the GRU's output (not its carry), as
    the on-policy code base does."""
    weights: Literal["shared", "per_agent", "per_team"] = "shared"
    """One set of weights for all agents, one for each, or one for each team (DDPG family)."""
    encoder: Encoder = field(default_factory=Encoder)
    initializer: Initializer = "orthogonal"
    """How dense layers and the GRU begin: orthogonal with zero biases, or by torch's defaults (PyMARL)."""

    @property
    def hidden(self) -> int:
        """Length of one agent's carry."""
        return 0 if self.kind == "mlp" else self.width

    def small(self) -> Net:
        """The same network, narrow."""
        return replace(self, width=8, encoder=self.encoder.small())

    def check(self, *, teams: bool = False) -> None:
        """Refuse sizes that do not fit together; `teams`: whether weights per team can be read here."""
        if self.weights == "per_team" and not teams:
            raise ConfigError("weights per_team are for the DDPG family: use shared or per_agent.")
        if self.kind == "transformer" and (self.layers < 1 or self.heads < 1 or self.width % self.heads):
            raise ConfigError(
                f"a transformer needs at least one layer, and a width that its heads divide; got layers "
                f"{self.layers}, width {self.width}, heads {self.heads}."
            )
        if self.kind == "transformer" and self.encoder.kind != "none":
            raise ConfigError("a transformer reads entities, not images; use encoder.kind none.")
        if self.kind == "transformer" and self.initializer != "orthogonal":
            raise ConfigError(
                f"a transformer begins with orthogonal weights; got initializer '{self.initializer}'. Use orthogonal."
            )

    def sets(self, spec: Spec) -> int:
        """How many sets of weights there are, unless they are shared."""
        return len(set(spec.teams or ("",))) if self.weights == "per_team" else spec.n_agents

    def of_agents(self, spec: Spec, params: Params) -> Params:
        """The weights that `unroll` reads: with weights per team, for each agent its team's."""
        if self.weights != "per_team":
            return params
        teams = spec.teams or ("",) * spec.n_agents
        index = np.array([sorted(set(teams)).index(team) for team in teams])
        return jax.tree.map(lambda x: x[index], params)

    def init(
        self,
        key: Array,
        agents: int,
        n_in: int,
        n_out: int,
        gain: float,
        entities: tuple[Entities, ...] = (),
        image: tuple[int, ...] = (),
        *,
        aside: int = 0,
    ) -> Params:
        """Fresh weights, for so many agents (or teams) unless they are shared; `gain` scales the head. `entities` say
        how a transformer's input splits into tokens; `image` is the shape of the image that an encoder reads at the
        beginning of the input. A second stream has `aside` outputs and as many layers after the core as the first."""

        def one(key: Array) -> Params:
            encoder = self.encoder.init(stream(key, "encoder"), image)
            left = n_in if encoder is None else encoder.outputs + n_in - math.prod(image)
            params = replace(self._init(key, left, n_out, gain, entities), encoder=encoder)
            return replace(params, aside=self._aside(stream(key, "aside"), params, aside, gain)) if aside else params

        return one(key) if self.weights == "shared" else jax.vmap(one)(jax.random.split(key, agents))

    def _init(self, key: Array, n_in: int, n_out: int, gain: float, entities: tuple[Entities, ...]) -> Params:
        keys = iter(jax.random.split(key, self.layers + self.layers_after + 2))
        sizes = [n_in] + [self.width] * (0 if self.kind == "transformer" else self.layers)
        act, how = GAINS[self.activation], self.initializer
        before = tuple(linear(next(keys), a, b, act, how) for a, b in pairwise(sizes))
        core, about = None, ()
        if self.kind == "gru":
            core = recurrent.gru(next(keys), sizes[-1], self.width, how)
        elif self.kind == "transformer":
            kinds = transformer.kinds_of(entities, n_in)
            core, about = transformer.transformer(next(keys), kinds, self.width, self.layers), transformer.bound(kinds)
        body = self.width if core is not None else sizes[-1]
        widths = [body] + [self.width] * self.layers_after
        after = tuple(linear(next(keys), a, b, act, how) for a, b in pairwise(widths))
        norms = tuple(norm(self.width) for _ in before) if self.layer_norm else ()
        norm_in = norm(n_in) if self.layer_norm else None
        head = linear(next(keys), widths[-1], n_out - sum(len(actions) for _, actions in about), gain, how)
        bound = tuple(linear(stream(key, "bound", i), widths[-1], 1, gain) for i in range(len(about)))
        norm_core = norm(self.width) if self.layer_norm and self.kind == "gru" else None
        return Params(norm_in, before, norms, core, after, head, bound, norm_core)

    def _aside(self, key: Array, p: Params, n_out: int, gain: float) -> tuple[Linear, ...]:
        sizes = [layer.weight.shape for layer in (*p.after, p.head)]
        gains = [*[GAINS[self.activation]] * len(p.after), gain]
        outs = [*(b for _, b in sizes[:-1]), n_out]
        each = zip(sizes, outs, gains, strict=True)
        return tuple(
            linear(stream(key, "layer", i), a, b, g, self.initializer) for i, ((a, _), b, g) in enumerate(each)
        )

    def carry(self, *batch: int) -> Float[Array, "*b h"]:
        """A hidden state of zeros (of length 0 for an mlp)."""
        return jnp.zeros((*batch, self.hidden))

    def unroll(
        self,
        params: Params,
        carry: Float[Array, "b agent h"],
        x: Float[Array, "#time #b agent n_in"],
        first: Bool[Array, "time b"],
        entities: tuple[Entities, ...] = (),
        heard: transformer.Heard | None = None,
        team: Float[Array, "time b n_team"] | None = None,
        changes: Changes | None = None,
        *,
        head: bool = True,
    ) -> tuple[Float[Array, "b agent h"], Float[Array, "time b agent n_out"]]:
        """Read a sequence; the carry is zeroed before every row that opens an episode.

        What all agents see alike can be given as `team`; it stands before each agent's own input, which may then be the
        same for all rows. A transformer also looks at the tokens that its agents heard of others. `changes` are
        increments of the dense layers. Without `head`, the input of the head is returned.
        """
        if team is not None:
            params, x = self._with_team(params, team, x, split=changes is None)
        layers, features = ({}, None) if changes is None else (changes.layers, changes.features)
        read = partial(self._unroll, entities=entities, layers=layers, head=head)
        return self._over_agents(read, params, carry, x, first, heard, features)

    def _with_team(
        self, p: Params, team: Array, x: Array, *, split: bool
    ) -> tuple[Params, Float[Array, "time b agent n"]]:
        """The layers that are left to do, and their input: the first layer's part for the team is computed once."""
        whole = self.weights != "shared" or self.layer_norm or not p.before or p.encoder is not None
        if whole or not split:
            both = (jnp.broadcast_to(y, (*team.shape[:2], x.shape[2], y.shape[-1])) for y in (team[:, :, None], x))
            return p, jnp.concatenate(list(both), axis=-1)
        layer, rows = p.before[0], team.shape[-1]
        y = Linear(layer.weight[:rows], layer.bias)(team)[:, :, None] + x @ layer.weight[rows:]
        return eqx.tree_at(lambda p: p.before, p, p.before[1:]), ACTIVATIONS[self.activation](y)

    def tokens(
        self,
        params: Params,
        carry: Float[Array, "b agent h"],
        x: Float[Array, "time b agent n_in"],
        first: Bool[Array, "time b"],
        entities: tuple[Entities, ...],
    ) -> Float[Array, "time b agent width"]:
        """The outputs of the core: a GRU's hidden states, or the recurrent tokens of a transformer."""

        def read(p: Params, carry: Array, x: Array, reset: Array, heard: None, features: None) -> tuple[Array, Array]:
            carry, y = self._core(p, carry, x, reset, heard, features, transformer.unbound(entities), {})
            return carry, y[:, :, 0] if isinstance(p.core, transformer.Transformer) else y

        return self._over_agents(read, params, carry, x, first, None, None)[1]

    def _over_agents(
        self,
        read: Callable[..., tuple[Array, Array]],
        params: Params,
        carry: Array,
        x: Array,
        first: Array,
        heard: transformer.Heard | None,
        features: Float[Array, "time b agent feature"] | None,
    ) -> tuple[Array, Array]:
        """Read each agent's sequence with the weights that are its own."""
        reset = jnp.broadcast_to(first[..., None], x.shape[:-1])
        if self.weights != "shared":
            apart = jax.vmap(read, in_axes=(0, 1, 2, 2, 2, 2), out_axes=(1, 2))
            return apart(params, carry, x, reset, heard, features)
        # Agents are one more batch axis: one matmul for all of them.
        time, batch, agents, _ = x.shape
        flat = lambda y: y.reshape(time, batch * agents, *y.shape[3:])  # noqa: E731
        carry = carry.reshape(batch * agents, self.hidden)
        carry, y = read(params, carry, flat(x), flat(reset), *jax.tree.map(flat, (heard, features)))
        return carry.reshape(batch, agents, self.hidden), y.reshape(time, batch, agents, -1)

    def _unroll(
        self,
        p: Params,
        carry: Array,
        x: Array,
        reset: Array,
        heard: transformer.Heard | None,
        features: Array | None,
        entities: tuple[Entities, ...],
        layers: dict[str, Modes | Array],
        head: bool,
    ) -> tuple[Array, Array]:
        n_in = x.shape[-1]
        carry, x = self._core(p, carry, x, reset, heard, features, entities, layers)
        core = x
        for i, layer in enumerate(p.after):
            x = ACTIVATIONS[self.activation](changed(layer, x, layers.get(f"after{i}"), features))
        if isinstance(p.core, transformer.Transformer):
            return carry, _read_out(p, x, transformer.bound(transformer.kinds_of(entities, n_in)))
        if not head:
            return carry, x
        y = changed(p.head, x, layers.get("head"), features)
        if not p.aside:
            return carry, y
        for layer in p.aside[:-1]:
            core = ACTIVATIONS[self.activation](layer(core))
        return carry, jnp.concatenate([y, p.aside[-1](core)], axis=-1)

    def _core(
        self,
        p: Params,
        carry: Array,
        x: Array,
        reset: Array,
        heard: transformer.Heard | None,
        features: Array | None,
        entities: tuple[Entities, ...],
        layers: dict[str, Modes | Array],
    ) -> tuple[Array, Array]:
        if p.encoder is not None:
            x = self.encoder(p.encoder, x)
        if p.norm_in is not None:
            x = p.norm_in(x)
        for i, layer in enumerate(p.before):
            x = ACTIVATIONS[self.activation](changed(layer, x, layers.get(f"before{i}"), features))
            x = p.norms[i](x) if p.norms else x
        if isinstance(p.core, transformer.Transformer):
            kinds = transformer.kinds_of(entities, x.shape[-1])
            return transformer.unroll(p.core, carry, x, reset, kinds, self.heads, heard)
        if p.core is None:
            return carry, x
        carry, x = recurrent.unroll(p.core, carry, x, reset)
        return carry, x if p.norm_core is None else p.norm_core(x)


def _read_out(
    p: Params, x: Float[Array, "time b read width"], about: tuple[tuple[np.ndarray, np.ndarray], ...]
) -> Float[Array, "time b n_out"]:
    """Outputs in order, from the recurrent token and the tokens that actions are `about`."""
    free = p.head(x[:, :, 0])
    if not about:
        return free
    actions = np.concatenate([actions for _, actions in about])
    ends = 1 + np.cumsum([len(tokens) for tokens, _ in about])
    starts = [1, *ends[:-1]]
    read = [head(x[:, :, a:b])[..., 0] for head, a, b in zip(p.bound, starts, ends, strict=True)]
    others = np.setdiff1d(np.arange(free.shape[-1] + actions.size), actions)
    order = np.argsort(np.concatenate([others, actions]))
    y = jnp.concatenate([free, *read], axis=-1)
    return y if np.array_equal(order, np.arange(order.size)) else y[:, :, order]
