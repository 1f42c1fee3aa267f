"""Mixers: monotone where they must be, and what the formulas say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rookery.nets.mixers import Mixer, QmixParams

AGENTS, STATE = 3, 5


def test_none_and_vdn() -> None:
    q, state = jnp.array([[1.0, 2.0, 4.0]]), jnp.zeros((1, STATE))
    for kind, expected in (("none", [[1, 2, 4]]), ("vdn", [[7]])):
        mixer = Mixer(kind)
        assert mixer.init(jax.random.PRNGKey(0), AGENTS, STATE) == ()
        np.testing.assert_array_equal(mixer((), q, state), expected)


def qmix() -> tuple[Mixer, QmixParams]:
    mixer = Mixer("qmix", embed=4, hyper=6)
    params = mixer.init(jax.random.PRNGKey(0), AGENTS, STATE)
    assert isinstance(params, QmixParams)
    return mixer, params


def test_qmix_equals_its_formula() -> None:
    mixer, params = qmix()
    rng = np.random.default_rng(0)
    q, s = rng.normal(size=AGENTS), rng.normal(size=STATE)

    def dense(layer: object, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)

    def two(layers: tuple, x: np.ndarray) -> np.ndarray:
        return dense(layers[1], np.maximum(dense(layers[0], x), 0))

    pre = q @ np.abs(two(params.w1, s)).reshape(AGENTS, 4) + dense(params.b1, s)
    hidden = np.where(pre > 0, pre, np.exp(pre) - 1)
    expected = hidden @ np.abs(two(params.w2, s)) + two(params.b2, s)
    have = mixer(params, jnp.asarray(q, jnp.float32), jnp.asarray(s, jnp.float32))
    np.testing.assert_allclose(have, expected, rtol=1e-4, atol=1e-5)


def test_qmix_is_monotone_in_every_agent_and_depends_on_the_state() -> None:
    mixer, params = qmix()
    q = 5 * jax.random.normal(jax.random.PRNGKey(1), (500, AGENTS))
    state = 3 * jax.random.normal(jax.random.PRNGKey(2), (500, STATE))
    slopes = jax.vmap(jax.grad(lambda q, s: mixer(params, q, s)[0]))(q, state)
    assert bool(jnp.all(slopes >= 0)) and bool(jnp.mean(slopes > 0) > 0.9)
    other = jax.vmap(jax.grad(lambda q, s: mixer(params, q, s)[0]))(q, jnp.roll(state, 1, axis=0))
    assert not np.allclose(slopes, other, atol=1e-3)


def test_the_team_chooses_what_each_agent_chooses() -> None:
    """The joint action of individual argmaxes maximises the mixed value over all joint actions."""
    mixer, params = qmix()
    q = jax.random.normal(jax.random.PRNGKey(3), (40, AGENTS, 4))
    state = jax.random.normal(jax.random.PRNGKey(4), (40, STATE))
    joint = jnp.stack(jnp.meshgrid(*[jnp.arange(4)] * AGENTS, indexing="ij"), -1).reshape(-1, AGENTS)
    values = q[:, jnp.arange(AGENTS), joint]  # [example, joint action, agent]
    total = mixer(params, values, jnp.broadcast_to(state[:, None], (40, len(joint), STATE)))[..., 0]
    best = mixer(params, jnp.max(q, axis=-1), state)[:, 0]
    np.testing.assert_allclose(best, jnp.max(total, axis=1), rtol=1e-5)
