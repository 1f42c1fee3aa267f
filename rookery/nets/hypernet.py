"""The body of a hypernetwork: encoder, history, attention over agents; and weights generated from agent embeddings."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.keys import stream
from rookery.core.types import Entities
from rookery.nets import recurrent
from rookery.nets.agent import Net, Params
from rookery.nets.layers import Linear, linear, orthogonal

History = Literal["none", "lstm", "gru", "window"]
_FEW = 5
"""Agents up to which attention is faster as products of numbers: XLA on CPUs calls a matmul for each example."""


class Attention(eqx.Module):
    """Agents look at each other."""

    look: Linear
    """Queries, keys and values, side by side."""
    out: Linear


class Body(eqx.Module):
    encoder: tuple[Linear, ...]
    history: recurrent.Lstm | recurrent.Gru | Linear | None
    attention: Attention | None
    out: Linear


def body(key: Array, n_in: int, width: int, n_out: int, history: History, window: int, *, joint: bool) -> Body:
    """Fresh weights."""
    make = {
        "none": lambda k: None,
        "gru": lambda k: recurrent.gru(k, width, width),
        "lstm": lambda k: recurrent.lstm(k, width, width),
        "window": lambda k: linear(k, window * width, width, 2**0.5),
    }[history]
    three = [orthogonal(stream(key, name), width, width) for name in ("query", "key", "value")]
    look = Linear(jnp.concatenate(three, axis=1), jnp.zeros(3 * width))
    # What returns to the residual stream starts small.
    looks = Attention(look, linear(stream(key, "out"), width, width, 0.1))
    return Body(
        encoder=(linear(stream(key, "encoder"), n_in, width, 2**0.5),),
        history=make(stream(key, "history")),
        attention=looks if joint else None,
        out=linear(stream(key, "features"), width, n_out),
    )


def encode(p: Body, x: Float[Array, "*b n_in"]) -> Float[Array, "*b width"]:
    """Tokens of single rows."""
    for layer in p.encoder:
        x = jax.nn.relu(layer(x))
    return x


def remember(
    p: Body, carry: Float[Array, "b agent h"], x: Float[Array, "time b agent n"], first: Bool[Array, "time b"]
) -> tuple[Float[Array, "b agent h"], Float[Array, "time b agent width"]]:
    """The carry after a sequence, and a token of each agent's history at each row, from tokens of single rows."""
    time, batch, agents, _ = x.shape
    flat, start = x.reshape(time, batch * agents, -1), carry.reshape(batch * agents, -1)
    reset = jnp.repeat(first, agents, axis=1)
    assert isinstance(p.history, recurrent.Gru | recurrent.Lstm)
    unroll = recurrent.unroll if isinstance(p.history, recurrent.Gru) else recurrent.unroll_lstm
    end, y = unroll(p.history, start, flat, reset)  # pyright: ignore[reportArgumentType]  (one of two pairs)
    return end.reshape(carry.shape), y.reshape(time, batch, agents, -1)


def look_back(
    window: Float[Array, "slot b agent n"], x: Float[Array, "time b agent n"], first: Bool[Array, "time b"]
) -> tuple[Float[Array, "slot b agent n"], Float[Array, "time age b agent n"]]:
    """The window after a sequence, and for each row what the last rows of its episode held, newest first.

    A last column that is 1 marks what is there: what stands before the episode is zero in all columns.
    """
    slots, time = window.shape[0], x.shape[0]
    rows = jnp.concatenate([window, x])
    # Episode of each row; what was carried in belongs to the one under way.
    episode = jnp.cumsum(first, axis=0)
    episode = jnp.concatenate([jnp.zeros((slots, first.shape[1]), episode.dtype), episode])

    def aged(age: int) -> Array:
        at = slice(slots - age, slots - age + time)
        return jnp.where((episode[at] == episode[slots:])[..., None, None], rows[at], 0.0)

    seen = jnp.stack([aged(age) for age in range(slots + 1)], axis=1)
    # The newest first in `seen`, the oldest first in the window.
    return seen[-1, :slots][::-1], seen


def attend(
    p: Attention, x: Float[Array, "*b agent width"], alive: Bool[Array, "*b agent"], heads: int
) -> tuple[Float[Array, "*b agent width"], Float[Array, "*b agent seen"]]:
    """Tokens that have looked at those of living agents, and at whom they looked (the mean of all heads)."""
    q, k, v = jnp.split(p.look(x), 3, axis=-1)
    agents, size = x.shape[-2], x.shape[-1] // heads
    few = agents <= _FEW
    # Sums over the columns of a head, as a product.
    sums = jnp.repeat(jnp.eye(heads), size, axis=0)
    split = lambda y: y.reshape(*y.shape[:-1], heads, size)  # noqa: E731
    if few:
        scores = jnp.stack([(q * k[..., j : j + 1, :]) @ sums for j in range(agents)], axis=-1)
    else:
        scores = jnp.einsum("...qhd,...khd->...qhk", split(q), split(k))
    # Not minus infinity: where everyone is dead, the row counts for nothing but must stay finite.
    weights = jax.nn.softmax(jnp.where(alive[..., None, None, :], scores / size**0.5, -1e9))
    if few:
        looked = sum(((weights[..., j] @ sums.T) * v[..., j : j + 1, :] for j in range(agents)), jnp.zeros_like(v))
    else:
        looked = jnp.einsum("...qhk,...khd->...qhd", weights, split(v)).reshape(x.shape)
    return x + p.out(looked), jnp.mean(weights, axis=-2)


