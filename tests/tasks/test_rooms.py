"""Rooms in the plane: walls hold, doors open, goals are reached."""

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
from rookery.tasks.catalog import FACTS
from rookery.tasks.compiled.maze import MOVES
from rookery.tasks.compiled.rooms import FOUR, Rooms, RoomsState, walls_of
from rookery.tasks.measure import episodes_of, random_score

KEY = jax.random.PRNGKey(0)
TASK = Rooms()


def at(place: tuple[float, float], velocity: tuple[float, float] = (0, 0), t: int = 0) -> RoomsState:
    goal = jnp.array([10.5, 10.5])
    return RoomsState(jnp.array(place), jnp.array(velocity, jnp.float32), goal, jnp.array(t, jnp.int32))


def push(task: Rooms, state: RoomsState, *action: float) -> Any:
    return task.step(state, jnp.array([action]), KEY)


@pytest.mark.parametrize(
    ("start", "action", "end"),
    [
        ((2.5, 2.5), (0.5, -0.25), (3.0, 2.25)),  # free
        ((2.5, 2.5), (3.0, 0.0), (3.5, 2.5)),  # a push is at most 1
        ((0.5, 4.5), (0.0, 1.0), (0.5, 4.999)),  # the wall in column 5
        ((0.5, 4.5), (0.5, 1.0), (1.0, 4.999)),  # slides along it
        ((2.5, 4.5), (0.0, 1.0), (2.5, 5.5)),  # the door in row 2
        ((0.25, 0.25), (-1.0, -1.0), (0.001, 0.001)),  # the border
    ],
)
def test_moves(start: Any, action: Any, end: Any) -> None:
    state, step = push(TASK, at(start), *action)
    np.testing.assert_allclose(state.place, end, atol=1e-5)
    np.testing.assert_allclose(step.obs[0], np.array(end) / 11, atol=1e-6)
    assert step.reward[0] == 0 and step.discount[0] == 1 and not step.last


def test_nobody_ends_up_in_a_wall(rollout: Any) -> None:
    task = TASKS["rooms/four_random"]
    for seed in range(3):
        _, steps, _ = rollout(task, 102, jax.random.PRNGKey(seed))
        cells = np.floor(np.array(steps.obs[:, 0, :2]) * 11).astype(int)
        assert not np.any(walls_of(task)[cells[:, 0], cells[:, 1]])


@pytest.mark.parametrize(
    ("kind", "there", "elsewhere"), [("sparse", 1, 0), ("step", 0, -1), ("distance", -0.4 / 15.556, None)]
)
def test_goal_and_rewards(kind: Any, there: float, elsewhere: float | None) -> None:
    task = Rooms(reward=kind)
    _, step = push(task, at((10.5, 9.5)), 0.0, 0.6)
    assert step.last and step.discount[0] == 0 and step.success == 1
    assert float(step.reward[0]) == pytest.approx(there, rel=1e-3)
    _, step = push(task, at((10.5, 9.5)), 0.0, 0.4)
    assert not step.last and step.success == 0
    assert float(step.reward[0]) == pytest.approx(-0.6 / 15.556 if elsewhere is None else elsewhere, rel=1e-3)


def test_time_limit_is_a_cut() -> None:
    _, step = push(TASK, at((0.5, 0.5), t=99), 0.0, 0.0)
    assert step.last and step.discount[0] == 1 and step.success == 0


def test_inertia() -> None:
    task = Rooms(inertia=0.8)
    state, step = push(task, at((2.5, 2.5), (0.5, 0.0)), 1.0, 0.0)
    np.testing.assert_allclose(state.velocity, [0.6, 0.0], atol=1e-6)  # 0.8 * 0.5 + 0.2 * 1
    np.testing.assert_allclose(state.place, [3.1, 2.5], atol=1e-5)
    np.testing.assert_allclose(step.obs[0, 2:], [0.6, 0.0], atol=1e-6)
    state, _ = push(task, at((0.5, 4.95), (0.0, 1.0)), 0.0, 1.0)
    np.testing.assert_array_equal(state.velocity, [0.0, 0.0])


