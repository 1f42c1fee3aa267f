"""Tokens, attention against plain numpy, and the transformer as a `Net`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import Array
from small import hasty_jit

import rookery.tasks  # noqa: F401  (fills the registry)
from rookery.algorithms.ppo import PPO, Value
from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.core.types import Clock, Collect, Entities
from rookery.nets import transformer
from rookery.nets.agent import Net, Params
from rookery.training.compiled.rollout import collect, open_worlds

TIME, BATCH, AGENTS, N_OUT = 4, 2, 3, 5
ENTITIES = (Entities("landmark", 1, 2, 2), Entities("self", 5, 1, 3))
NAMED = (replace(ENTITIES[0], first_action=1, ordered=True), ENTITIES[1])
N_IN = 11  # column 0 is no entity's, nor are 8 to 10 (what is appended to an observation)
NETS = [Net("transformer", width=8, layers=layers, heads=heads) for layers, heads in ((1, 2), (2, 4))]


def data() -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(jax.random.PRNGKey(1), (TIME, BATCH, AGENTS, N_IN))
    return x, jnp.zeros((TIME, BATCH), bool).at[2, 1].set(True)


def test_every_input_belongs_to_one_token() -> None:
    def columns(entities: tuple[Entities, ...], n_in: int) -> list[list[list[int]]]:
        return [k.index.tolist() for k in transformer.kinds_of(entities, n_in)]

    assert columns(ENTITIES, N_IN) == [[[1, 2], [3, 4]], [[5, 6, 7, 0, 8, 9, 10]]]
    assert columns((), 3) == [[[0, 1, 2]]]
    assert columns(ENTITIES[:1], 6) == [[[1, 2], [3, 4]], [[0, 5]]]
    assert columns((Entities("other", 0, 0, 2),), 2) == [[[0, 1]]]


@pytest.mark.parametrize("task", ["mpe/simple_spread", "smax/3m", "smax/2s3z", "matrix/climbing"])
def test_tokens_of_tasks(task: str) -> None:
    spec = TASKS[task].spec
    kinds = [kind.index for kind in transformer.kinds_of(spec.entities, spec.obs_size + 2)]
    assert sorted(np.concatenate([k.ravel() for k in kinds])) == list(range(spec.obs_size + 2))
    assert sum(len(k) for k in kinds) == max(1, sum(e.count for e in spec.entities))


def by_hand(
    p: transformer.Transformer, h: np.ndarray, x: np.ndarray, heads: int, entities: tuple[Entities, ...]
) -> np.ndarray:
    """All tokens of one row of one agent: every token explicit, keys and values formed."""
    p = jax.tree.map(lambda w: np.asarray(w, np.float64), p)

    def normed(n: object, y: np.ndarray) -> np.ndarray:
        centred = y - y.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * n.scale + n.offset  # type: ignore

    tokens = [h + p.memory]
    for embed, slots, kind in zip(p.embed, p.slots, transformer.kinds_of(entities, N_IN), strict=True):
        tokens += list(x[kind.index] @ embed.weight + embed.bias + (0 if slots is None else slots))
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
    return normed(p.norm, y)


@pytest.mark.parametrize("entities", [ENTITIES, NAMED], ids=["sets", "named"])
@pytest.mark.parametrize("net", NETS, ids=lambda n: f"{n.layers} layers")
def test_attention_by_hand(net: Net, entities: tuple[Entities, ...]) -> None:
    params = jax.tree.map(lambda w: w + 0.05, net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, entities))
    assert isinstance(params.core, transformer.Transformer)
    x, first = data()
    carry = jax.random.normal(jax.random.PRNGKey(2), (BATCH, AGENTS, 8))
    end, y = net.unroll(params, carry, x, first, entities)
    for b, i in np.ndindex(BATCH, AGENTS):
        h = np.asarray(carry[b, i], np.float64)
        for t in range(TIME):
            start = np.zeros_like(h) if first[t, b] else h
            tokens = by_hand(params.core, start, np.asarray(x[t, b, i]), net.heads, entities)
            h, out = tokens[0], tokens[0] @ params.head.weight + params.head.bias
            if entities is NAMED:  # actions 1 and 2 are about the two landmarks, tokens 1 and 2
                about = tokens[1:3] @ params.bound[0].weight[:, 0] + params.bound[0].bias
                out = np.concatenate([out[:1], about, out[1:]])
            np.testing.assert_allclose(y[t, b, i], out, atol=1e-4)
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


SWAP = np.array([0, 3, 4, 1, 2, 5, 6, 7, 8, 9, 10])
"""The two landmarks change places."""


def test_what_is_about_an_entity_moves_with_it() -> None:
    """Without names, swapping two entities swaps what is about them, and leaves all else."""
    net, entities = NETS[1], (replace(ENTITIES[0], first_action=1), ENTITIES[1])
    params = net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, entities)
    x, first = data()
    _, y = net.unroll(params, net.carry(BATCH, AGENTS), x, first, entities)
    _, swapped = net.unroll(params, net.carry(BATCH, AGENTS), x[..., SWAP], first, entities)
    np.testing.assert_allclose(swapped, y[..., np.array([0, 2, 1, 3, 4])], atol=1e-5)
    assert np.abs(y[..., 1] - y[..., 2]).min() > 1e-3


def test_names_are_learned() -> None:
    """Ordered entities are alike in a fresh network, and no longer so after a step along any gradient."""
    net, entities = NETS[0], (replace(ENTITIES[0], ordered=True), ENTITIES[1])
    params = net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, entities)
    x, first = data()
    carry = net.carry(BATCH, AGENTS)

    def swaps(p: Params) -> float:
        a, b = (net.unroll(p, carry, y, first, entities)[1] for y in (x, x[..., SWAP]))
        return float(jnp.max(jnp.abs(a - b)))

    grads = jax.grad(lambda p: jnp.sum(net.unroll(p, carry, x, first, entities)[1] ** 2))(params)
    assert swaps(params) < 1e-5
    assert swaps(jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)) > 1e-3


def accuracy(net: Net, entities: tuple[Entities, ...], draw: Callable[[Array], tuple[Array, Array]]) -> float:
    """Of choosing among 8 as in `draw` (inputs, labels), after 300 small steps of supervised learning."""
    n_in = draw(jax.random.PRNGKey(0))[0].shape[1]
    params = net.init(jax.random.PRNGKey(0), 1, n_in, 8, 0.1, entities)
    adam = optax.adam(5e-3)

    def logits(params: Params, x: Array) -> Array:
        first = jnp.ones((1, x.shape[0]), bool)
        return net.unroll(params, net.carry(x.shape[0], 1), x[None, :, None], first, entities)[1][0, :, 0]

    def step(now: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], Array]:
        x, y = draw(key)
        loss = lambda p: jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits(p, x), y))  # noqa: E731
        right = jnp.mean(jnp.argmax(logits(now[0], x), axis=1) == y)
        updates, state = adam.update(jax.grad(loss)(now[0]), now[1])
        moved = jax.tree.map(jnp.add, now[0], updates)
        return (moved, state), right

    keys = jax.random.split(jax.random.PRNGKey(1), 300)
    _, right = hasty_jit(lambda params: jax.lax.scan(step, (params, adam.init(params)), keys))(params)
    return float(jnp.mean(right[-20:]))  # each batch is new: it was seen by no step before


SMALL = Net("transformer", width=16, layers=1, heads=2)


def sets(entities: tuple[Entities, ...]) -> tuple[Entities, ...]:
    """The same entities without names or actions."""
    return tuple(replace(e, first_action=-1, ordered=False) for e in entities)


def test_the_weakest_enemy_of_3m_is_found() -> None:
    """As SMAX lays it out: two allies, three enemies, oneself; an enemy's health comes first, 5 + k attacks enemy k."""
    spec = TASKS["smax/3m"].spec
    enemy = next(e for e in spec.entities if e.name == "enemy")
    assert (enemy.first_action, enemy.count, spec.action.width) == (5, 3, 8)

    def draw(key: Array) -> tuple[Array, Array]:
        x = jax.random.uniform(key, (64, spec.obs_size))
        return x, 5 + jnp.argmin(x[:, enemy.start : enemy.start + 3 * enemy.size : enemy.size], axis=1)

    assert accuracy(SMALL, spec.entities, draw) > 0.9
    # What is read out of the recurrent token alone cannot tell them apart.
    assert accuracy(SMALL, sets(spec.entities), draw) < 0.45


