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
from rookery.core.types import Step
from rookery.tasks.compiled.maze import MOVES, Maze, MazeState, layouts, reachable

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
        ({"obstacles": -1}, "0 or more"),
        ({"height": 0}, "at least 1"),
        ({"variants": 1, "dynamics": "goal"}, "at least 2"),
        ({"height": 2, "width": 2, "obstacles": 0, "dynamics": "goal"}, "lower variants"),
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
