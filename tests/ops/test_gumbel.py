"""Straight-through Gumbel-softmax: what is drawn, and the gradient of each surrogate against numpy's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.ops import gumbel
from rookery.ops.gumbel import Gumbel, Kind

KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "relaxed")
DRAWS, FEW = 40_000, 2_000
"""Of one size or the other, so that each estimator has two programs."""
LOGITS = np.float32([0.3, -1.2, 2.0, 0.0, 0.7])
ALL, SOME = np.ones(5, bool), np.array([True, True, False, True, False])
WEIGHTS = np.float32([[1, -2, 0.5, 3, -1], [0, 1, 4, -1, 2], [2, 2, -3, 0, 1], [-1, 0.5, 1, 2, -2], [3, -1, 0, 1, 1]])
"""Row D is what a critic would send back to the sample D, so that estimators that pair them wrongly are found out."""
NOW = jnp.uint32(0)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def pull_back(y: np.ndarray, w: np.ndarray, temperature: float) -> np.ndarray:
    """Gradient of w . softmax(x / temperature) with respect to x, where the softmax is y."""
    return y * (w - np.sum(y * w, axis=-1, keepdims=True)) / temperature


@functools.cache
def program(config: Gumbel) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """One compiled program for all logits, masks and temperatures (a traced value, as in a sweep)."""

    @jax.jit
    def run(logits: jax.Array, legal: jax.Array, temperature: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        draw = replace(config, temperature=temperature).draw
        sample, pull = jax.vjp(lambda x: draw(key, x, legal, NOW), logits)
        return sample, pull(jnp.asarray(WEIGHTS)[jnp.argmax(sample, axis=-1)])[0]

    return run


def draws(
    config: Gumbel, logits: np.ndarray, legal: np.ndarray, n: int = DRAWS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """n samples, and the gradients of WEIGHTS[D] . sample with respect to the logits."""
    run, temperature = program(replace(config, temperature=0.0)), jnp.float32(config.temperature)
    shape = (DRAWS if n > FEW else FEW, 5)
    args = (jnp.broadcast_to(logits, shape), jnp.broadcast_to(legal, shape), temperature, jax.random.PRNGKey(seed))
    sample, gradient = run(*args)
    return np.asarray(sample)[:n], np.asarray(gradient)[:n]


def assert_one_hot(sample: np.ndarray, legal: np.ndarray) -> None:
    """To the bit: a critic must not see 0.99999994."""
    assert set(np.unique(sample)) <= {0.0, 1.0}
    assert np.all(sample.sum(axis=-1) == 1.0) and np.all(sample[..., ~legal] == 0.0)


@pytest.mark.parametrize("legal", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_legal_one_hots_that_follow_softmax(kind: Kind, legal: np.ndarray) -> None:
    sample, _ = draws(Gumbel(kind), LOGITS, legal, DRAWS)
    assert_one_hot(sample, legal)
    expected = softmax(LOGITS[legal].astype(np.float64)) * DRAWS
    assert stats.chisquare(sample.sum(axis=0)[legal], expected).pvalue > 1e-3


# -- gradients: the definitions once more, in numpy, by brute force ---------------------------------------------
def st_gradients(x: np.ndarray, temperature: float, weights: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """n samples D and gradients of the relaxed sample that each is the argmax of."""
    noisy = x + np.random.default_rng(7).gumbel(size=(n, len(x)))
    chosen = noisy.argmax(axis=-1)
    return chosen, pull_back(softmax(noisy / temperature), weights[chosen], temperature)


def gst_gradient(x: np.ndarray, temperature: float, gap: float, chosen: int, w: np.ndarray) -> np.ndarray:
    """The chosen logit is raised to the top, the others are at least `gap` below it."""
    moved = np.minimum(x, x.max() - gap)
    moved[chosen] = x.max()
    return pull_back(softmax(moved / temperature), w, temperature)


def agree(a: np.ndarray, b: np.ndarray) -> None:
    """Two sets of gradients [n, action] have the same mean, within 4.5 standard errors of their difference."""
    error = np.sqrt(a.var(axis=0) / len(a) + b.var(axis=0) / len(b))
    assert np.all(error < 0.1)
    assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 4.5 * error + 1e-5), (a.mean(axis=0), b.mean(axis=0))


@pytest.mark.parametrize("temperature", [0.3, 1.5])
@pytest.mark.parametrize("legal", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("kind", ["st", "tags", "grmck"])
def test_gradient_is_that_of_the_relaxed_sample(kind: Kind, legal: np.ndarray, temperature: float) -> None:
    """Given each action: noise that is conditioned on it is what rejection sampling accepts."""
    sample, gradient = draws(Gumbel(kind, temperature), LOGITS, legal, DRAWS, seed=1)
    assert np.all(gradient[:, ~legal] == 0.0)
    weights = WEIGHTS[legal][:, legal]
    chosen, expected = st_gradients(LOGITS[legal].astype(np.float64), temperature, weights, 400_000)
    mine = sample[:, legal].argmax(axis=-1)
    for action in range(int(legal.sum())):
        agree(gradient[:, legal][mine == action], expected[chosen == action])


@pytest.mark.parametrize("gap", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("legal", [ALL, SOME], ids=["all", "some"])
def test_gradient_of_gst_given_each_action(legal: np.ndarray, gap: float) -> None:
    """Nothing is random in this surrogate but the action."""
    sample, gradient = draws(Gumbel("gst", 0.6, gap=gap), LOGITS, legal, 2_000)
    mine = sample[:, legal].argmax(axis=-1)
    assert np.all(gradient[:, ~legal] == 0.0) and set(mine) == set(range(int(legal.sum())))
    for action in range(int(legal.sum())):
        w = WEIGHTS[legal][:, legal][action]
        expected = gst_gradient(LOGITS[legal].astype(np.float64), 0.6, gap, action, w)
        np.testing.assert_allclose(
            gradient[:, legal][mine == action], np.broadcast_to(expected, (sum(mine == action), len(w))), atol=2e-6
        )


def test_gap_by_hand() -> None:
    """Logits (1, 0), the second chosen, gap 1, temperature 1: both are moved, to (0, 1), so y = (0.2689, 0.7311)."""
    logits, legal = jnp.array([1.0, 0.0]), jnp.ones(2, bool)
    keys = jax.random.split(jax.random.PRNGKey(0), 50)
    key = next(k for k in keys if gumbel.gst(logits, legal, k, 1.0)[1] == 1)
    gradient = jax.grad(lambda x: gumbel.gst(x, legal, key, 1.0)[1])(logits)
    np.testing.assert_allclose(gradient, [-0.19661193, 0.19661193], rtol=1e-5)


def test_more_noise_vectors_lower_the_variance() -> None:
    """grmck's gradients, given the action, have a variance that falls as 1 / samples."""

    def variance(samples: int) -> float:
        sample, gradient = draws(Gumbel("grmck", 1.0, samples=samples), LOGITS, ALL, DRAWS)
        return float(gradient[sample[:, 2] == 1].var(axis=0).sum())

    assert variance(5) == pytest.approx(variance(1) / 5, rel=0.1)


