"""The switch riddle: prisoners who meet only through a light bulb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax.numpy as jnp
from annotated_types import Ge
from jaxtyping import Array, Bool
from tyro.conf import arg

from rookery.core.ranges import Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.tasks.compiled.adapter import NEVER, JaxmarlTask, World, construct, make_world


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Riddle(JaxmarlTask):
    """The agent in the room may switch the light or tell that all have been there: 1 for all if true, -1 if not."""

    family: Literal["riddle"] = "riddle"
    agents: Annotated[int, Ge(3), arg(metavar="INT>=3")] = 3
    """Prisoners, 3 or more."""
    limit: Whole = 0
    """Days after which an episode is cut; 0: 4 per agent, less 6."""

    def __post_init__(self) -> None:
        check_ranges(self, "task")

    def build(self) -> World:
        """Construct the prison, with its own time limit out of the way: it counts as an end."""
        env = construct("switch_riddle", "SwitchRiddle", num_agents=self.agents)
        limit = self.limit or env.max_steps
        env.max_steps = NEVER

        def freed(env_state: Any, _: Any) -> Bool[Array, ""]:
            return env_state.done & jnp.all(env_state.has_been == 1)

        return make_world(env, name=f"riddle/{self.agents}", limit=limit, success=freed)


TASKS |= {f"riddle/{n}": Riddle(agents=n) for n in (3, 4, 5)}
