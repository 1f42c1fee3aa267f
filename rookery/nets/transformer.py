"""Attention over the entities of an observation and one recurrent token (as UPDeT, Hu et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rookery.core.types import Entities
from rookery.nets.layers import Linear, Norm, linear, norm, orthogonal


class Block(eqx.Module):
    """Pre-norm attention, then a pre-norm two-layer network."""

    norm_attention: Norm
    query: Linear
    key: Float[Array, "width width"]
    value: Float[Array, "width width"]
    out: Linear
    norm_dense: Norm
    dense: tuple[Linear, Linear]


class Transformer(eqx.Module):
    embed: tuple[Linear, ...]
    """One for each kind of token; its bias says of which kind a token is."""
    slots: tuple[Float[Array, "_count width"] | None, ...]
    """Which token of an ordered kind a token is; None for kinds that are sets."""
    memory: Float[Array, "width"]
    """What tells the recurrent token from the others."""
    blocks: tuple[Block, ...]
    norm: Norm


@dataclass(frozen=True)
class Kind:
    """Tokens of one kind."""

    index: np.ndarray
    """Which inputs each token reads: [count, size]."""
    ordered: bool = False
    first_action: int = -1


class Heard(eqx.Module):
    """Tokens of other agents that are looked at beside one's own."""

    tokens: Float[Array, "time *b heard width"]
    present: Bool[Array, "time *b heard"]


def kinds_of(entities: tuple[Entities, ...], n_in: int) -> tuple[Kind, ...]:
    """The tokens of an input of `n_in` numbers. What is no entity's joins `self`, or is a last token."""
    present = [e for e in entities if e.count]
    blocks = [e.start + np.arange(e.count * e.size).reshape(e.count, e.size) for e in present]
    rest = np.setdiff1d(np.arange(n_in), np.concatenate([np.zeros(0, int), *(index.ravel() for index in blocks)]))
    kinds, joined = [], False
    for e, index in zip(present, blocks, strict=True):
        if e.name == "self" and len(index) == 1 and not joined:
            index, joined = np.concatenate([index[0], rest])[None], True
        kinds.append(Kind(index, e.ordered, e.first_action))
    return tuple(kinds) if joined or not rest.size else (*kinds, Kind(rest[None]))


def bound(kinds: tuple[Kind, ...]) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Tokens (0 is the recurrent one) and the actions that are about them, for each kind that has any."""
    ends = 1 + np.cumsum([len(kind.index) for kind in kinds])
    found = []
    for kind, end in zip(kinds, ends, strict=True):
        if kind.first_action >= 0:
            n = len(kind.index)
            found.append((np.arange(end - n, end), kind.first_action + np.arange(n)))
    return tuple(found)


def unbound(entities: tuple[Entities, ...]) -> tuple[Entities, ...]:
    """The same entities for a network whose outputs are not actions."""
    return tuple(replace(e, first_action=-1) for e in entities)


def transformer(key: Array, kinds: tuple[Kind, ...], width: int, layers: int) -> Transformer:
    """Fresh weights. Slots begin at 0: until something is learned about them, entities of a kind are alike."""
    k_embed, k_memory, k_blocks = jax.random.split(key, 3)
    keys = jax.random.split(k_embed, len(kinds))
    embed = tuple(linear(k, kind.index.shape[1], width) for k, kind in zip(keys, kinds, strict=True))
    slots = tuple(jnp.zeros((len(kind.index), width)) if kind.ordered else None for kind in kinds)
    blocks = tuple(_block(k, width) for k in jax.random.split(k_blocks, layers))
    return Transformer(embed, slots, 0.1 * jax.random.normal(k_memory, (width,)), blocks, norm(width))


def _block(key: Array, width: int) -> Block:
    k = jax.random.split(key, 6)
    return Block(
        norm_attention=norm(width),
        query=linear(k[0], width, width),
        key=orthogonal(k[1], width, width),
        value=orthogonal(k[2], width, width),
        # What returns to the residual stream starts small, so that a fresh block is near the identity.
        out=linear(k[3], width, width, 0.1),
        norm_dense=norm(width),
        dense=(linear(k[4], width, 2 * width, 2**0.5), linear(k[5], 2 * width, width, 0.1)),
    )


def unroll(
    p: Transformer,
    h: Float[Array, "b width"],
    x: Float[Array, "time b n_in"],
    reset: Bool[Array, "time b"],
    kinds: tuple[Kind, ...],
    heads: int,
    heard: Heard | None = None,
) -> tuple[Float[Array, "b width"], Float[Array, "time b read width"]]:
    """Final recurrent token, and of every row the tokens that are read: this one, then those that actions are about.

    `reset` zeroes the recurrent token before its row is read.
    """
    read = np.concatenate([np.zeros(1, int), *(tokens for tokens, _ in bound(kinds))])

    # Keeping what attention computes of every row costs more than computing it twice: it does not fit into the cache.
    @jax.checkpoint
    def step(h: Array, now: tuple[Array, Array, Heard | None]) -> tuple[Array, Array]:
        x_t, reset_t, heard_t = now
        own = jnp.where(reset_t[:, None], 0.0, h) + p.memory
        seen = [_embedded(*of_kind, x_t) for of_kind in zip(p.embed, p.slots, kinds, strict=True)]
        y = jnp.concatenate([own[:, None], *seen], axis=1)
        there = None
        if heard_t is not None:
            there = jnp.concatenate([jnp.ones(y.shape[:2], bool), heard_t.present], axis=1)
            y = jnp.concatenate([y, heard_t.tokens], axis=1)
        for block in p.blocks[:-1]:
            y = _attend(block, y, y, heads, there)
        # The last layer computes only the tokens that are read.
        out = p.norm(_attend(p.blocks[-1], y[:, read] if read.size > 1 else y[:, :1], y, heads, there))
        return out[:, 0], out

    return jax.lax.scan(step, h, (x, reset, heard))


def _embedded(
    embed: Linear, slots: Float[Array, "_count width"] | None, kind: Kind, x: Float[Array, "b n_in"]
) -> Float[Array, "b _count width"]:
    """The tokens of one kind."""
    tokens = embed(x[:, kind.index])
    return tokens if slots is None else tokens + slots


def _attend(
    p: Block,
    x: Float[Array, "b query width"],
    y: Float[Array, "b token width"],
    heads: int,
    there: Bool[Array, "b token"] | None,
) -> Float[Array, "b query width"]:
    """Tokens `x` look at those of the tokens `y` that are there."""
    n, seen = p.norm_attention(x), p.norm_attention(y)
    q = p.query(n).reshape(*x.shape[:2], heads, -1)
    # A key is looked at by few tokens (in the last layer by one), so q @ (key @ seen) is taken as (q @ key) @ seen, and
    # likewise for values.
    key, value = (w.reshape(-1, heads, w.shape[1] // heads) for w in (p.key, p.value))
    scores = jnp.einsum("bqhw,bkw->bqhk", jnp.einsum("bqhd,whd->bqhw", q, key), seen)
    if there is not None:
        scores = jnp.where(there[:, None, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores / q.shape[-1] ** 0.5)
    looked = jnp.einsum("bqhw,whd->bqhd", jnp.einsum("bqhk,bkw->bqhw", weights, seen), value).reshape(x.shape)
    x = x + p.out(looked)
    return x + p.dense[1](jax.nn.relu(p.dense[0](p.norm_dense(x))))