def test_a_landmark_named_by_its_index_is_found() -> None:
    """As simple_reference has it: the goal names a landmark, and the way there depends on where that one is."""
    entities = tuple(e for e in TASKS["mpe/simple_reference"].spec.entities if e.name != "word")
    assert [(e.name, e.start, e.ordered) for e in entities] == [
        ("self", 0, False), ("landmark", 2, True), ("goal", 8, False)
    ]  # fmt: skip

    def draw(key: Array) -> tuple[Array, Array]:
        x, goal = jax.random.normal(key, (128, 11)), jax.random.randint(key, (128,), 0, 3)
        right = x[jnp.arange(128), 2 + 2 * goal] > 0
        return x.at[:, 8:].set(jax.nn.one_hot(goal, 3)), right.astype(jnp.int32)

    known, blind = (accuracy(replace(SMALL, layers=2), e, draw) for e in (entities, sets(entities)))
    assert known > 0.9 > 0.8 > blind  # blind: at best the majority of three landmarks, 0.75


@pytest.mark.parametrize("sees", ["obs", "state", "both"])
def test_transformer_actors_and_critics(sees: Any) -> None:
    """An actor reads attacks out of its enemies; a critic has one output. Only observations have tokens."""
    task = TASKS["smax/3m"]
    spec, algo = task.spec, PPO(actor=SMALL, critic=SMALL, value=Value(sees=sees), collect=Collect(envs=2, length=4))
    if sees != "obs":
        with pytest.raises(ConfigError, match="which has none"):
            algo.check(spec)
        algo = replace(algo, critic=replace(SMALL, kind="mlp"))
    algo.check(spec)
    state = algo.init(spec, jax.random.PRNGKey(0))
    actor, critic = state.nets["actor"].net, state.nets["critic"]
    assert actor.head.weight.shape == (16, 5) and len(actor.bound) == 1 and actor.bound[0].weight.shape == (16, 1)
    assert critic.head.weight.shape == (16, 1) and critic.bound == ()

    def iteration(state: Any, key: Array) -> Any:
        clock = Clock(jnp.int32(0), jnp.uint32(0), jnp.float32(100))
        worlds = open_worlds(algo, task, 2, key)
        _, rollout, *_ = collect(algo, task, algo.policy(state), worlds, clock, key)
        return algo.update(spec, state, rollout, clock, key)[0]

    after = jax.eval_shape(iteration, state, jax.random.PRNGKey(0))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


def test_gradients_reach_every_weight_and_the_past() -> None:
    net = NETS[1]
    params = net.init(jax.random.PRNGKey(0), AGENTS, N_IN, N_OUT, 1.0, NAMED)
    x, _ = data()
    first = jnp.zeros((TIME, BATCH), bool)

    def last_row(params: object, carry: jax.Array) -> jax.Array:
        return jnp.sum(net.unroll(params, carry, x, first, NAMED)[1][-1] ** 2)  # type: ignore

    to_params, to_carry = jax.grad(last_row, argnums=(0, 1))(params, net.carry(BATCH, AGENTS))
    assert np.all(np.abs(to_carry).max(axis=-1) > 0)
    for path, g in jax.tree_util.tree_leaves_with_path(to_params):
        assert np.any(np.asarray(g) != 0), jax.tree_util.keystr(path)


def test_sizes_that_do_not_fit_are_refused() -> None:
    for net in (Net("transformer", width=10, heads=4), Net("transformer", layers=0), Net("transformer", heads=0)):
        with pytest.raises(ConfigError, match="transformer"):
            net.check()
    Net("mlp", width=10, heads=4).check()
