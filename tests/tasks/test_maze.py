"""Mazes: the anchor's rules, solvable layouts, what moves and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.errors import ConfigError
from rookery.core.registry import TASKS
from rookery.core.types import Step
from rookery.tasks.catalog import FACTS
from rookery.tasks.compiled.maze import MOVES, Maze, MazeState, layouts, reachable
from rookery.tasks.measure import random_score

KEY = jax.random.PRNGKey(0)
UP, DOWN, LEFT, RIGHT = range(4)


def at(cell: tuple[int, int], layout: int = 0, t: int = 0) -> MazeState:
    return MazeState(jnp.array(cell, jnp.int32), jnp.array(layout, jnp.int32), jnp.array(t, jnp.int32))


def enter(maze: Maze, cell: np.ndarray, layout: int = 0) -> Step:
    """The step after walking into `cell` from a neighbour inside the grid."""
    for action, move in enumerate(MOVES):
        origin = cell - move
        if np.all(origin >= 0) and np.all(origin < [maze.height, maze.width]):
            return maze.step(at(tuple(origin), layout), jnp.array([action]), KEY)[1]
    raise AssertionError("a cell without neighbours")


def test_anchor_settings() -> None:
    walls, goals = layouts(Maze())
    assert walls.shape == (1, 10, 10) and walls.sum() == 12
    assert not walls[0, 0, 0] and not walls[0][tuple(goals[0])]


def test_goal_ends_with_200() -> None:
    step = enter(Maze(), layouts(Maze())[1][0])
    assert step.reward[0] == 200 and step.last and step.discount[0] == 0 and step.success == 1


def test_obstacle_ends_with_minus_1() -> None:
    for cell in np.argwhere(layouts(Maze())[0][0]):
        step = enter(Maze(), cell)
        assert step.reward[0] == -1 and step.last and step.discount[0] == 0 and step.success == 0


def test_moves_and_the_edge() -> None:
    maze = Maze(obstacles=0, step_reward=-0.5)
    for action, cell in ((UP, (4, 5)), (DOWN, (6, 5)), (LEFT, (5, 4)), (RIGHT, (5, 6))):
        state, step = maze.step(at((5, 5)), jnp.array([action]), KEY)
        assert tuple(np.array(state.cell)) == cell
        assert step.reward[0] == -0.5 and step.discount[0] == 1 and not step.last
    for action in (UP, LEFT):
        state, step = maze.step(at((0, 0)), jnp.array([action]), KEY)
        assert tuple(np.array(state.cell)) == (0, 0) and step.reward[0] == -0.5 and not step.last


GBMR = TASKS["maze/gbmr"]
# As published: rows y from 0 (top) to 9, columns x; the start is at [0, 0], the goal at [9, 9].
GBMR_MAP = """
.......#..
..........
........#.
..........
..........
..#.#....#
..........
...##.....
...#......
#.........
"""


def test_gbmr_layout() -> None:
    walls, goals = layouts(GBMR)
    drawn = [[cell == "#" for cell in row] for row in GBMR_MAP.split()]
    np.testing.assert_array_equal(walls, [drawn])
    assert tuple(goals[0]) == (9, 9) and tuple(np.array(GBMR.reset(KEY)[0].cell)) == (0, 0)
    assert (GBMR.goal_reward, GBMR.obstacle_reward, GBMR.step_reward, GBMR.limit) == (200.0, -1.0, 0.0, 200)


def test_gbmr_shortest_way_is_18() -> None:
    """As many as there are without obstacles; 12,000 steps hold at most 666 episodes."""
    assert shortest(layouts(GBMR)[0][0]) == 18 and 12_000 // 18 == 666


def shortest(walls: np.ndarray) -> int:
    """Moves from one corner to the other, by breadth."""
    front, steps = {(0, 0)}, 0
    goal = (walls.shape[0] - 1, walls.shape[1] - 1)
    while goal not in front:
        near = {(r + dr, c + dc) for r, c in front for dr, dc in MOVES}
        front |= {(r, c) for r, c in near if 0 <= r <= goal[0] and 0 <= c <= goal[1] and not walls[r, c]}
        steps += 1
    return steps


def test_gbmr_rules() -> None:
    # Right of (0, 6) is the obstacle at [7, 0].
    state, step = GBMR.step(at((0, 6)), jnp.array([RIGHT]), KEY)
    assert tuple(np.array(state.cell)) == (0, 6), "stays where it was"
    assert step.reward[0] == -1 and step.discount[0] == 1 and not step.last and step.success == 0
    np.testing.assert_allclose(step.obs, [[0.0, 6 / 9]])
    state, step = GBMR.step(at((0, 6)), jnp.array([UP]), KEY)
    assert tuple(np.array(state.cell)) == (0, 6) and step.reward[0] == 0 and not step.last, "the border costs nothing"
    state, step = GBMR.step(at((9, 8)), jnp.array([RIGHT]), KEY)
    assert step.reward[0] == 200 and step.last and step.discount[0] == 0 and step.success == 1
    _, step = GBMR.step(at((0, 6), t=199), jnp.array([RIGHT]), KEY)
    assert step.last and step.discount[0] == 1 and step.reward[0] == -1, "cut after 200"


def random_walk(walls: np.ndarray, goal: tuple[int, int], steps: int) -> float:
    """Chance that uniformly random moves, which obstacles and the border undo, reach the goal in time."""
    height, width = walls.shape
    here, reached = np.zeros(walls.shape), 0.0
    here[0, 0] = 1.0
    for _ in range(steps):
        after = np.zeros_like(here)
        for row, column in np.argwhere(here):
            for down, right in MOVES:
                r, c = row + down, column + right
                free = 0 <= r < height and 0 <= c < width and not walls[r, c]
                after[(r, c) if free else (row, column)] += here[row, column] / 4
        reached += after[goal]
        after[goal] = 0.0
        here = after
    return float(reached)


@pytest.mark.parametrize("name", ["maze/gbmr", "maze/20x20", "maze/dynamic"])
def test_random_scores_are_exact(name: str) -> None:
    task = TASKS[name]
    chances = [random_walk(walls, tuple(goal), task.limit) for walls, goal in zip(*layouts(task), strict=True)]
    assert FACTS[name].episodes == 0
    np.testing.assert_allclose(FACTS[name].random, np.mean(chances), atol=1e-6)


def test_random_play_agrees_with_the_exact_score() -> None:
    mean, error, _ = random_score(GBMR, 2048, KEY)
    assert abs(mean - FACTS["maze/gbmr"].random) < 4 * error


def test_given_cells_may_have_goals_that_move() -> None:
    walls, goals = layouts(replace(GBMR, dynamics="goal"))
    assert np.all(walls == layouts(GBMR)[0][0]) and len({tuple(g) for g in goals}) == 8
    assert not np.any(walls[0][tuple(goals.T)])


def test_time_limit_is_a_cut() -> None:
    maze = Maze(obstacles=0, limit=7)
    _, step = maze.step(at((0, 0), t=6), jnp.array([UP]), KEY)
    assert step.last and step.discount[0] == 1 and step.success == 0


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(3, 12),
    st.integers(3, 12),
    st.sampled_from(["static", "goal", "walls"]),
    st.floats(0.0, 0.2),
)
def test_every_layout_can_be_solved(seed: int, height: int, width: int, dynamics: Any, share: float) -> None:
    maze = Maze(
        height=height,
        width=width,
        obstacles=int(share * height * width),
        layout_seed=seed,
        dynamics=dynamics,
        variants=3,
    )
    for walls, goal in zip(*layouts(maze), strict=True):
        assert walls.sum() == maze.obstacles
        assert reachable(walls)[tuple(goal)] and tuple(goal) != (0, 0)


def test_flood_fill_by_hand() -> None:
    walls = np.array([[0, 1, 0], [0, 1, 0], [0, 0, 1]], bool)
    np.testing.assert_array_equal(reachable(walls), [[1, 0, 0], [1, 0, 0], [1, 1, 0]])


def test_layout_comes_from_its_own_seed() -> None:
    assert np.array_equal(layouts(Maze())[0], layouts(Maze(limit=5))[0])
    assert not np.array_equal(layouts(Maze(layout_seed=1))[0], layouts(Maze(layout_seed=2))[0])


def test_what_moves() -> None:
    walls, goals = layouts(Maze(dynamics="goal"))
    assert len({tuple(g) for g in goals}) == 8 and np.all(walls == walls[0])
    walls, goals = layouts(Maze(dynamics="walls"))
    assert len({w.tobytes() for w in walls}) == 8 and np.all(goals == goals[0])


@pytest.mark.parametrize("dynamics", ["goal", "walls"])
def test_reset_draws_a_layout(dynamics: Any) -> None:
    maze = Maze(dynamics=dynamics, observation="image")
    state, step = jax.vmap(maze.reset)(jax.random.split(KEY, 100))
    assert set(np.array(state.layout)) == set(range(8))
    plane = 1 if dynamics == "goal" else 0
    assert len({p.tobytes() for p in np.array(step.obs[:, 0, :, :, plane])}) == 8


def test_layout_changes_within_an_episode_only_if_asked() -> None:
    moving = Maze(dynamics="walls", every=5)
    for t in range(10):
        state, _ = moving.step(at((0, 0), 3, t), jnp.array([UP]), KEY)
        assert (int(state.layout) != 3) is ((t + 1) % 5 == 0)
        state, _ = replace(moving, every=0).step(at((0, 0), 3, t), jnp.array([UP]), KEY)
        assert int(state.layout) == 3


def test_a_wall_that_appears_does_not_strike() -> None:
    maze = Maze(dynamics="walls", every=1)
    walls, _ = layouts(maze)
    edge = next((i, c) for i, w in enumerate(walls) for c in np.argwhere(w) if c[0] == 0)
    _, step = maze.step(at(tuple(edge[1]), edge[0]), jnp.array([UP]), KEY)
    assert not step.last and step.reward[0] == 0


def test_observations() -> None:
    _, position = Maze().reset(KEY)
    np.testing.assert_array_equal(position.obs, [[0.0, 0.0]])
    _, step = Maze(obstacles=0).step(at((8, 0)), jnp.array([DOWN]), KEY)
    np.testing.assert_allclose(step.obs, [[1.0, 0.0]])
    _, onehot = Maze(observation="onehot").reset(KEY)
    np.testing.assert_array_equal(onehot.obs[0], np.eye(100)[0])
    _, image = Maze(observation="image").reset(KEY)
    walls, goals = layouts(Maze())
    np.testing.assert_array_equal(image.obs[0, :, :, 0], walls[0])
    assert image.obs[0, *goals[0], 1] == 1 and image.obs[0, 0, 0, 2] == 1 and image.obs[0, :, :, 1:].sum() == 2


def test_random_start_is_free() -> None:
    maze = Maze(start="random", dynamics="walls")
    walls, goals = layouts(maze)
    state, _ = jax.vmap(maze.reset)(jax.random.split(KEY, 200))
    cells, chosen = np.array(state.cell), np.array(state.layout)
    assert not np.any(walls[chosen, cells[:, 0], cells[:, 1]])
    assert not np.any(np.all(cells == goals[chosen], axis=1))
    assert len({tuple(c) for c in cells}) > 50


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obstacles": 99}, "no room"),
        ({"obstacles": 80}, "lower obstacles"),
        ({"obstacles": -1}, "task.obstacles must be at least 0"),
        ({"height": 0}, "at least 1"),
        ({"variants": 1, "dynamics": "goal"}, "at least 2"),
        ({"height": 2, "width": 2, "obstacles": 0, "dynamics": "goal"}, "lower variants"),
        ({"cells": ((1, 10),)}, "row, column"),
        ({"cells": ((9, 9),)}, "bottom right"),
        ({"cells": ((0, 1), (1, 0))}, "leave a way"),
        ({"cells": ((1, 1),), "dynamics": "walls"}, "leave cells empty"),
    ],
)
def test_bad_settings(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Maze(**changes)


@pytest.mark.parametrize("changes", [{"dynamics": "wals"}, {"observation": "picture"}, {"start": "centre"}])
def test_misspelt_choices(changes: dict[str, Any]) -> None:
    # Where annotations are checked at run time, the checker speaks first.
    with pytest.raises((ConfigError, TypeError)):
        Maze(**changes)
