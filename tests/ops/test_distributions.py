"""Policies over the four kinds of action spaces, against numpy and scipy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.core.types import ActionSpec
from rookery.ops import distributions

DISCRETE = ActionSpec("discrete", (5,))
MULTI = ActionSpec("multi_discrete", (2, 3))
BINARY = ActionSpec("multi_binary", (3,))
BOX = ActionSpec("box", (2,))
STD = jnp.array([-0.5, 0.3, 0.0, 0.0, 0.0])
DRAWS = 20_000


def logits(width: int) -> jax.Array:
    return jnp.array([0.3, -1.2, 2.0, 0.0, 0.7])[:width]


def softmax(x: np.ndarray, legal: np.ndarray) -> np.ndarray:
    e = np.where(legal, np.exp(x), 0.0)
    return e / e.sum()


def draws(spec: ActionSpec, legal: jax.Array) -> np.ndarray:
    shape = (DRAWS, spec.width)
    params, legal = jnp.broadcast_to(logits(spec.width), shape), jnp.broadcast_to(legal, shape)
    action = distributions.sample(spec, params, STD[: spec.width], legal, jax.random.PRNGKey(0), greedy=False)
    assert action.dtype == spec.dtype and action.shape == (DRAWS, *spec.shape)
    return np.asarray(action)


def log_prob(spec: ActionSpec, legal: jax.Array, action: object) -> float:
    params = logits(spec.width)
    return float(distributions.log_prob(spec, params, STD[: spec.width], legal, jnp.asarray(action, spec.dtype)))


def entropy(spec: ActionSpec, legal: jax.Array) -> float:
    return float(distributions.entropy(spec, logits(spec.width), STD[: spec.width], legal))


def greedy(spec: ActionSpec, legal: jax.Array) -> list[float]:
    params = logits(spec.width)
    action = distributions.sample(spec, params, STD[: spec.width], legal, jax.random.PRNGKey(0), greedy=True)
    return np.asarray(action).tolist()


def close(frequency: float, p: float) -> bool:
    return abs(frequency - p) <= 5 * np.sqrt(p * (1 - p) / DRAWS)


@pytest.mark.parametrize("legal", [[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]])
def test_categorical(legal: list[int]) -> None:
    mask = jnp.array(legal, bool)
    p = softmax(np.asarray(logits(5)), np.asarray(mask))
    for a in np.flatnonzero(legal):
        assert log_prob(DISCRETE, mask, a) == pytest.approx(np.log(p[a]), abs=1e-5)
    real = p[p > 0]
    assert entropy(DISCRETE, mask) == pytest.approx(-np.sum(real * np.log(real)), abs=1e-5)
    assert greedy(DISCRETE, mask) == int(np.argmax(p))
    frequency = np.bincount(draws(DISCRETE, mask), minlength=5) / DRAWS
    assert all(close(f, q) for f, q in zip(frequency, p, strict=True))
    for a in np.flatnonzero(np.logical_not(legal)):
        assert log_prob(DISCRETE, mask, a) < -1e8


def test_multi_categorical() -> None:
    mask = jnp.array([True, True, False, True, True])
    first = softmax(np.asarray(logits(5))[:2], np.ones(2, bool))
    second = softmax(np.asarray(logits(5))[2:], np.array([False, True, True]))
    joint = draws(MULTI, mask)
    for a, b in itertools.product(range(2), (1, 2)):
        assert log_prob(MULTI, mask, (a, b)) == pytest.approx(np.log(first[a] * second[b]), abs=1e-5)
        assert close(float(np.mean((joint[:, 0] == a) & (joint[:, 1] == b))), first[a] * second[b])
    assert not np.any(joint[:, 1] == 0)
    expected = stats.entropy(first) + stats.entropy(second[1:])
    assert entropy(MULTI, mask) == pytest.approx(expected, abs=1e-5)
    assert greedy(MULTI, mask) == [0, 2]


def test_bernoulli() -> None:
    mask = jnp.array([True, True, False])
    p = 1 / (1 + np.exp(-np.asarray(logits(3), np.float64)))
    bits = draws(BINARY, mask)
    for a, b in itertools.product((False, True), repeat=2):
        q = (p[0] if a else 1 - p[0]) * (p[1] if b else 1 - p[1])
        assert log_prob(BINARY, mask, (a, b, False)) == pytest.approx(np.log(q), abs=1e-5)
        assert close(float(np.mean((bits[:, 0] == a) & (bits[:, 1] == b))), q)
    assert not np.any(bits[:, 2])
    assert entropy(BINARY, mask) == pytest.approx(sum(stats.bernoulli.entropy(q) for q in p[:2]), abs=1e-5)
    assert greedy(BINARY, mask) == [True, False, False]


def test_gaussian() -> None:
    mask, mean, std = jnp.ones(2, bool), np.asarray(logits(2)), np.exp(np.asarray(STD[:2]))
    x = np.float32([0.1, -0.9])
    assert log_prob(BOX, mask, x) == pytest.approx(stats.norm.logpdf(x, mean, std).sum(), abs=1e-5)
    assert entropy(BOX, mask) == pytest.approx(stats.norm.entropy(mean, std).sum(), abs=1e-5)
    assert greedy(BOX, mask) == pytest.approx(mean.tolist())
    drawn = draws(BOX, mask)
    for i in range(2):
        assert stats.kstest(drawn[:, i], stats.norm(mean[i], std[i]).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.05


def test_the_deviation_of_a_gaussian_is_bounded() -> None:
    for extreme, bound in ((50.0, 2.0), (-50.0, -5.0)):
        args = (BOX, jnp.zeros(2), jnp.full(2, extreme), jnp.ones(2, bool))
        assert float(distributions.entropy(*args)) == pytest.approx(2 * stats.norm.entropy(0, np.exp(bound)), rel=1e-5)
        wanted = stats.norm.logpdf(0.5, 0, np.exp(bound)) * 2
        assert float(distributions.log_prob(*args, jnp.full(2, 0.5))) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("spec", [DISCRETE, MULTI, BINARY, BOX])
def test_illegal_columns_get_no_gradient(spec: ActionSpec) -> None:
    """Neither through the log-probability of a legal action nor through the entropy."""
    legal = jnp.ones(spec.width, bool).at[-1].set(False)
    action = jnp.zeros(spec.shape, spec.dtype)

    def both(params: jax.Array) -> jax.Array:
        args = (spec, params, jnp.zeros(spec.width), legal)
        return distributions.log_prob(*args, action) + 3.0 * distributions.entropy(*args)

    gradient = jax.grad(both)(logits(spec.width))
    assert gradient[-1] == 0 and bool(jnp.any(gradient[:-1] != 0)) and bool(jnp.all(jnp.isfinite(gradient)))


@pytest.mark.parametrize(
    ("spec", "legal"),
    [
        (ActionSpec("discrete", (4,)), [True, False, True, True]),
        (ActionSpec("multi_discrete", (2, 3)), [True, True, True, False, True]),
        (ActionSpec("multi_binary", (3,)), [True, True, False]),
    ],
)
def test_divergence_is_the_sum_over_all_legal_actions(spec: ActionSpec, legal: list[bool]) -> None:
    ok = jnp.array(legal)
    old, new = jax.random.normal(jax.random.PRNGKey(0), (2, spec.width))
    std = jnp.zeros(spec.width)
    ranges = [range(n) for n in spec.sizes] if spec.kind != "multi_binary" else [range(2)] * 3
    total = 0.0
    for choice in itertools.product(*ranges):
        columns = np.cumsum([0, *spec.sizes[:-1]]) + np.array(choice) if spec.kind != "multi_binary" else None
        # An illegal bit is never set, an illegal action never chosen.
        if columns is None and any(c and not k for c, k in zip(choice, legal, strict=True)):
            continue
        if columns is not None and not all(legal[c] for c in columns):
            continue
        action = jnp.array(choice[0] if spec.kind == "discrete" else choice).astype(spec.dtype)
        p, q = (float(distributions.log_prob(spec, x, std, ok, action)) for x in (old, new))
        total += np.exp(p) * (p - q)
    assert float(distributions.kl(spec, old, std, new, std, ok)) == pytest.approx(total, rel=1e-4)


def test_divergence_of_gaussians_is_the_integral() -> None:
    spec, ok = ActionSpec("box", (1,)), jnp.ones(1, bool)
    a = jnp.linspace(-8.0, 8.0, 4001)[:, None]
    args = [(jnp.array([0.3]), jnp.array([-0.4])), (jnp.array([-0.5]), jnp.array([0.2]))]
    many = [(jnp.broadcast_to(mean, a.shape), std) for mean, std in args]
    p, q = (distributions.log_prob(spec, mean, std, jnp.ones(a.shape, bool), a) for mean, std in many)
    integral = float(jnp.sum(jnp.exp(p) * (p - q)) * 16 / 4000)
    assert float(distributions.kl(spec, *args[0], *args[1], ok)) == pytest.approx(integral, rel=1e-3)


def test_dimensions_that_an_agent_does_not_have_count_for_nothing() -> None:
    """A box of two dimensions, of which this agent has the first: all is as if there were only that one."""
    one, legal = ActionSpec("box", (1,)), jnp.array([True, False])
    old, new, std = jnp.array([0.5, 3.0]), jnp.array([-0.5, -7.0]), jnp.array([0.0, 1.0])
    alone = jnp.ones(1, bool)
    # By hand: a unit Gaussian one deviation away, -1/2 - log(2 pi)/2; log(2 pi e)/2; and (0.5 + 0.5)^2 / 2.
    for action in (-0.5, 9.0):
        x = jnp.array([1.5, action])
        assert float(distributions.log_prob(BOX, old, std, legal, x)) == pytest.approx(-1.418939, abs=1e-5)
    assert float(distributions.entropy(BOX, old, std, legal)) == pytest.approx(1.418939, abs=1e-5)
    assert float(distributions.kl(BOX, old, std, new, std, legal)) == pytest.approx(0.5, abs=1e-6)
    assert float(distributions.kl(one, old[:1], std[:1], new[:1], std[:1], alone)) == pytest.approx(0.5, abs=1e-6)
    for greedy in (False, True):
        key = jax.random.PRNGKey(0)
        assert distributions.sample(BOX, old, std, legal, key, greedy=greedy)[1] == 0.0
