"""Tokens, attention against plain numpy, and the transformer as a `Net`."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery.tasks  # noqa: F401  (fills the registry)
from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.core.types import Entities
from rookery.nets import transformer
from rookery.nets.agent import Net

TIME, BATCH, AGENTS, N_OUT = 4, 2, 3, 5
ENTITIES = (Entities("landmark", 1, 2, 2), Entities("self", 5, 1, 3))
N_IN = 11  # column 0 is no entity's, nor are 8 to 10 (what is appended to an observation)
NETS = [Net("transformer", width=8, layers=layers, heads=heads) for layers, heads in ((1, 2), (2, 4))]


def data() -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(jax.random.PRNGKey(1), (TIME, BATCH, AGENTS, N_IN))
    return x, jnp.zeros((TIME, BATCH), bool).at[2, 1].set(True)


def test_every_input_belongs_to_one_token() -> None:
    kinds = transformer.columns(ENTITIES, N_IN)
    assert [k.tolist() for k in kinds] == [[[1, 2], [3, 4]], [[5, 6, 7, 0, 8, 9, 10]]]
    assert [k.tolist() for k in transformer.columns((), 3)] == [[[0, 1, 2]]]
    assert [k.tolist() for k in transformer.columns(ENTITIES[:1], 6)] == [[[1, 2], [3, 4]], [[0, 5]]]
    assert [k.tolist() for k in transformer.columns((Entities("other", 0, 0, 2),), 2)] == [[[0, 1]]]


@pytest.mark.parametrize("task", ["mpe/simple_spread", "smax/3m", "smax/2s3z", "matrix/climbing"])
def test_tokens_of_tasks(task: str) -> None:
    spec = TASKS[task].spec
    kinds = transformer.columns(spec.entities, spec.obs_size + 2)
    assert sorted(np.concatenate([k.ravel() for k in kinds])) == list(range(spec.obs_size + 2))
    assert sum(len(k) for k in kinds) == max(1, sum(e.count for e in spec.entities))


def by_hand(p: transformer.Transformer, h: np.ndarray, x: np.ndarray, heads: int) -> np.ndarray:
    """One row of one agent: every token explicit, keys and values formed."""
    p = jax.tree.map(lambda w: np.asarray(w, np.float64), p)

    def normed(n: object, y: np.ndarray) -> np.ndarray:
        centred = y - y.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * n.scale + n.offset  # type: ignore

    tokens = [h + p.memory]
    for embed, index in zip(p.embed, transformer.columns(ENTITIES, N_IN), strict=True):
        tokens += list(x[index] @ embed.weight + embed.bias)
    y = np.stack(tokens)
    for block in p.blocks:
        seen = normed(block.norm_attention, y)
        q, k, v = seen @ block.query.weight + block.query.bias, seen @ block.key, seen @ block.value
        d = y.shape[1] // heads
        looked = np.zeros_like(y)
        for i in range(heads):
            part = slice(i * d, (i + 1) * d)
            e = np.exp(q[:, part] @ k[:, part].T / np.sqrt(d))
            looked[:, part] = e / e.sum(1, keepdims=True) @ v[:, part]
        y = y + looked @ block.out.weight + block.out.bias
        hidden = np.maximum(normed(block.norm_dense, y) @ block.dense[0].weight + block.dense[0].bias, 0)
        y = y + hidden @ block.dense[1].weight + block.dense[1].bias
    return normed(p.norm, y[0])


@pytest.mark.parametrize("net", NETS, ids=lambda n: f"{n.layers} layers")
def test_attention_by_hand(net: Net) -> None:
    params = net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, ENTITIES)
    assert isinstance(params.core, transformer.Transformer)
    x, first = data()
    carry = jax.random.normal(jax.random.PRNGKey(2), (BATCH, AGENTS, 8))
    end, y = net.unroll(params, carry, x, first, ENTITIES)
    for b, i in np.ndindex(BATCH, AGENTS):
        h = np.asarray(carry[b, i], np.float64)
        for t in range(TIME):
            h = by_hand(params.core, np.zeros_like(h) if first[t, b] else h, np.asarray(x[t, b, i]), net.heads)
            np.testing.assert_allclose(y[t, b, i], h @ params.head.weight + params.head.bias, atol=1e-4)
        np.testing.assert_allclose(end[b, i], h, atol=1e-4)


@pytest.mark.parametrize("weights", ["shared", "per_agent"])
def test_step_by_step_equals_the_whole_sequence(weights: str) -> None:
    net = replace(NETS[1], weights=weights)
    params = net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, ENTITIES)
    x, first = data()
    carry = net.carry(BATCH, AGENTS)
    assert carry.shape == (BATCH, AGENTS, 8)
    end, whole = net.unroll(params, carry, x, first, ENTITIES)
    for t in range(TIME):
        carry, y = net.unroll(params, carry, x[t : t + 1], first[t : t + 1], ENTITIES)
        np.testing.assert_allclose(y[0], whole[t], atol=1e-5)
    np.testing.assert_allclose(carry, end, atol=1e-5)


def test_entities_of_one_kind_are_a_set() -> None:
    """Landmarks may come in any order; what is of another kind may not take their place."""
    net = NETS[0]
    params = net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, ENTITIES)
    x, first = data()
    _, y = net.unroll(params, net.carry(BATCH, AGENTS), x, first, ENTITIES)
    swapped = x[..., jnp.array([0, 3, 4, 1, 2, 5, 6, 7, 8, 9, 10])]
    np.testing.assert_allclose(net.unroll(params, net.carry(BATCH, AGENTS), swapped, first, ENTITIES)[1], y, atol=1e-5)
    other = x[..., jnp.array([0, 5, 6, 3, 4, 1, 2, 7, 8, 9, 10])]
    assert not np.allclose(net.unroll(params, net.carry(BATCH, AGENTS), other, first, ENTITIES)[1], y, atol=1e-3)


def test_gradients_reach_every_weight_and_the_past() -> None:
    net = NETS[1]
    params = net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, ENTITIES)
    x, _ = data()
    first = jnp.zeros((TIME, BATCH), bool)

    def last_row(params: object, carry: jax.Array) -> jax.Array:
        return jnp.sum(net.unroll(params, carry, x, first, ENTITIES)[1][-1] ** 2)  # type: ignore

    to_params, to_carry = jax.grad(last_row, argnums=(0, 1))(params, net.carry(BATCH, AGENTS))
    assert np.all(np.abs(to_carry).max(axis=-1) > 0)
    for path, g in jax.tree_util.tree_leaves_with_path(to_params):
        assert np.any(np.asarray(g) != 0), jax.tree_util.keystr(path)


def test_sizes_that_do_not_fit_are_refused() -> None:
    for net in (Net("transformer", width=10, heads=4), Net("transformer", layers=0), Net("transformer", heads=0)):
        with pytest.raises(ConfigError, match="transformer"):
            net.check()
    Net("mlp", width=10, heads=4).check()
