"""Hanabi: players who see every hand but their own build fireworks by giving hints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from jaxtyping import Array
from tyro.conf import arg

from rookery.core.ranges import Count, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.tasks.compiled.adapter import JaxmarlTask, World, construct, make_world


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Hanabi(JaxmarlTask):
    """The full game. All players share one reward: cards added to the fireworks, all taken back if no life is left."""

    family: Literal["hanabi"] = "hanabi"
    players: Annotated[int, Ge(2), Le(5), arg(metavar="2..5")] = 2
    """Players, 2 to 5. Only the one whose turn it is may do anything but pass."""
    limit: Count = 100
    """Transitions after which a game is cut. The rules end every game earlier than the default."""

    def __post_init__(self) -> None:
        check_ranges(self, "task")

    def build(self) -> World:
        """Construct the game."""
        env = construct("hanabi", "Hanabi", num_agents=self.players)

        def masks(env_state: Any) -> list[Array]:
            legal = env.get_legal_moves(env_state)
            return [legal[a] for a in env.agents]

        return make_world(env, name=f"hanabi/{self.players}p", limit=self.limit, legal=masks)


TASKS |= {f"hanabi/{n}p": Hanabi(players=n) for n in (2, 3, 4, 5)}