def test_noise_is_drawn_only_if_asked() -> None:
    noisy = replace(TASK, noise=0.1)
    places = jax.vmap(lambda key: noisy.step(at((2.5, 2.5)), jnp.zeros((1, 2)), key)[0].place)(
        jax.random.split(KEY, 500)
    )
    np.testing.assert_allclose(places.std(0), 0.1, rtol=0.15)
    drawn = [
        "random_bits" in str(jax.make_jaxpr(t.step)(at((2.5, 2.5)), jnp.zeros((1, 2)), KEY)) for t in (noisy, TASK)
    ]
    assert drawn == [True, False]


def test_random_starts_and_goals() -> None:
    task = TASKS["rooms/four_random"]
    state, step = jax.vmap(task.reset)(jax.random.split(KEY, 500))
    for points in (np.array(state.place), np.array(state.goal)):
        cells = np.floor(points).astype(int)
        assert not np.any(walls_of(task)[cells[:, 0], cells[:, 1]])
        assert len({tuple(c) for c in cells}) > 80
    assert np.all(np.linalg.norm(state.place - state.goal, axis=1) > task.radius), "no goal is reached at once"
    np.testing.assert_allclose(step.obs[:, 0], np.concatenate([state.place, state.goal], 1) / 11, rtol=1e-6)


def ways() -> np.ndarray:
    """Moves between any two cells: [row, column, row, column], by breadth from each."""
    walls = walls_of(TASK)
    found = np.full((11, 11, 11, 11), 999)
    for start in np.argwhere(~walls):
        front, steps = [tuple(start)], 0
        while front:
            for cell in front:
                found[(*start, *cell)] = steps
            near = {(r + dr, c + dc) for r, c in front for dr, dc in MOVES}
            inside = [(r, c) for r, c in near if 0 <= r < 11 and 0 <= c < 11 and not walls[r, c]]
            front = [cell for cell in inside if found[(*start, *cell)] == 999]
            steps += 1
    return found


@pytest.mark.parametrize("name", ["rooms/four", "rooms/four_random"])
def test_a_scripted_player_always_arrives(name: str) -> None:
    """From the middle of a cell to that of the next one on a shortest way."""
    far = jnp.asarray(ways())

    def player(state: RoomsState, _: Any, __: Any) -> Any:
        row, column = jnp.floor(state.place).astype(jnp.int32)
        goal = jnp.floor(state.goal).astype(jnp.int32)
        near = jnp.clip(jnp.array([row, column]) + jnp.array(MOVES), 0, 10)
        best = near[jnp.argmin(far[near[:, 0], near[:, 1], goal[0], goal[1]])] + 0.5
        there = (row == goal[0]) & (column == goal[1])
        way = jnp.where(there, state.goal, best) - state.place
        # First to the middle across the way, so that no corner is cut.
        across = jnp.abs(jnp.array([row, column]) + 0.5 - state.place) > 0.05
        along = jnp.abs(way) > 0.6
        centre = jnp.array([row, column]) + 0.5 - state.place
        return jnp.where(there | ~jnp.any(across & ~along), way, jnp.where(along, 0.0, centre))[None]

    result = hasty_jit(lambda key: episodes_of(player, TASKS[name], 100, key))(KEY)
    assert np.all(result["success"] == FACTS[name].reference)
    if name == "rooms/four":
        assert 18 <= result["length"].max() <= 40


def test_recorded_random_score_can_be_measured_again() -> None:
    mean, error, _ = random_score(TASKS["rooms/four_random"], 512, jax.random.PRNGKey(1))
    facts = FACTS["rooms/four_random"]
    assert abs(mean - facts.random) < 4 * np.hypot(error, facts.error)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": ("..", "...")}, "equally long"),
        ({"plan": (".#", "#.")}, "add doors"),
        ({"plan": ("#.", "..")}, "keep start"),
        ({"speed": 1.1}, "task.speed must be above 0 and at most 1"),
        ({"inertia": 1.0}, "inertia"),
        ({"noise": -0.1}, "noise"),
    ],
)
def test_bad_settings(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Rooms(**changes)


def test_plan_has_four_rooms_and_four_doors() -> None:
    assert [row.count("#") for row in FOUR] == [1, 1, 0, 1, 1, 5, 5, 1, 1, 0, 1]
