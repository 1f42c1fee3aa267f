"""Attention over the entities of an observation and one recurrent token (as UPDeT, Hu et al. 2021)."""

from __future__ import annotations

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
    memory: Float[Array, "width"]
    """What tells the recurrent token from the others."""
    blocks: tuple[Block, ...]
    norm: Norm


class Heard(eqx.Module):
    """Tokens of other agents that are looked at beside one's own."""

    tokens: Float[Array, "time *b heard width"]
    present: Bool[Array, "time *b heard"]


def columns(entities: tuple[Entities, ...], n_in: int) -> tuple[np.ndarray, ...]:
    """Which inputs each token reads, [count, size] per kind. What is no entity's joins `self`, or is a last token."""
    blocks = [(e.name, e.start + np.arange(e.count * e.size).reshape(e.count, e.size)) for e in entities if e.count]
    rest = np.setdiff1d(np.arange(n_in), np.concatenate([np.zeros(0, int), *(index.ravel() for _, index in blocks)]))
    kinds, joined = [], False
    for name, index in blocks:
        if name == "self" and len(index) == 1 and not joined:
            index, joined = np.concatenate([index[0], rest])[None], True
        kinds.append(index)
    return tuple(kinds) if joined or not rest.size else (*kinds, rest[None])


def transformer(key: Array, kinds: tuple[np.ndarray, ...], width: int, layers: int) -> Transformer:
    """Fresh weights."""
    k_embed, k_memory, k_blocks = jax.random.split(key, 3)
    keys = jax.random.split(k_embed, len(kinds))
    embed = tuple(linear(k, index.shape[1], width) for k, index in zip(keys, kinds, strict=True))
    blocks = tuple(_block(k, width) for k in jax.random.split(k_blocks, layers))
    return Transformer(embed, 0.1 * jax.random.normal(k_memory, (width,)), blocks, norm(width))


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
    kinds: tuple[np.ndarray, ...],
    heads: int,
    heard: Heard | None = None,
) -> tuple[Float[Array, "b width"], Float[Array, "time b width"]]:
    """Final recurrent token and all of them; `reset` zeroes it before its row is read."""

    # Keeping what attention computes of every row costs more than computing it twice: it does not fit into the cache.
    @jax.checkpoint
    def step(h: Array, now: tuple[Array, Array, Heard | None]) -> tuple[Array, Array]:
        x_t, reset_t, heard_t = now
        own = jnp.where(reset_t[:, None], 0.0, h) + p.memory
        seen = [embed(x_t[:, index]) for embed, index in zip(p.embed, kinds, strict=True)]
        y = jnp.concatenate([own[:, None], *seen], axis=1)
        there = None
        if heard_t is not None:
            there = jnp.concatenate([jnp.ones(y.shape[:2], bool), heard_t.present], axis=1)
            y = jnp.concatenate([y, heard_t.tokens], axis=1)
        for block in p.blocks[:-1]:
            y = _attend(block, y, y, heads, there)
        # Of the last layer only the recurrent token is read.
        h = p.norm(_attend(p.blocks[-1], y[:, :1], y, heads, there)[:, 0])
        return h, h

    return jax.lax.scan(step, h, (x, reset, heard))


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
