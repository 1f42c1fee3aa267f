"""Key to door: phases, what is seen in each, and the two returns that are known exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit

from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.core.types import Step
from rookery.tasks.catalog import FACTS
from rookery.tasks.compiled.key_to_door import PLANES, KeyToDoor, KeyToDoorState
from rookery.tasks.compiled.maze import MOVES
from rookery.tasks.measure import episodes_of, random_score

KEY = jax.random.PRNGKey(0)
UP, DOWN, LEFT, RIGHT = range(4)
TASK = KeyToDoor()
AGENT, KEY_PLANE, APPLES, DOOR = range(4)


def at(cell: tuple[int, int], t: int, *, has_key: bool = False, apples: tuple[tuple[int, int], ...] = ()) -> Any:
    grid = np.zeros((5, 5), bool)
    for apple in apples:
        grid[apple] = True
    corner = jnp.array([4, 4], jnp.int32)
    return KeyToDoorState(
        jnp.array(cell, jnp.int32), corner, jnp.array(grid), jnp.array(has_key), jnp.array(t, jnp.int32)
    )


def move(state: Any, action: int, task: KeyToDoor = TASK) -> tuple[Any, Step]:
    return task.step(state, jnp.array([action], jnp.int32), KEY)


def test_reset() -> None:
    state, step = hasty_jit(jax.vmap(TASK.reset))(jax.random.split(KEY, 300))
    image = np.array(step.obs[:, 0])
    assert np.all(image[:, 0, 0, AGENT] == 1) and np.all(image[..., AGENT].sum((1, 2)) == 1)
    assert np.all(image[..., KEY_PLANE].sum((1, 2)) == 1) and not np.any(image[:, 0, 0, KEY_PLANE])
    assert np.all(image[..., KEY_PLANE].sum(0).ravel()[1:] > 0), "the key may be anywhere else"
    assert not np.any(image[..., APPLES]) and not np.any(image[..., DOOR]), "the other rooms are not seen"
    assert np.all(state.apples.sum((1, 2)) == 5) and not np.any(state.apples[:, 0, 0])


def test_the_key_is_fetched_in_the_first_room_and_brings_nothing() -> None:
    state, step = move(at((4, 3), 3), RIGHT)
    assert state.has_key and step.reward[0] == 0 and not step.last
    assert not np.any(step.obs[0, ..., KEY_PLANE]), "it is gone"
    state, step = move(at((4, 2), 3), RIGHT)
    assert not state.has_key and step.obs[0, 4, 4, KEY_PLANE] == 1
    for t in (15, 20, 50):
        assert not move(at((4, 3), t), RIGHT)[0].has_key, "there is no key in the other rooms"


def test_the_last_transition_of_a_phase_counts_and_leads_to_the_next_entrance() -> None:
    state, step = move(at((4, 3), 14, apples=((1, 1),)), RIGHT)
    assert state.has_key and tuple(np.array(state.cell)) == (0, 0)
    np.testing.assert_array_equal(step.obs[0, ..., APPLES], np.array(state.apples))
    assert step.obs[0, 1, 1, APPLES] == 1
    state, step = move(at((0, 0), 44, apples=((0, 1),)), RIGHT)
    assert step.reward[0] == 1 and tuple(np.array(state.cell)) == (0, 0)
    assert step.obs[0, 4, 4, DOOR] == 1 and not np.any(step.obs[0, ..., APPLES])


def test_an_apple_is_eaten_once() -> None:
    state, step = move(at((0, 0), 20, apples=((0, 1), (3, 3))), RIGHT)
    assert step.reward[0] == 1 and np.array(state.apples).sum() == 1 and step.obs[0, ..., APPLES].sum() == 1
    state, step = move(move(state, LEFT)[0], RIGHT)
    assert step.reward[0] == 0
    state, step = move(at((0, 0), 3, apples=((0, 1),)), RIGHT)
    assert step.reward[0] == 0 and state.apples[0, 1], "not in the first room"


def test_the_door_opens_iff_the_key_was_fetched() -> None:
    _, step = move(at((4, 3), 50, has_key=True), RIGHT)
    assert step.reward[0] == 5 and step.last and step.discount[0] == 0 and step.success == 1
    _, step = move(at((4, 3), 50), RIGHT)
    assert step.reward[0] == 0 and not step.last and step.discount[0] == 1 and step.success == 0
    _, step = move(at((4, 3), 44, has_key=True), RIGHT)
    assert step.reward[0] == 0, "there is no door in the second room"


def test_the_end_of_the_last_phase_is_an_end() -> None:
    _, step = move(at((2, 2), 59), RIGHT)
    assert TASK.spec.limit == 60 and step.last and step.discount[0] == 0 and step.success == 0
    _, step = move(at((2, 2), 58), RIGHT)
    assert not step.last and step.discount[0] == 1


def test_after_the_first_room_nothing_tells_whether_the_key_was_fetched() -> None:
    actions = jax.random.randint(KEY, (45, 1), 0, 4)
    step_of = hasty_jit(TASK.step)
    seen = []
    for has_key in (False, True):
        state = at((0, 0), 15, has_key=has_key, apples=((1, 1), (2, 3)))
        rows = []
        for action in actions:
            state, step = step_of(state, action, KEY)
            rows.append(np.array(step.obs))
            if step.success == 1:
                break
        seen.append(rows)
    assert all(np.array_equal(a, b) for a, b in zip(*seen, strict=False))


def test_noisy_apples_have_the_same_mean() -> None:
    noisy = replace(TASK, apple_chance=0.1)
    start = at((0, 0), 20, apples=((0, 1),))
    step = jax.vmap(lambda key: noisy.step(start, jnp.array([RIGHT]), key)[1])(jax.random.split(KEY, 4000))
    rewards = np.array(step.reward[:, 0])
    assert set(np.unique(rewards)) == {0.0, 10.0} and abs(rewards.mean() - 1.0) < 0.2


def test_flat_is_the_image_in_one_row() -> None:
    flat = TASKS["key_to_door/flat"]
    assert flat.spec.obs_shape == (5 * 5 * len(PLANES),)
    np.testing.assert_array_equal(flat.reset(KEY)[1].obs[0], TASK.reset(KEY)[1].obs[0].ravel())


def scripted(state: KeyToDoorState, step: Step, key: Any) -> Any:
    """To the key, over all cells, to the door."""
    image = step.obs[0]
    row, column = state.cell
    goal = jnp.argmax(image[..., KEY_PLANE].ravel() + image[..., DOOR].ravel())
    down, right = goal // 5 - row, goal % 5 - column
    direct = jnp.where(down > 0, DOWN, jnp.where(down < 0, UP, jnp.where(right > 0, RIGHT, LEFT)))
    eastward = row % 2 == 0
    sweep = jnp.where(eastward, jnp.where(column < 4, RIGHT, DOWN), jnp.where(column > 0, LEFT, DOWN))
    in_apples = (state.t >= 15) & ~jnp.any(image[..., DOOR] > 0)
    return jnp.where(in_apples, sweep, direct)[None].astype(jnp.int32)


@pytest.mark.parametrize("name", ["short", "long"])
def test_the_optimum_is_reached(name: str) -> None:
    task, facts = TASKS[f"key_to_door/{name}"], FACTS[f"key_to_door/{name}"]
    result = hasty_jit(lambda key: episodes_of(scripted, task, 200, key))(KEY)
    assert task.optimum == facts.reference == 10.0
    assert np.all(result["returns"] == 10.0) and np.all(result["success"] == 1)


def reach(target: tuple[int, int], steps: int) -> float:
    """Chance that a random walk from the corner of a 5 x 5 room has come to a cell."""
    here, reached = np.zeros((5, 5)), 0.0
    here[0, 0] = 1.0
    for _ in range(steps):
        after = np.zeros_like(here)
        for cell in np.ndindex(5, 5):
            for by in MOVES:
                after[tuple(np.clip(np.array(cell) + by, 0, 4))] += here[cell] / 4
        reached, after[target] = reached + after[target], 0.0
        here = after
    return float(reached)


@pytest.mark.parametrize("name", ["short", "long"])
def test_random_return_is_exact(name: str) -> None:
    task, facts = TASKS[f"key_to_door/{name}"], FACTS[f"key_to_door/{name}"]
    cells = list(np.ndindex(5, 5))[1:]
    key, apple = (np.mean([reach(c, n) for c in cells]) for n in (task.key_steps, task.apple_steps))
    exact = task.apples * apple + task.door_reward * key * reach((4, 4), task.door_steps)
    np.testing.assert_allclose(facts.random, exact, atol=1e-5)
    if name == "short":
        mean, error, _ = random_score(task, 4096, KEY)
        assert abs(mean - exact) < 4 * error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key_steps": 7}, "at least 8"),
        ({"door_steps": 0}, "door_steps"),
        ({"apples": 25}, "0 to 24"),
        ({"apple_chance": 0.0}, "apple_chance"),
        ({"height": 1, "width": 1, "apples": 0}, "at least 2"),
    ],
)
def test_bad_settings(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        KeyToDoor(**changes)