# -- edges ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_ties_give_one_action(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal logits, and equal noise: as rounded noise sometimes is."""
    equal = np.zeros(5, np.float32)
    sample, _ = draws(Gumbel(kind), equal, SOME, 2_000)
    assert_one_hot(sample, SOME)
    assert np.all(sample.sum(axis=0)[SOME] > 500)
    monkeypatch.setattr(jax.random, "gumbel", lambda key, shape: jnp.zeros(shape))
    one = lambda x: Gumbel(kind).draw(jax.random.PRNGKey(0), x, jnp.asarray(SOME), NOW)  # noqa: E731
    sample, pull = jax.vjp(one, jnp.asarray(equal))
    assert_one_hot(np.asarray(sample), SOME)
    assert np.all(np.isfinite(pull(jnp.asarray(WEIGHTS[0]))[0]))


@pytest.mark.parametrize("legal", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
@pytest.mark.parametrize("temperature", [1e-3, 1e3])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_temperatures_and_logits_stay_finite(
    kind: Kind, temperature: float, scale: float, legal: np.ndarray
) -> None:
    sample, gradient = draws(Gumbel(kind, temperature), LOGITS * scale, legal, 2_000)
    assert_one_hot(sample, legal)
    assert np.all(np.isfinite(gradient)) and np.all(gradient[:, ~legal] == 0.0)
    # A softmax changes by at most 1 / (4 temperature) with each logit; weights differ by at most 7.
    assert np.all(np.abs(gradient) <= 7 / (4 * temperature) * 1.01)


@pytest.mark.parametrize("junk", [1e30, -1e30, np.inf, np.nan])
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_at_illegal_actions_has_no_effect(kind: Kind, junk: float) -> None:
    """A network's padded columns hold anything."""
    sample, gradient = draws(Gumbel(kind), LOGITS, SOME, 500)
    sample_junk, gradient_junk = draws(Gumbel(kind), np.where(SOME, LOGITS, np.float32(junk)), SOME, 500)
    np.testing.assert_array_equal(sample, sample_junk)
    np.testing.assert_array_equal(gradient, gradient_junk)


@pytest.mark.parametrize("temperature", [1e-3, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_legal_action_is_taken_and_teaches_nothing(kind: Kind, temperature: float) -> None:
    only = np.arange(5) == 3
    sample, gradient = draws(Gumbel(kind, temperature), LOGITS, only, 200)
    assert np.all(sample == only) and np.all(gradient == 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_without_a_legal_action_stays_finite(kind: Kind) -> None:
    """A dead agent may have none; its sample is masked later, but 0 * nan would not be."""
    sample, gradient = draws(Gumbel(kind), LOGITS, np.zeros(5, bool), 50)
    assert np.all(sample.sum(axis=-1) == 1.0) and np.all(gradient == 0.0)


# -- the temperature over time ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("steps", "expected"), [(0, 2.5), (1_000_000, 1.11803), (500_000, 1.67185), (2_000_000, 0.5), (3_000_000_000, 0.5)]
)
def test_temperature_falls_geometrically_with_environment_steps(steps: int, expected: float) -> None:
    assert float(gumbel.annealed(jnp.uint32(steps), 2.5, 0.5, 2_000_000)) == pytest.approx(expected, rel=1e-5)
    assert float(Gumbel("tags").temperature_at(jnp.uint32(steps))) == pytest.approx(expected, rel=1e-5)
    assert float(Gumbel("st").temperature_at(jnp.uint32(steps))) == pytest.approx(0.6)


def test_tags_is_st_at_the_temperature_of_the_step() -> None:
    logits, legal, key = jnp.asarray(LOGITS[None]), jnp.asarray(SOME[None]), jax.random.PRNGKey(5)
    w = jnp.asarray(WEIGHTS[0])

    def gradient(config: Gumbel, steps: int) -> np.ndarray:
        return np.asarray(jax.grad(lambda x: jnp.sum(config.draw(key, x, legal, jnp.uint32(steps)) * w))(logits))

    for steps, temperature in ((0, 2.5), (2_000_000, 0.5)):
        np.testing.assert_allclose(gradient(Gumbel("tags"), steps), gradient(Gumbel("st", temperature), 0), rtol=1e-5)
    assert not np.allclose(gradient(Gumbel("tags"), 0), gradient(Gumbel("tags"), 2_000_000))


# -- the config -------------------------------------------------------------------------------------------------
def test_defaults_are_those_tuned_for_particle_worlds() -> None:
    """METHODS: st 0.6; gst 0.6, gap 1; tags 2.5 -> 0.5 over 2M; grmck 1 with 5 samples."""
    tuned = {kind: float(Gumbel(kind).temperature_at(NOW)) for kind in KINDS}
    assert tuned == pytest.approx({"st": 0.6, "gst": 0.6, "tags": 2.5, "grmck": 1.0})
    config = Gumbel()
    assert (config.end, config.period, config.gap, config.samples) == (0.5, 2_000_000, 1.0, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_branch_has_a_draw_of_its_own(kind: Kind) -> None:
    """Branches of 2 and 3 actions, the first of the second branch illegal; rows [env, agent] differ too."""
    shape, legal = (DRAWS // 4, 4, 5), np.array([True, True, False, True, True])
    logits, mask = jnp.zeros(shape), jnp.broadcast_to(legal, shape)
    sample = np.asarray(Gumbel(kind).draw(jax.random.PRNGKey(2), logits, mask, NOW, (2, 3)))
    assert sample.shape == shape
    assert_one_hot(sample[..., :2], legal[:2])
    assert_one_hot(sample[..., 2:], legal[2:])
    first, second = sample[..., 1].ravel(), sample[..., 4].ravel()
    table = np.array([[np.sum((first == a) & (second == b)) for b in (0, 1)] for a in (0, 1)])
    assert stats.chisquare(table.ravel()).pvalue > 1e-3
    assert abs(np.corrcoef(sample[:, 0, 1], sample[:, 1, 1])[0, 1]) < 0.05


@pytest.mark.parametrize("kind", ["st", "tags"])
def test_temperatures_can_be_swept(kind: Kind) -> None:
    """A sweep traces the temperature; each value gives what it gives alone."""
    logits, legal, key = jnp.asarray(LOGITS[None]), jnp.asarray(ALL[None]), jax.random.PRNGKey(5)
    w = jnp.asarray(WEIGHTS[0])

    def gradient(temperature: jax.Array | float) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(Gumbel(kind, temperature).draw(key, x, legal, NOW) * w))(logits)

    swept = jax.vmap(gradient)(jnp.array([0.5, 2.0]))
    for row, value in zip(swept, (0.5, 2.0), strict=True):
        np.testing.assert_allclose(row, gradient(value), rtol=1e-5, atol=1e-7)


def test_relaxed_is_the_surrogate_of_st() -> None:
    """Its forward pass is what `st` differentiates: the same draw, the same gradient, and the argmax is the sample."""
    key, legal = jax.random.PRNGKey(3), jnp.asarray(SOME)
    weights = jnp.asarray(WEIGHTS[0])
    soft, soft_slope = jax.value_and_grad(lambda x: weights @ gumbel.relaxed(x, legal, key, 0.6))(jnp.asarray(LOGITS))
    hard, hard_slope = jax.value_and_grad(lambda x: weights @ gumbel.st(x, legal, key, 0.6))(jnp.asarray(LOGITS))
    np.testing.assert_allclose(soft_slope, hard_slope, rtol=1e-5)
    assert float(soft) != float(hard)
    y = np.asarray(gumbel.relaxed(jnp.asarray(LOGITS), legal, key, 0.6))
    assert y.sum() == pytest.approx(1.0, rel=1e-6) and np.all(y[~SOME] == 0) and np.all(y[SOME] > 0)
    assert y.argmax() == np.asarray(gumbel.st(jnp.asarray(LOGITS), legal, key, 0.6)).argmax()
