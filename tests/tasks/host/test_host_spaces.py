"""Flattening order, padding, masks and actions, with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is missing: pip install 'rookery[gymnasium]'")
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple  # noqa: E402

from rookery.core.errors import ConfigError, TrainingError  # noqa: E402
from rookery.tasks.host.spaces import Actions, Observation, Observations  # noqa: E402


def written(space: Any, value: Any, drop: tuple[str, ...] = ()) -> np.ndarray:
    o = Observation("toy", "a", space, drop)
    out = np.zeros(o.shape, np.uint8 if o.image else np.float32)
    o.write(value, out)
    return out


def test_dict_is_flattened_by_sorted_key() -> None:
    space = Dict(
        {
            "z": Box(-9, 9, (2,), np.float32),
            "b": Discrete(3, start=5),
            "m": Tuple((MultiBinary(2), MultiDiscrete([2, 3], start=[0, 1]))),
            "a": Box(0, 255, (2, 2), np.uint8),
        }
    )
    value = {
        "z": np.float32([8, 9]),
        "b": np.int64(6),
        "m": (np.int8([0, 1]), np.array([1, 3])),
        "a": np.uint8([[1, 2], [3, 4]]),
    }
    expected = [1, 2, 3, 4, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 8, 9]
    assert written(space, value).tolist() == expected
    assert written(space, value, drop=("m", "z")).tolist() == [1, 2, 3, 4, 0, 1, 0]


def test_one_image_stays_uint8_and_keeps_its_shape() -> None:
    image = Box(0, 255, (2, 3, 1), np.uint8)
    for space, wrap in (
        (image, lambda x: x),
        (Dict({"image": image, "action_mask": MultiBinary(2)}), lambda x: {"image": x}),
    ):
        both = Observations("toy", ["a"], [space])
        assert both.dtype == "uint8" and both.shape == (2, 3, 1) and both.bounds(declared=True) is None
        value = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
        assert np.array_equal(written(space, wrap(value)), value)
    ram = Observations("toy", ["a"], [Box(0, 255, (128,), np.uint8)])
    assert ram.dtype == "float32" and ram.shape == (128,)
    mixed = Observations("toy", ["a"], [Dict({"image": image, "x": Box(0, 1, (1,), np.float32)})])
    assert mixed.dtype == "float32" and mixed.shape == (7,)


def test_observations_of_different_agents_are_padded() -> None:
    spaces = [Box(-1, 1, (2, 2), np.float32), Box(0, 5, (3,), np.float32)]
    both = Observations("toy", ["a", "b"], spaces)
    assert both.shape == (4,) and both.sizes == (4, 3) and both.padded
    out = np.zeros((2, 4), np.float32)
    both.each[0].write(np.float32([[1, 2], [3, 4]]), out[0])
    both.each[1].write(np.float32([5, 6, 7]), out[1])
    assert out.tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    bounds = both.bounds(declared=True)
    assert bounds is not None
    assert bounds[0].tolist()[0] == [-1] * 4 and bounds[1][1, :3].tolist() == [5, 5, 5]
    assert bounds[0][1, 3] <= 0 <= bounds[1][1, 3]


def test_scalar_box_and_discrete() -> None:
    assert written(Box(0, 1, (), np.float32), np.float32(0.5)).tolist() == [0.5]
    assert written(Discrete(3), 2).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (Box(0, 1, (2,), np.float32), np.zeros(3, np.float32), "observation has shape (3,), not (2,)"),
        (Box(0, 1, (2,), np.float32), np.zeros((1, 2), np.float32), "observation has shape (1, 2), not (2,)"),
        (Box(0, 9, (2,), np.int64), np.zeros(2, np.float32), "observation has dtype float32, not int64"),
        (Box(0, 255, (1, 2), np.uint8), np.zeros((1, 2), np.float64), "observation has dtype float64, not uint8"),
        (Discrete(3), 3, "observation is not in Discrete(3): 3"),
        (Discrete(3, start=1), 0, "is not in Discrete(3, start=1): 0"),
        (Dict({"x": Discrete(2), "y": Discrete(2)}), {"x": 1}, "observation['y'] is missing"),
        (Dict({"x": Discrete(2), "y": Discrete(2)}), {"x": 1, "y": 2}, "observation['y'] is not in Discrete(2): 2"),
    ],
)
def test_a_violation_names_all(space: Any, value: Any, words: str) -> None:
    with pytest.raises(TrainingError) as error:
        written(space, value)
    assert "toy: agent 'a': " in str(error.value) and words in str(error.value)


def test_float64_for_float32_is_accepted() -> None:
    assert written(Box(0, 1, (2,), np.float32), np.float64([0.25, 0.5])).tolist() == [0.25, 0.5]


def test_text_has_no_fixed_size() -> None:
    with pytest.raises(ConfigError, match=r"--task\.drop mission"):
        Observation("toy", "a", Dict({"mission": Text(9), "x": Discrete(2)}))


def test_discrete_actions_are_padded() -> None:
    actions = Actions("toy", ["a", "b"], [Discrete(4), Discrete(2, start=7)])
    assert actions.spec.kind == "discrete" and actions.spec.sizes == (4,) and actions.padded_sizes == (4, 2)
    assert actions.legal.tolist() == [[True] * 4, [True, True, False, False]]
    assert [f(1) for f in actions.native] == [1, 8] and actions.idle.tolist() == [True, False, False, False]
    out = actions.legal[1].copy()
    actions.mask("toy", 1, "b", np.int8([0, 1]), out)
    assert out.tolist() == [False, True, False, False]
    with pytest.raises(TrainingError, match=r"agent 'b': action_mask must have one entry for each of 2"):
        actions.mask("toy", 1, "b", np.ones(4), out)


def test_box_actions_have_bounds_per_agent_and_dimension() -> None:
    wide = Box(np.float32([-2, -np.inf]), np.float32([3, np.inf]), dtype=np.float32)
    actions = Actions("toy", ["a", "b"], [wide, Box(0, 1, (1,), np.float64)])
    low, high = actions.spec.bounds
    assert low.tolist() == [[-2, -np.inf], [0, -1]] and high.tolist() == [[3, np.inf], [1, 1]]
    assert actions.legal.tolist() == [[True, True], [True, False]] and actions.padded_sizes == (2, 1)
    prepared = actions.prepare(np.float32([[[-5, 50], [2, 9]]]), clip=True)
    assert prepared.tolist() == [[[-2, 50], [1, 1]]]
    second = actions.native[1](prepared[0, 1])
    assert second.shape == (1,) and second.dtype == np.float64 and second.tolist() == [1]
    assert actions.prepare(np.float32([[[-5, 50], [2, 9]]]), clip=False).tolist() == [[[-5, 50], [2, 9]]]
    assert len(Actions("toy", ["a", "b"], [wide, wide]).spec.low) == 1, "one row for agents with equal bounds"


def test_branches_and_bits() -> None:
    actions = Actions("toy", ["a", "b"], [MultiDiscrete([2, 3], start=[1, 0]), MultiDiscrete([4])])
    assert actions.spec.sizes == (4, 3)
    assert actions.legal.astype(int).tolist() == [[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]
    assert actions.native[0](np.int32([1, 2])).tolist() == [2, 2] and actions.native[1](np.int32([3, 0])).tolist() == [
        3
    ]
    bits = Actions("toy", ["a"], [MultiBinary((2, 2))])
    assert bits.spec.sizes == (4,)
    assert bits.native[0](np.array([True, False, True, True])).tolist() == [[1, 0], [1, 1]]


def test_kinds_of_actions_cannot_be_mixed() -> None:
    with pytest.raises(ConfigError, match="the same kind for all agents"):
        Actions("toy", ["a", "b"], [Discrete(2), Box(0, 1, (1,))])
