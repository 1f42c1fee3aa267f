"""`Net`: shared and per-agent weights, sequences and single steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit

from rookery.nets.agent import Net, Params

TIME, BATCH, AGENTS, N_IN, N_OUT = 5, 2, 3, 4, 6
NETS = [Net(), Net("gru", layers=1, layers_after=1), Net("mlp", activation="tanh", layer_norm=True)]


def data() -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(jax.random.PRNGKey(1), (TIME, BATCH, AGENTS, N_IN))
    return x, jnp.zeros((TIME, BATCH), bool).at[0].set(True).at[3, 1].set(True)


@partial(hasty_jit, static_argnums=(0, 1, 2))
def init(net: Net, agents: int, n_in: int) -> Params:
    return net.init(jax.random.PRNGKey(0), agents, n_in, N_OUT, 1.0)


@partial(hasty_jit, static_argnums=0)
def unroll(net: Net, *args: Any) -> tuple[jax.Array, jax.Array]:
    return net.unroll(*args)


def small(net: Net, weights: str) -> Net:
    return replace(net, width=8, weights=weights)


@pytest.mark.parametrize("net", NETS, ids=lambda n: f"{n.kind}-{n.activation}")
def test_per_agent_weights_are_separate_nets(net: Net) -> None:
    net, alone = small(net, "per_agent"), small(net, "shared")
    params = init(net, AGENTS, N_IN)
    x, first = data()
    carry, y = unroll(net, params, net.carry(BATCH, AGENTS), x, first)
    assert y.shape == (TIME, BATCH, AGENTS, N_OUT) and carry.shape == (BATCH, AGENTS, net.hidden)
    for i in range(AGENTS):
        own = jax.tree.map(lambda w, i=i: w[i], params)
        carry_i, y_i = unroll(alone, own, alone.carry(BATCH, 1), x[:, :, i : i + 1], first)
        np.testing.assert_allclose(y[:, :, i], y_i[:, :, 0], atol=1e-5)
        np.testing.assert_allclose(carry[:, i], carry_i[:, 0], atol=1e-5)
    assert not np.allclose(params.head.weight[0], params.head.weight[1])


@pytest.mark.parametrize("net", NETS, ids=lambda n: f"{n.kind}-{n.activation}")
def test_shared_weights_treat_agents_alike(net: Net) -> None:
    net = small(net, "shared")
    params = init(net, AGENTS, N_IN)
    x, first = data()
    _, y = unroll(net, params, net.carry(BATCH, AGENTS), x, first)
    order = jnp.array([2, 0, 1])
    _, permuted = unroll(net, params, net.carry(BATCH, AGENTS), x[:, :, order], first)
    np.testing.assert_allclose(y[:, :, order], permuted, atol=1e-5)


@pytest.mark.parametrize("own", ["each row's", "the same in all rows", "nothing"])
@pytest.mark.parametrize("weights", ["shared", "per_agent"])
@pytest.mark.parametrize("net", NETS, ids=lambda n: f"{n.kind}-{n.activation}")
def test_what_all_agents_see_alike_can_be_given_once(net: Net, weights: str, own: str) -> None:
    """Values and gradients are those of inputs that are put together for each agent."""
    net = small(net, weights)
    x, first = data()
    x = {"each row's": x, "the same in all rows": jnp.eye(AGENTS)[None, None], "nothing": x[..., :0]}[own]
    team = jax.random.normal(jax.random.PRNGKey(3), (TIME, BATCH, 7))
    alike, each = (jnp.broadcast_to(y, (TIME, BATCH, AGENTS, y.shape[-1])) for y in (team[:, :, None], x))
    joined = jnp.concatenate([alike, each], axis=-1)
    params = init(net, AGENTS, joined.shape[-1])
    carry = net.carry(BATCH, AGENTS)

    def read(params: Params, x: jax.Array, team: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        _, y = net.unroll(params, carry, x, first, team=team)
        return jnp.sum(jnp.sin(y)), y

    both = hasty_jit(jax.value_and_grad(read, has_aux=True))
    (_, together), expected = both(params, joined, None)
    (_, apart), found = both(params, x, team)
    np.testing.assert_allclose(apart, together, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4), found, expected)


@pytest.mark.parametrize("weights", ["shared", "per_agent"])
@pytest.mark.parametrize("net", NETS, ids=lambda n: f"{n.kind}-{n.activation}")
def test_step_by_step_equals_the_whole_sequence(net: Net, weights: str) -> None:
    """Acting reads one row at a time, learning reads them all: both must see the same."""
    net = small(net, weights)
    params = init(net, AGENTS, N_IN)
    x, first = data()
    carry = jax.random.normal(jax.random.PRNGKey(2), (BATCH, AGENTS, net.hidden))
    end, whole = unroll(net, params, carry, x, first)
    for t in range(TIME):
        carry, y = unroll(net, params, carry, x[t : t + 1], first[t : t + 1])
        np.testing.assert_allclose(y[0], whole[t], atol=1e-5)
    np.testing.assert_allclose(carry, end, atol=1e-5)


def test_an_mlp_by_hand() -> None:
    net = Net(width=2, layers=1)
    params = net.init(jax.random.PRNGKey(0), 1, 2, 1, 1.0)
    x = np.float32([0.5, -2.0])
    hidden = np.maximum(x @ np.asarray(params.before[0].weight) + np.asarray(params.before[0].bias), 0)
    expected = hidden @ np.asarray(params.head.weight)
    _, y = net.unroll(params, net.carry(1, 1), jnp.asarray(x).reshape(1, 1, 1, 2), jnp.ones((1, 1), bool))
    np.testing.assert_allclose(y.reshape(-1), expected, atol=1e-6)


def test_the_gain_scales_the_head() -> None:
    for gain in (0.01, 1.0):
        w = Net(width=16).init(jax.random.PRNGKey(0), 1, 4, 5, gain).head.weight
        np.testing.assert_allclose(w.T @ w, gain**2 * np.eye(5), atol=1e-5 * gain)
