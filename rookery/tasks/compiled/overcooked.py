"""Overcooked v2: cooks who share a kitchen and one reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.core.ranges import Count, Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.tasks.compiled.adapter import (
    NEVER,
    Event,
    JaxmarlTask,
    World,
    construct,
    make_world,
    require,
)

LAYOUTS = (
    "cramped_room",
    "asymm_advantages",
    "coord_ring",
    "forced_coord",
    "counter_circuit",
    "cramped_room_v2",
    "asymm_advantages_recipes_center",
    "asymm_advantages_recipes_right",
    "asymm_advantages_recipes_left",
    "two_rooms",
    "two_rooms_both",
    "long_room",
    "fun_coordination",
    "more_fun_coordination",
    "fun_symmetries",
    "fun_symmetries_plates",
    "fun_symmetries1",
    "grounded_coord_simple",
    "grounded_coord_ring",
    "test_time_simple",
    "test_time_wide",
    "demo_cook_simple",
    "demo_cook_wide",
)


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Overcooked(JaxmarlTask):
    """A kitchen. Every agent gets 20 for each correct delivery; observations are height x width x channels."""

    family: Literal["overcooked"] = "overcooked"
    layout: str = "cramped_room"
    """Kitchen: cramped_room, coord_ring, ... (a misspelt name prints them all)."""
    view: Whole = 0
    """Cells that an agent sees in each direction; 0: the whole kitchen."""
    shaping: float = 0.0
    """Weight of the environment's shaped reward (for filling pots, fetching plates), added to each agent's own reward.
    The score is the return, so it includes this."""
    limit: Count = 400
    """Transitions after which an episode is cut."""

    def __post_init__(self) -> None:
        require(self.layout, LAYOUTS, "Overcooked layout")
        check_ranges(self, "task")

    def build(self) -> World:
        """Construct the kitchen, with its own time limit out of the way: it counts as an end."""
        view = self.view if self.view else None
        env = construct("overcooked_v2", "OvercookedV2", layout=self.layout, max_steps=NEVER, agent_view_size=view)

        def shaped(event: Event) -> Float[Array, "agent"]:
            return self.shaping * jnp.stack([event.info["shaped_reward"][a] for a in env.agents])

        return make_world(
            env,
            name=f"overcooked/{self.layout}",
            limit=self.limit,
            bonus=shaped if self.shaping else None,
        )


_LISTED = (*LAYOUTS[:6], "grounded_coord_simple", "grounded_coord_ring", "demo_cook_simple", "test_time_simple")
TASKS |= {f"overcooked/{name}": Overcooked(layout=name) for name in _LISTED}
