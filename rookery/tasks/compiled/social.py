"""Social dilemmas on grids: the coin game and STORM. Every agent has its own goal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Several, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.tasks.compiled.adapter import (
    NEVER,
    JaxmarlTask,
    World,
    construct,
    make_world,
    require,
)

_STORM = {"two_player": "InTheGrid_2p", "grid": "InTheGrid", "matrix": "InTheMatrix"}


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Coin(JaxmarlTask):
    """Two agents on a 3 x 3 torus. A coin gives 1 to whoever takes it; the other's coin costs the other 2."""

    family: Literal["coin"] = "coin"
    egocentric: bool = False
    """Whether each agent sees the grid centred on itself."""
    shared: bool = False
    """Whether both get the sum of both rewards, which makes the game cooperative."""
    limit: Count = 50
    """Transitions after which an episode is cut."""

    def __post_init__(self) -> None:
        check_ranges(self, "task")

    def build(self) -> World:
        """Construct one endless game: the environment's own inner episodes would swallow the reward at their end."""
        env = construct(
            "coin_game",
            "CoinGame",
            num_inner_steps=NEVER,
            num_outer_steps=1,
            cnn=True,
            egocentric=self.egocentric,
            shared_rewards=self.shared,
        )
        return make_world(
            env,
            name="coin/shared" if self.shared else "coin/selfish",
            limit=self.limit,
            names=("red", "blue"),
            teams=("red", "blue"),
            cooperative=self.shared,
        )


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Storm(JaxmarlTask):
    """Agents collect two kinds of coins, then interact: inventories are mixed strategies of a prisoner's dilemma."""

    family: Literal["storm"] = "storm"
    variant: str = "two_player"
    """two_player (the original), matrix (newer rules, image only, up to 8 agents), or grid (the original rules for up
    to 8 agents; very slow: every transition shuffles all 43,758 sets of start cells)."""
    agents: Several = 2
    """Agents; two_player has exactly 2."""
    limit: Count = 152
    """Transitions after which an episode is cut."""

    def __post_init__(self) -> None:
        require(self.variant, tuple(_STORM), "STORM variant")
        check_ranges(self, "task")
        if not 2 <= self.agents <= (2 if self.variant == "two_player" else 8):
            most = "exactly 2 agents" if self.variant == "two_player" else "2 to 8 agents"
            raise ConfigError(f"STORM's variant {self.variant} has {most}, not {self.agents}.")

    def build(self) -> World:
        """Construct one endless game: the environment's own inner episodes would swallow the reward at their end."""
        env = construct("storm", _STORM[self.variant], num_inner_steps=NEVER, num_agents=self.agents)
        names = tuple(f"agent_{i}" for i in range(self.agents))
        return make_world(
            env,
            name=f"storm/{self.variant}_{self.agents}",
            limit=self.limit,
            ids=tuple(range(self.agents)),
            names=names,
            teams=names,
            cooperative=False,
            read=_views,
        )


def _views(obs: Any) -> list[Array]:
    """Each agent's view; where inventories come with it, one vector of the view and what the agent may know of them."""
    if isinstance(obs, dict):
        grids, (own, shown) = obs["observations"], (obs["inventory"][:3], obs["inventory"][3:])
        # Of the others an agent knows what they show, in order from itself; of itself also what it hides.
        return [
            jnp.concatenate([grid.ravel(), own[:, i], jnp.roll(shown, -i, axis=1).ravel()])
            for i, grid in enumerate(grids)
        ]
    if isinstance(obs[0], dict):
        return [jnp.concatenate([o["observation"].ravel(), o["inventory"]]) for o in obs]
    return list(obs)


TASKS |= {
    "coin/selfish": Coin(),
    "coin/shared": Coin(shared=True),
    "storm/two_player": Storm(),
    "storm/matrix_4": Storm(variant="matrix", agents=4),
}
