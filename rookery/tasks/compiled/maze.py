"""Grid mazes for one agent: fixed, or with a goal or walls that move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Several, Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Action, ActionSpec, Spec, Step
from rookery.tasks.compiled.adapter import require

MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)
"""Up, down, left, right as (row, column)."""
_TRIES = 1000


class MazeState(eqx.Module):
    """Where the agent is, which of the task's layouts holds, and the transitions since reset."""

    cell: Int[Array, "2"]
    layout: Int[Array, ""]
    t: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Maze:
    """Reach the goal, which ends the episode. A move off the grid stays where it was; for obstacles see `bump`."""

    family: Literal["maze"] = "maze"
    height: Count = 10
    """Rows."""
    width: Count = 10
    """Columns."""
    obstacles: Whole = 12
    """Obstacles to draw. All free cells are connected in every layout."""
    cells: tuple[tuple[int, int], ...] = ()
    """Obstacles by (row, column), instead of drawing `obstacles` of them."""
    layout_seed: Whole = 3
    """Seed that layouts are drawn from; the training seed has no influence on them."""
    dynamics: Literal["static", "goal", "walls"] = "static"
    """static: one layout. goal, walls: one of `variants` layouts that differ in the goal or in the obstacles is drawn
    at every reset."""
    variants: Several = 8
    """Layouts of a maze that is not static."""
    bump: Literal["end", "stay"] = "end"
    """What moving into an obstacle does, besides its reward: end the episode, or leave the agent where it was."""
    every: Whole = 0
    """Also change to another of these layouts after every so many transitions of an episode; 0: at resets only."""
    start: Literal["corner", "random"] = "corner"
    """Where an episode begins: the top left cell, or any free cell but the goal."""
    observation: Literal["position", "onehot", "image"] = "position"
    """position: row and column, 0 to 1. onehot: the cell. image: obstacles, goal and agent, one plane each."""
    goal_reward: float = 200.0
    """Reward at the goal."""
    obstacle_reward: float = -1.0
    """Reward at an obstacle."""
    step_reward: float = 0.0
    """Reward of every other move."""
    limit: Count = 100
    """Transitions after which an episode is cut."""

    def __post_init__(self) -> None:
        require(self.dynamics, ("static", "goal", "walls"), "dynamics")
        require(self.bump, ("end", "stay"), "bump")
        require(self.start, ("corner", "random"), "start")
        require(self.observation, ("position", "onehot", "image"), "observation")
        check_ranges(self, "task")
        if self.cells:
            _check_cells(self)
        elif self.height * self.width - self.obstacles < 2:
            size = f"{self.height} x {self.width}"
            raise ConfigError(f"{self.obstacles} obstacles leave no room for a start and a goal in {size} cells.")
        layouts(self)

    @property
    def spec(self) -> Spec:
        """The static facts of this maze."""
        shapes = {
            "position": (2,),
            "onehot": (self.height * self.width,),
            "image": (self.height, self.width, 3),
        }
        return Spec(
            name=f"maze/{self.dynamics}",
            agents=("walker",),
            obs_shape=shapes[self.observation],
            action=ActionSpec("discrete", (len(MOVES),)),
            limit=self.limit,
            score="success",
            position=(0, 1) if self.observation == "position" else (),
        )

    def reset(self, key: Array) -> tuple[MazeState, Step]:
        """Begin an episode in one of the layouts."""
        walls, goals = layouts(self)
        layout_key, cell_key = jax.random.split(key)
        layout = jax.random.randint(layout_key, (), 0, len(goals))
        cell = jnp.zeros(2, jnp.int32)
        if self.start == "random":
            row, column = jnp.array(goals)[layout]
            free = ~jnp.array(walls)[layout].at[row, column].set(True)
            index = jax.random.categorical(cell_key, jnp.where(free.ravel(), 0.0, -jnp.inf))
            cell = jnp.stack(jnp.divmod(index, self.width)).astype(jnp.int32)
        state = MazeState(cell, layout, jnp.zeros((), jnp.int32))
        nowhere = jnp.array(False)
        return state, self._step(state, at_goal=nowhere, at_wall=nowhere, first=True)

    def step(self, state: MazeState, action: Action, key: Array) -> tuple[MazeState, Step]:
        """One move, judged by the layout in which it was made; then the layout may change."""
        walls, goals = (jnp.array(x) for x in layouts(self))
        wanted = state.cell + jnp.array(MOVES)[action[0]]
        cell = jnp.clip(wanted, 0, jnp.array([self.height - 1, self.width - 1]))
        moved = jnp.any(cell != state.cell)
        at_goal = jnp.all(cell == goals[state.layout])
        # A wall that appeared around the agent does not strike it; walking into one does.
        at_wall = moved & walls[state.layout, cell[0], cell[1]]
        if self.bump == "stay":
            cell = jnp.where(at_wall, state.cell, cell)
        t = state.t + 1
        state = MazeState(cell, self._next_layout(state.layout, t, key), t)
        return state, self._step(state, at_goal=at_goal, at_wall=at_wall, first=False)

    def _next_layout(self, layout: Int[Array, ""], t: Int[Array, ""], key: Array) -> Int[Array, ""]:
        """The layout after transition `t`: another one every `every` transitions."""
        if self.dynamics == "static" or self.every == 0:
            return layout
        other = (layout + jax.random.randint(key, (), 1, self.variants)) % self.variants
        return jnp.where(t % self.every == 0, other, layout)

    def _step(self, state: MazeState, *, at_goal: Bool[Array, ""], at_wall: Bool[Array, ""], first: bool) -> Step:
        """What the agent sees and got."""
        reward = jnp.where(at_goal, self.goal_reward, jnp.where(at_wall, self.obstacle_reward, self.step_reward))
        ended = at_goal if self.bump == "stay" else at_goal | at_wall
        return Step(
            obs=self.observe(state)[None],
            state=jnp.zeros(0),
            legal=jnp.ones((1, len(MOVES)), bool),
            alive=jnp.ones(1, bool),
            reward=jnp.zeros(1) if first else reward[None].astype(jnp.float32),
            discount=(~ended)[None].astype(jnp.float32),
            first=jnp.array(first),
            last=ended | (state.t >= self.limit),
            success=at_goal.astype(jnp.float32),
        )

    def observe(self, state: MazeState) -> Float[Array, "*obs"]:
        """The agent's observation, in the form that the config asks for."""
        row, column = state.cell
        here = jnp.zeros((self.height, self.width)).at[row, column].set(1.0)
        if self.observation == "onehot":
            return here.ravel()
        if self.observation == "position":
            return state.cell / jnp.array([max(self.height - 1, 1), max(self.width - 1, 1)], jnp.float32)
        walls, goals = (jnp.array(x)[state.layout] for x in layouts(self))
        goal = jnp.zeros_like(here).at[goals[0], goals[1]].set(1.0)
        return jnp.stack([walls.astype(jnp.float32), goal, here], axis=-1)


