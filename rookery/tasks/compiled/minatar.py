"""MinAtar: small versions of Atari games, as gymnax compiles them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from rookery.core.keys import stream
from rookery.core.ranges import BelowOne, Count, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Action, ActionSpec, Spec, Step
from rookery.tasks.compiled.adapter import construct, require, strong

Game = Literal["asterix", "breakout", "freeway", "space_invaders"]
GAMES: dict[Game, str] = {
    "asterix": "MinAsterix",
    "breakout": "MinBreakout",
    "freeway": "MinFreeway",
    "space_invaders": "MinSpaceInvaders",
}
"""Game -> gymnax's class, in the module of the game's name."""


class MinatarState(eqx.Module):
    """The game's own state, the last action, and the transitions since reset."""

    game: PyTree[Array]
    action: Int[Array, ""]
    t: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Minatar:
    """One game, seen as a 10 x 10 image with a plane for each kind of object, with its minimal set of actions."""

    family: Literal["minatar"] = "minatar"
    game: Game = "breakout"
    """Which game."""
    sticky: BelowOne = 0.0
    """Chance that the last action is repeated instead of the chosen one (0.1 in MinAtar's own version)."""
    limit: Count = 1000
    """Transitions after which a game is cut."""

    def __post_init__(self) -> None:
        require(self.game, tuple(GAMES), "game")
        check_ranges(self, "task")

    @property
    def spec(self) -> Spec:
        """The static facts of this game."""
        env = env_of(self.game)
        return Spec(
            name=f"minatar/{self.game}",
            agents=("player",),
            obs_shape=env.obs_shape,
            action=ActionSpec("discrete", (env.num_actions,)),
            limit=self.limit,
        )

    def reset(self, key: Array) -> tuple[MinatarState, Step]:
        """Begin a game."""
        env = env_of(self.game)
        obs, game = env.reset_env(stream(key, "game"), env.default_params)
        zero = jnp.zeros((), jnp.int32)
        state = MinatarState(strong(game), zero, zero)
        return state, self._step(state, obs, jnp.zeros(()), jnp.array(False), first=True)

    def step(self, state: MinatarState, action: Action, key: Array) -> tuple[MinatarState, Step]:
        """One frame. gymnax's own time limit is left out: `limit` replaces it, and is a cut."""
        env = env_of(self.game)
        chosen = action[0]
        if self.sticky > 0.0:
            repeats = jax.random.bernoulli(stream(key, "sticky"), self.sticky)
            chosen = jnp.where(repeats, state.action, chosen)
        # step_env neither resets nor knows the time limit; `step` does both.
        obs, game, reward, ended, _ = env.step_env(stream(key, "game"), state.game, chosen, env.default_params)
        state = MinatarState(strong(game), chosen, state.t + 1)
        return state, self._step(state, obs, reward, jnp.asarray(ended, bool), first=False)

    def _step(
        self, state: MinatarState, obs: Float[Array, "10 10 plane"], reward: Array, ended: Array, *, first: bool
    ) -> Step:
        """What the player sees and got."""
        return Step(
            obs=obs[None].astype(jnp.float32),
            state=jnp.zeros(0),
            legal=jnp.ones((1, self.spec.action.width), bool),
            alive=jnp.ones(1, bool),
            reward=reward[None].astype(jnp.float32),
            discount=(~ended)[None].astype(jnp.float32),
            first=jnp.array(first),
            last=ended | (state.t >= self.limit),
            success=jnp.zeros(()),
        )


@cache
def env_of(game: Game) -> Any:
    """The built game, once per process."""
    return construct(game, GAMES[game], package="gymnax.environments.minatar")


TASKS |= {f"minatar/{game}": Minatar(game=game, limit=2500 if game == "freeway" else 1000) for game in GAMES}
