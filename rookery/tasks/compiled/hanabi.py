"""Hanabi: players who see every hand but their own build fireworks by giving hints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Array

from rookery.core.errors import ConfigError
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.tasks.compiled.adapter import JaxmarlTask, World, construct, make_world, require_positive


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Hanabi(JaxmarlTask):
    """The full game. All players share one reward: cards added to the fireworks, all taken back if no life is left."""

    family: Literal["hanabi"] = "hanabi"
    players: int = 2
    """Players, 2 to 5. Only the one whose turn it is may do anything but pass."""
    limit: int = 100
    """Transitions after which a game is cut. The rules end every game earlier than the default."""

    def __post_init__(self) -> None:
        require_positive(self.limit, "limit")
        if not 2 <= self.players <= 5:
            raise ConfigError(f"Hanabi has 2 to 5 players, not {self.players}.")

    def build(self) -> World:
        """Construct the game."""
        env = construct("hanabi", "Hanabi", num_agents=self.players)

        def masks(env_state: Any) -> list[Array]:
            legal = env.get_legal_moves(env_state)
            return [legal[a] for a in env.agents]

        return make_world(env, name=f"hanabi/{self.players}p", limit=self.limit, legal=masks)


TASKS |= {f"hanabi/{n}p": Hanabi(players=n) for n in (2, 3, 4, 5)}