@cache
def layouts(maze: Maze) -> tuple[np.ndarray, np.ndarray]:
    """Obstacles bool [layout, row, column] and goals int32 [layout, 2], drawn from the maze's layout seed."""
    rng = np.random.default_rng(maze.layout_seed)
    corner = np.array([maze.height - 1, maze.width - 1], np.int32)
    first = _given_walls(maze) if maze.cells else _draw_walls(maze, rng)
    if maze.dynamics == "static":
        return first[None], corner[None]
    if maze.dynamics == "walls":
        rest = [_draw_walls(maze, rng) for _ in range(maze.variants - 1)]
        return np.stack([first, *rest]), np.tile(corner, (maze.variants, 1))
    free = np.argwhere(~first)[1:]  # without the top left cell, where episodes begin
    if len(free) < maze.variants:
        raise ConfigError(f"{maze.variants} goals do not fit into {len(free)} free cells: lower variants.")
    goals = rng.permutation(free)[: maze.variants].astype(np.int32)
    return np.tile(first, (maze.variants, 1, 1)), goals


def _check_cells(maze: Maze) -> None:
    """Raise ConfigError unless the given obstacles leave the grid connected and its two corners free."""
    if maze.dynamics == "walls":
        raise ConfigError("cells fixes the obstacles, and dynamics walls moves them: leave cells empty.")
    corners = {(0, 0), (maze.height - 1, maze.width - 1)}
    for cell in maze.cells:
        inside = 0 <= cell[0] < maze.height and 0 <= cell[1] < maze.width
        if not inside or cell in corners:
            raise ConfigError(
                f"cells has {cell}: an obstacle is a (row, column) of the {maze.height} x {maze.width} grid, "
                "but not its top left or bottom right cell."
            )
    walls = _given_walls(maze)
    if np.any(reachable(walls) == walls):
        raise ConfigError(f"cells {maze.cells} cuts free cells off from the start: leave a way to each.")


def _given_walls(maze: Maze) -> Bool[np.ndarray, "row column"]:
    """The obstacles that the config names."""
    walls = np.zeros((maze.height, maze.width), bool)
    walls[tuple(np.array(maze.cells).T)] = True
    return walls


def _draw_walls(maze: Maze, rng: np.random.Generator) -> Bool[np.ndarray, "row column"]:
    """Obstacles anywhere but in the two corners, such that all free cells are connected."""
    cells = maze.height * maze.width
    for _ in range(_TRIES):
        walls = np.zeros(cells, bool)
        walls[rng.choice(np.arange(1, cells - 1), maze.obstacles, replace=False)] = True
        walls = walls.reshape(maze.height, maze.width)
        if reachable(walls).sum() == cells - maze.obstacles:
            return walls
    raise ConfigError(
        f"found no connected layout of {maze.obstacles} obstacles in {maze.height} x {maze.width} cells "
        f"with layout_seed {maze.layout_seed}: lower obstacles."
    )


def reachable(walls: Bool[np.ndarray, "row column"]) -> Bool[np.ndarray, "row column"]:
    """Cells that can be reached from the top left one (flood fill)."""
    seen = np.zeros_like(walls)
    stack = [(0, 0)]
    while stack:
        row, column = stack.pop()
        inside = 0 <= row < walls.shape[0] and 0 <= column < walls.shape[1]
        if inside and not seen[row, column] and not walls[row, column]:
            seen[row, column] = True
            stack += [(row + dr, column + dc) for dr, dc in MOVES]
    return seen


GBMR = Maze(
    # Published as [x, y], which is (column, row).
    cells=tuple((y, x) for x, y in ((3, 8), (2, 5), (7, 0), (4, 5), (4, 7), (0, 9), (9, 5), (8, 2), (3, 7))),
    bump="stay",
    limit=200,
)
"""The maze on which the authors of graph-backed memory (GBMR) counted goals."""

TASKS |= {
    "maze/static": Maze(),
    "maze/static_image": Maze(observation="image"),
    "maze/goal": Maze(dynamics="goal", observation="image"),
    "maze/goal_hidden": Maze(dynamics="goal"),
    "maze/walls": Maze(dynamics="walls", observation="image"),
    "maze/walls_moving": Maze(dynamics="walls", observation="image", every=10),
    "maze/gbmr": GBMR,
    "maze/image": replace(GBMR, observation="image"),
    "maze/20x20": Maze(height=20, width=20, obstacles=48, bump="stay", limit=400),
    "maze/dynamic": Maze(dynamics="walls", observation="image", bump="stay", limit=200),
}
