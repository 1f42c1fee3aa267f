"""Matrix games: two agents, one joint action, one payoff for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from rookery.core.errors import ConfigError
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Action, ActionSpec, Spec, Step

CLIMBING = ((11.0, -30.0, 0.0), (-30.0, 7.0, 0.0), (0.0, 6.0, 5.0))


def penalty(k: float) -> tuple[tuple[float, ...], ...]:
    """The penalty game (Claus and Boutilier 1998): two optima of 10, miscoordination between them brings `k` <= 0."""
    return ((10.0, 0.0, k), (0.0, 2.0, 0.0), (k, 0.0, 10.0))


class MatrixState(eqx.Module):
    """Whether the one move has been made."""

    played: Int[Array, ""]


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Matrix:
    """A one-shot common-payoff game: the first agent picks a row, the second a column."""

    family: Literal["matrix"] = "matrix"
    game: str = "climbing"
    """A name for this payoff table."""
    payoff: tuple[tuple[float, ...], ...] = CLIMBING
    """Payoff of both agents for each row and column."""

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.payoff}
        if len(widths) != 1 or 0 in widths:
            raise ConfigError(f"payoff must be a table of equally long, non-empty rows, not {self.payoff}.")

    @property
    def spec(self) -> Spec:
        """The static facts of this game."""
        rows, columns = len(self.payoff), len(self.payoff[0])
        return Spec(
            name=f"matrix/{self.game}",
            agents=("row", "column"),
            obs_shape=(1,),
            action=ActionSpec("discrete", (max(rows, columns),)),
            limit=1,
            action_sizes=(rows, columns) if rows != columns else (),
        )

    def reset(self, key: Array) -> tuple[MatrixState, Step]:
        """Begin a game."""
        return MatrixState(jnp.zeros((), jnp.int32)), self._step(jnp.zeros(()), played=False)

    def step(self, state: MatrixState, action: Action, key: Array) -> tuple[MatrixState, Step]:
        """Both move; the game is over."""
        reward = jnp.array(self.payoff, jnp.float32)[action[0], action[1]]
        return MatrixState(state.played + 1), self._step(reward, played=True)

    def _step(self, reward: Array, *, played: bool) -> Step:
        """The one observation there is, before or after the move."""
        width = self.spec.action.width
        sizes = jnp.array([len(self.payoff), len(self.payoff[0])])
        return Step(
            obs=jnp.ones((2, 1)),
            state=jnp.zeros(0),
            legal=jnp.arange(width) < sizes[:, None],
            alive=jnp.ones(2, bool),
            reward=jnp.full(2, reward),
            discount=jnp.full(2, 0.0 if played else 1.0),
            first=jnp.array(not played),
            last=jnp.array(played),
            success=jnp.zeros(()),
        )


TASKS |= {
    "matrix/climbing": Matrix(),
    "matrix/penalty_0": Matrix(game="penalty_0", payoff=penalty(0.0)),
    "matrix/penalty_25": Matrix(game="penalty_25", payoff=penalty(-25.0)),
    "matrix/penalty_50": Matrix(game="penalty_50", payoff=penalty(-50.0)),
    "matrix/penalty_100": Matrix(game="penalty_100", payoff=penalty(-100.0)),
}