def team_token(x: Float[Array, "*b agent width"], alive: Bool[Array, "*b agent"]) -> Float[Array, "*b one width"]:
    """The mean over living agents."""
    here = alive[..., None].astype(jnp.float32)
    return jnp.sum(here * x, axis=-2, keepdims=True) / jnp.maximum(jnp.sum(here, axis=-2, keepdims=True), 1.0)


class Embedded(eqx.Module):
    """Arrays of an `EmbeddedNet`."""

    embedding: Float[Array, "agent embed"]
    hidden: Linear
    bank: Params
    """Weights are sums of these over hidden units: leaves lead with an axis of units; None where none are generated."""
    shared: Params
    """Weights that all agents share; None where they are generated."""


@dataclass(frozen=True)
class EmbeddedNet:
    """A `Net` whose weights are generated from an embedding of each agent (HyperMARL, Tessera et al. 2025)."""

    net: Net
    embed: int
    """Numbers of an embedding."""
    width: int
    """Hidden units of the generator."""
    only_after: bool
    """Generate only the layers after the core; all agents share the others."""

    @property
    def weights(self) -> Literal["per_agent"]:
        """Every agent has its own."""
        return "per_agent"

    @property
    def hidden(self) -> int:
        """Length of one agent's carry."""
        return self.net.hidden

    def init(
        self,
        key: Array,
        agents: int,
        n_in: int,
        n_out: int,
        gain: float,
        entities: tuple[Entities, ...] = (),
        image: tuple[int, ...] = (),
    ) -> Embedded:
        """Fresh weights; each agent's generated matrices are orthogonal, as those of a `Net` of its own would be."""
        embedding = orthogonal(stream(key, "embedding"), agents, self.embed, self.embed**0.5)
        hidden = linear(stream(key, "hidden"), self.embed, self.width, 1.0)
        # Products and sums of a pseudoinverse: what the hidden units make of it are the wanted weights.
        solve = _right_inverse(jnp.tanh(hidden(embedding)))
        sizes = (agents, n_in, n_out, gain, entities, image)
        wanted = replace(self.net, weights="per_agent").init(stream(key, "net"), *sizes)
        shared = replace(self.net, weights="shared").init(stream(key, "shared"), *sizes)
        made = _generated(wanted, only_after=self.only_after)
        bank = jax.tree.map(lambda x: jnp.tensordot(solve, x, 1), eqx.filter(wanted, made))
        return Embedded(embedding, hidden, bank, eqx.filter(shared, made, inverse=True))

    def carry(self, *batch: int) -> Float[Array, "*b h"]:
        """A hidden state of zeros."""
        return self.net.carry(*batch)

    def generate(self, params: Embedded) -> Params:
        """The weights of all agents; every leaf leads with an agent axis."""
        units = jnp.tanh(params.hidden(params.embedding))
        made = jax.tree.map(lambda modes: jnp.tensordot(units, modes, 1), params.bank)
        same = jax.tree.map(lambda x: jnp.broadcast_to(x, (units.shape[0], *x.shape)), params.shared)
        return eqx.combine(made, same)

    def unroll(
        self,
        params: Embedded,
        carry: Float[Array, "b agent h"],
        x: Float[Array, "#time #b agent n_in"],
        first: Bool[Array, "time b"],
        entities: tuple[Entities, ...] = (),
        team: Float[Array, "time b n_team"] | None = None,
    ) -> tuple[Float[Array, "b agent h"], Float[Array, "time b agent n_out"]]:
        """As `Net.unroll`."""
        net = replace(self.net, weights="per_agent")
        return net.unroll(self.generate(params), carry, x, first, entities, team=team)


_AFTER = ("after", "head", "bound", "aside")
"""Parts of a network that follow its core."""


def _generated(p: Params, *, only_after: bool) -> Params:
    """Whether each array is generated."""
    made = {x.name: not only_after or x.name in _AFTER for x in fields(p)}
    return Params(**{name: jax.tree.map(lambda _, to=to: to, getattr(p, name)) for name, to in made.items()})


def _right_inverse(x: Float[Array, "n m"]) -> Float[Array, "m n"]:
    """x' (x x')^-1 for independent rows, by Newton's iteration (no LAPACK: see `layers.orthogonal`)."""
    a = x @ x.T
    start = a / (jnp.max(jnp.sum(jnp.abs(a), axis=0)) * jnp.max(jnp.sum(jnp.abs(a), axis=1)))
    inverse = jax.lax.fori_loop(0, 60, lambda _, y: y @ (2.0 * jnp.eye(a.shape[0]) - a @ y), start)
    return x.T @ inverse
