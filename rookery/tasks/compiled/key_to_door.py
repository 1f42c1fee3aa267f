"""Key to door: an early act that pays off only after a long phase of unrelated rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, UpToOne, Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Action, ActionSpec, Spec, Step
from rookery.tasks.compiled.adapter import require
from rookery.tasks.compiled.maze import MOVES

PLANES = ("agent", "key", "apples", "door")


class KeyToDoorState(eqx.Module):
    """The agent's cell, the key's cell, uneaten apples, whether the agent has the key, transitions since reset."""

    cell: Int[Array, "2"]
    key_cell: Int[Array, "2"]
    apples: Bool[Array, "row column"]
    has_key: Bool[Array, ""]
    t: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class KeyToDoor:
    """Three rooms, one after the other (after Hung et al. 2019): fetch a key, eat apples, open a door.

    Every room is entered at its top left cell, after a fixed number of transitions. The key brings no reward and is
    seen in the first room only. The door opens iff the key was fetched. The end of the last phase ends the episode for
    good: nothing comes after it.
    """

    family: Literal["key_to_door"] = "key_to_door"
    height: Count = 5
    """Rows of each room."""
    width: Count = 5
    """Columns of each room."""
    key_steps: Count = 15
    """Transitions in the room with the key."""
    apple_steps: Whole = 30
    """Transitions in the room with apples; 0: no such room."""
    door_steps: Count = 15
    """Transitions in the room with the door."""
    apples: Whole = 5
    """Apples in the second room."""
    apple_reward: float = 1.0
    """Mean reward of an apple."""
    apple_chance: UpToOne = 1.0
    """Share of apples that have a reward, which is apple_reward / apple_chance: the lower, the higher its variance."""
    door_reward: float = 5.0
    """Reward of opening the door."""
    observation: Literal["image", "flat"] = "image"
    """image: one plane each for agent, key, apples and door. flat: the same numbers in one row."""

    def __post_init__(self) -> None:
        require(self.observation, ("image", "flat"), "observation")
        check_ranges(self, "task")
        far = self.height + self.width - 2
        for value, what in ((self.key_steps, "key_steps"), (self.door_steps, "door_steps")):
            if value < max(far, 1):
                raise ConfigError(f"{what} must be at least {max(far, 1)}, the way through the room, not {value}.")
        if self.height * self.width < 2:
            raise ConfigError("height x width must be at least 2: the key is not where the agent starts.")
        if self.apples >= self.height * self.width:
            most = self.height * self.width - 1
            raise ConfigError(f"task.apples must be 0 to {most} in this room, not {self.apples}.")

    @property
    def limit(self) -> int:
        """Transitions of all three phases."""
        return self.key_steps + self.apple_steps + self.door_steps

    @property
    def optimum(self) -> float:
        """The best expected return, if the second phase is long enough to walk over all cells."""
        return self.apples * self.apple_reward * (self.apple_steps > 0) + self.door_reward

    @property
    def spec(self) -> Spec:
        """The static facts of this task."""
        shape = (self.height, self.width, len(PLANES))
        return Spec(
            name="key_to_door",
            agents=("walker",),
            obs_shape=shape if self.observation == "image" else (self.height * self.width * len(PLANES),),
            action=ActionSpec("discrete", (len(MOVES),)),
            limit=self.limit,
        )

    def reset(self, key: Array) -> tuple[KeyToDoorState, Step]:
        """Place the key and the apples anywhere but at the entrance."""
        free = self.height * self.width - 1
        index = 1 + jax.random.randint(stream(key, "key"), (), 0, free)
        order = 1 + jax.random.permutation(stream(key, "apples"), free)
        apples = jnp.zeros(free + 1, bool).at[order[: self.apples]].set(True)
        state = KeyToDoorState(
            cell=jnp.zeros(2, jnp.int32),
            key_cell=jnp.stack(jnp.divmod(index, self.width)).astype(jnp.int32),
            apples=apples.reshape(self.height, self.width),
            has_key=jnp.array(False),
            t=jnp.zeros((), jnp.int32),
        )
        return state, self._step(state, jnp.zeros(()), jnp.array(False), first=True)

    def step(self, state: KeyToDoorState, action: Action, key: Array) -> tuple[KeyToDoorState, Step]:
        """One move in the present room; at the end of its phase, the entrance of the next one."""
        wanted = state.cell + jnp.array(MOVES)[action[0]]
        cell = jnp.clip(wanted, 0, jnp.array([self.height - 1, self.width - 1]))
        in_key, in_apples, in_door = self._phase(state.t)
        has_key = state.has_key | (in_key & jnp.all(cell == state.key_cell))
        eaten = in_apples & state.apples[cell[0], cell[1]]
        opened = in_door & self._at_door(cell) & has_key
        reward = jnp.where(opened, self.door_reward, jnp.where(eaten, self._apple(key), 0.0))
        t = state.t + 1
        entering = (t == self.key_steps) | (t == self.key_steps + self.apple_steps)
        state = KeyToDoorState(
            cell=jnp.where(entering, 0, cell),
            key_cell=state.key_cell,
            apples=state.apples.at[cell[0], cell[1]].set(state.apples[cell[0], cell[1]] & ~in_apples),
            has_key=has_key,
            t=t,
        )
        return state, self._step(state, reward, opened, first=False)

    def _phase(self, t: Int[Array, ""]) -> tuple[Bool[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
        """Whether the room at time `t` is the one with the key, the apples, the door."""
        in_key, in_door = t < self.key_steps, t >= self.key_steps + self.apple_steps
        return in_key, ~in_key & ~in_door, in_door

    def _apple(self, key: Array) -> Float[Array, ""] | float:
        """Reward of one apple."""
        if self.apple_chance == 1.0:
            return self.apple_reward
        pays = jax.random.bernoulli(stream(key, "apple"), self.apple_chance)
        return jnp.where(pays, self.apple_reward / self.apple_chance, 0.0)

    def _at_door(self, cell: Int[Array, "2"]) -> Bool[Array, ""]:
        """Whether a cell is the door's, opposite the entrance."""
        return jnp.all(cell == jnp.array([self.height - 1, self.width - 1]))

    def _step(self, state: KeyToDoorState, reward: Array, opened: Bool[Array, ""], *, first: bool) -> Step:
        """What the agent sees and got."""
        ended = opened | (state.t >= self.limit)
        return Step(
            obs=self._observe(state)[None],
            state=jnp.zeros(0),
            legal=jnp.ones((1, len(MOVES)), bool),
            alive=jnp.ones(1, bool),
            reward=reward[None].astype(jnp.float32),
            discount=(~ended)[None].astype(jnp.float32),
            first=jnp.array(first),
            last=ended,
            success=opened.astype(jnp.float32),
        )

    def _observe(self, state: KeyToDoorState) -> Float[Array, "*obs"]:
        """The present room from above. After the first phase nothing in it tells whether the key was fetched."""
        in_key, in_apples, in_door = self._phase(state.t)
        empty = jnp.zeros((self.height, self.width))
        planes = [
            empty.at[state.cell[0], state.cell[1]].set(1.0),
            empty.at[state.key_cell[0], state.key_cell[1]].set((in_key & ~state.has_key).astype(jnp.float32)),
            jnp.where(in_apples, state.apples, False).astype(jnp.float32),
            empty.at[-1, -1].set(in_door.astype(jnp.float32)),
        ]
        image = jnp.stack(planes, axis=-1)
        return image if self.observation == "image" else image.ravel()


TASKS |= {
    "key_to_door/short": KeyToDoor(),
    "key_to_door/long": KeyToDoor(apple_steps=90),
    "key_to_door/noisy": KeyToDoor(apple_steps=90, apple_chance=0.1),
    "key_to_door/flat": KeyToDoor(observation="flat"),
}
