"""Rooms in the plane: a point mass that finds its way through doors to a goal, with continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import BelowOne, Count, NonNegative, Positive, UpToOne, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Action, ActionSpec, Spec, Step
from rookery.tasks.compiled.adapter import require
from rookery.tasks.compiled.maze import reachable

FOUR = (
    ".....#.....",
    ".....#.....",
    "...........",
    ".....#.....",
    ".....#.....",
    "#.####.....",
    ".....###.##",
    ".....#.....",
    ".....#.....",
    "...........",
    ".....#.....",
)
"""The four rooms of Sutton, Precup and Singh (1999)."""
_GAP = 1e-3
"""What is left between the point mass and a wall that stopped it."""


class RoomsState(eqx.Module):
    """Where the point mass is (row, column), how fast it moves, where it should go, transitions since reset."""

    place: Float[Array, "2"]
    velocity: Float[Array, "2"]
    goal: Float[Array, "2"]
    t: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Rooms:
    """Come within `radius` of the goal, which ends the episode (after Eysenbach et al. 2019). A cell is 1 wide."""

    family: Literal["rooms"] = "rooms"
    plan: tuple[str, ...] = FOUR
    """Rows of cells: # is a wall, anything else is free. All around are walls."""
    start: Literal["corner", "random"] = "corner"
    """Where an episode begins: the middle of the top left cell, or anywhere."""
    goal: Literal["corner", "random"] = "corner"
    """The goal: the middle of the bottom right cell, or anywhere (then it is observed)."""
    reward: Literal["sparse", "step", "distance"] = "sparse"
    """sparse: 1 at the goal. step: -1 for every transition that does not end there. distance: minus the straight
    distance to the goal, in diagonals of the plan."""
    speed: UpToOne = 1.0
    """Cells that a full push covers in one transition."""
    inertia: BelowOne = 0.0
    """Share of the velocity that is kept (then it is observed); 0: an action is the velocity itself."""
    noise: NonNegative = 0.0
    """Standard deviation of what is added to every push; 0: none."""
    radius: Positive = 0.5
    """Distance at which the goal is reached."""
    limit: Count = 100
    """Transitions after which an episode is cut."""

    def __post_init__(self) -> None:
        require(self.start, ("corner", "random"), "start")
        require(self.goal, ("corner", "random"), "goal")
        require(self.reward, ("sparse", "step", "distance"), "reward")
        check_ranges(self, "task")
        if len({len(row) for row in self.plan}) != 1 or not self.plan[0]:
            raise ConfigError(f"plan must be equally long, non-empty rows, not {self.plan}.")
        walls = walls_of(self)
        if walls[0, 0] or walls[-1, -1]:
            raise ConfigError("plan has a wall in its top left or bottom right cell: keep start and goal free.")
        if np.any(reachable(walls) == walls):
            raise ConfigError("plan has rooms that cannot be reached from the top left cell: add doors.")

    @property
    def spec(self) -> Spec:
        """The static facts of this world."""
        return Spec(
            name="rooms",
            agents=("walker",),
            obs_shape=(2 + 2 * (self.goal == "random") + 2 * (self.inertia > 0.0),),
            action=ActionSpec("box", (2,)),
            limit=self.limit,
            score="success",
            position=(0, 1),
        )

    def reset(self, key: Array) -> tuple[RoomsState, Step]:
        """Begin somewhere; a random goal is not reached yet."""
        height, width = walls_of(self).shape
        place = jnp.full(2, 0.5)
        goal = jnp.array([height - 0.5, width - 0.5])
        if self.start == "random":
            place = self._anywhere(stream(key, "start"), goal if self.goal == "corner" else jnp.full(2, -jnp.inf))
        if self.goal == "random":
            goal = self._anywhere(stream(key, "goal"), place)
        state = RoomsState(place, jnp.zeros(2), goal, jnp.zeros((), jnp.int32))
        return state, self._step(state, jnp.array(False), first=True)

    def _anywhere(self, key: Array, other: Float[Array, "2"]) -> Float[Array, "2"]:
        """A point in a free cell whose middle is farther than one radius and a cell's half diagonal from `other`."""
        cells = jnp.asarray(np.argwhere(~walls_of(self)))
        far = jnp.linalg.norm(cells + 0.5 - other, axis=-1) > self.radius + 0.5 * 2**0.5
        # One draw of three numbers: a categorical would draw one for each cell, which is slow to compile and to run.
        which, *offset = jax.random.uniform(key, (3,))
        index = jnp.argmax(jnp.cumsum(far) > jnp.floor(which * jnp.sum(far)))
        return cells[index] + jnp.stack(offset)

    def step(self, state: RoomsState, action: Action, key: Array) -> tuple[RoomsState, Step]:
        """One push, first along rows, then along columns: a wall stops one of them, and the other slides along it."""
        push = jnp.clip(action[0], -1.0, 1.0)
        if self.noise > 0.0:
            push = push + self.noise * jax.random.normal(stream(key, "noise"), (2,))
        velocity = self.inertia * state.velocity + (1.0 - self.inertia) * push if self.inertia > 0.0 else push
        velocity = jnp.clip(velocity, -1.0, 1.0)
        place = state.place
        for axis in range(2):
            wanted = place.at[axis].add(velocity[axis] * self.speed)
            blocked = self._blocked(wanted)
            # At most one cell is crossed, so the wall is the next one.
            cell = jnp.floor(place[axis])
            face = jnp.where(velocity[axis] > 0.0, cell + 1.0 - _GAP, cell + _GAP)
            place = jnp.where(blocked, place.at[axis].set(face), wanted)
            velocity = velocity.at[axis].set(jnp.where(blocked, 0.0, velocity[axis]))
        state = RoomsState(place, velocity, state.goal, state.t + 1)
        reached = jnp.linalg.norm(place - state.goal) < self.radius
        return state, self._step(state, reached, first=False)

    def _blocked(self, place: Float[Array, "2"]) -> Bool[Array, ""]:
        """Whether a point is in a wall, or outside."""
        walls = jnp.asarray(walls_of(self))
        cell = jnp.floor(place).astype(jnp.int32)
        inside = jnp.all((cell >= 0) & (cell < jnp.array(walls.shape)))
        return ~inside | walls[cell[0], cell[1]]

    def _step(self, state: RoomsState, reached: Bool[Array, ""], *, first: bool) -> Step:
        """What the agent sees and got."""
        return Step(
            obs=self._observe(state)[None],
            state=jnp.zeros(0),
            legal=jnp.ones((1, 2), bool),
            alive=jnp.ones(1, bool),
            reward=jnp.zeros(1) if first else self._reward(state, reached)[None].astype(jnp.float32),
            discount=(~reached)[None].astype(jnp.float32),
            first=jnp.array(first),
            last=reached | (state.t >= self.limit),
            success=reached.astype(jnp.float32),
        )

    def _reward(self, state: RoomsState, reached: Bool[Array, ""]) -> Float[Array, ""]:
        """Of a transition that led here."""
        if self.reward == "sparse":
            return reached.astype(jnp.float32)
        if self.reward == "step":
            return reached.astype(jnp.float32) - 1.0
        return -jnp.linalg.norm(state.place - state.goal) / float(np.hypot(*walls_of(self).shape))

    def _observe(self, state: RoomsState) -> Float[Array, "n"]:
        """Position and, where it varies, goal, each 0 to 1; velocity, -1 to 1, where it matters."""
        size = jnp.array(walls_of(self).shape, jnp.float32)
        seen = [state.place / size]
        if self.goal == "random":
            seen.append(state.goal / size)
        if self.inertia > 0.0:
            seen.append(state.velocity)
        return jnp.concatenate(seen)


@cache
def walls_of(rooms: Rooms) -> Bool[np.ndarray, "row column"]:
    """The walls of a plan."""
    return np.array([[cell == "#" for cell in row] for row in rooms.plan])


TASKS |= {
    "rooms/four": Rooms(),
    "rooms/four_random": Rooms(start="random", goal="random"),
    "rooms/four_step": Rooms(start="random", goal="random", reward="step"),
    "rooms/four_dense": Rooms(reward="distance"),
    "rooms/four_inertia": Rooms(inertia=0.8),
}
