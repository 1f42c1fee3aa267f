"""Gradient steps and schedules, by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.core.errors import ConfigError
from rookery.core.ranges import check_ranges
from rookery.nets.optimiser import Optimiser, Schedule, norm

PARAMS = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
GRADS = [{"a": jnp.array([3.0, 0.0]), "b": jnp.array(4.0)}, {"a": jnp.array([-1.0, 0.5]), "b": jnp.array(0.0)}]


def flat(tree: dict) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(tree[k], np.float64)) for k in ("a", "b")])


def by_hand(o: Optimiser, progress: list[float]) -> np.ndarray:
    """The published formulas, in double precision."""
    x = flat(PARAMS)
    m, v = np.zeros(3), np.zeros(3)
    for t, (grads, p) in enumerate(zip(GRADS, progress, strict=True), 1):
        g = flat(grads)
        g = g * min(1.0, o.clip / np.linalg.norm(g))
        if o.kind == "adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            update = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + o.eps)
        else:
            v = o.rms_decay * v + (1 - o.rms_decay) * g**2
            update = g / (np.sqrt(v) + o.eps)
        x = x - o.lr * ((1 - p) if o.decay == "linear" else 1.0) * update
    return x


@pytest.mark.parametrize("decay", ["none", "linear"])
@pytest.mark.parametrize("clip", [1.0, 100.0])
@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_two_steps(kind: str, clip: float, decay: str) -> None:
    """The first gradient has norm 5: a clip of 1 divides it by 5, and a clip of 100 leaves it."""
    optimiser = Optimiser(kind, lr=0.1, decay=decay, clip=clip, eps=1e-2)
    params, state, progress = PARAMS, optimiser.init(PARAMS), [0.25, 0.75]
    for grads, p in zip(GRADS, progress, strict=True):
        params, state = optimiser.step(params, grads, state, jnp.float32(p))
    np.testing.assert_allclose(flat(params), by_hand(optimiser, progress), rtol=1e-5)


# Two steps of rate 1 on the gradient 0.003, which is far below sqrt(eps); the squared gradients have memory 0.99.
SMALL = {
    # v = 0.01 * 9e-6 = 9e-8, then 0.99 * 9e-8 + 9e-8 = 1.791e-7.
    # 0.003 / (3e-4 + 1e-5) = 9.677419, 0.003 / (4.232021e-4 + 1e-5) = 6.925193
    "torch": ({}, [9.677419, 6.925193]),
    # 0.003 / sqrt(1.009e-5) = 0.944443, 0.003 / sqrt(1.01791e-5) = 0.940301
    "A3C": ({"rms_eps": "in_root"}, [0.944443, 0.940301]),
    # v = 0.99 + 9e-8, then 0.9801 + 1.791e-7.
    # 0.003 / sqrt(0.99001009) = 0.003015098, 0.003 / sqrt(0.98011018) = 0.003030287
    "TensorFlow": ({"rms_eps": "in_root", "rms_start": 1.0}, [0.003015098, 0.003030287]),
}


@pytest.mark.parametrize("form", SMALL)
def test_small_gradients_of_each_form_of_rmsprop(form: str) -> None:
    changes, expected = SMALL[form]
    optimiser = Optimiser("rmsprop", lr=1.0, eps=1e-5, **changes)
    params, grads = {"w": jnp.zeros(1)}, {"w": jnp.array([0.003])}
    state, moves = optimiser.init(params), []
    for _ in range(2):
        new, state = optimiser.step(params, grads, state, jnp.float32(0.0))
        moves.append(float(params["w"][0] - new["w"][0]))
        params = new
    np.testing.assert_allclose(moves, expected, rtol=1e-5)


def test_linear_decay_ends_at_rest() -> None:
    optimiser = Optimiser(decay="linear")
    params, _ = optimiser.step(PARAMS, GRADS[0], optimiser.init(PARAMS), jnp.float32(1.0))
    np.testing.assert_array_equal(flat(params), flat(PARAMS))


def test_radam_descends() -> None:
    optimiser = Optimiser("radam", lr=0.1)
    params, _ = optimiser.step(PARAMS, GRADS[0], optimiser.init(PARAMS), jnp.float32(0.0))
    assert params["b"] < PARAMS["b"] and params["a"][0] < PARAMS["a"][0] and params["a"][1] == PARAMS["a"][1]


def test_nothing_to_step() -> None:
    """A mixer that only adds has no weights."""
    optimiser = Optimiser()
    params, _ = optimiser.step({}, {}, optimiser.init({}), jnp.float32(0.0))
    assert params == {} and norm({}) == 0.0


def test_norm_is_of_all_arrays() -> None:
    assert float(norm(GRADS[0])) == pytest.approx(5.0)


@pytest.mark.parametrize("ends", [(-3.0, 0.1), (1.0, 1.5)])
def test_schedules_are_of_probabilities(ends: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="must be at least 0 and at most 1"):
        check_ranges(Schedule(*ends), "algo.epsilon")


@pytest.mark.parametrize(("steps", "value"), [(0, 1.0), (250, 0.775), (1000, 0.1), (10**9, 0.1)])
def test_schedule_by_steps(steps: int, value: float) -> None:
    schedule = Schedule(1.0, 0.1, steps=1000)
    assert float(schedule.at(jnp.uint32(steps), jnp.float32(77.0))) == pytest.approx(value)


@pytest.mark.parametrize(("steps", "value"), [(0, 1.0), (1000, 0.55), (2000, 0.1), (9000, 0.1)])
def test_schedule_by_share_of_the_budget(steps: int, value: float) -> None:
    schedule = Schedule(1.0, 0.1, steps=0, share=0.2)
    assert float(schedule.at(jnp.uint32(steps), jnp.float32(10_000.0))) == pytest.approx(value)
