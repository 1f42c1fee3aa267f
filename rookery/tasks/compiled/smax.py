"""StarCraft-like battles (SMAX) against the built-in heuristic enemy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from rookery.core.ranges import Count, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Entities
from rookery.tasks.compiled.adapter import (
    NEVER,
    JaxmarlTask,
    World,
    construct,
    load,
    make_world,
    require,
)

MAPS = (
    "3m",
    "2s3z",
    "25m",
    "3s5z",
    "8m",
    "5m_vs_6m",
    "10m_vs_11m",
    "27m_vs_30m",
    "3s5z_vs_3s6z",
    "3s_vs_5z",
    "6h_vs_8z",
    "smacv2_5_units",
    "smacv2_10_units",
    "smacv2_20_units",
)
"""Maps that jaxmarl defines."""

MARINE, STALKER, ZEALOT, ZERGLING = 0, 2, 3, 4
"""Unit types, as jaxmarl counts them."""
MORE_MAPS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "corridor": ((ZEALOT,) * 6, (ZERGLING,) * 24),
    "3s_vs_3z": ((STALKER,) * 3, (ZEALOT,) * 3),
    "3s_vs_4z": ((STALKER,) * 3, (ZEALOT,) * 4),
    "8m_vs_9m": ((MARINE,) * 8, (MARINE,) * 9),
    "2m_vs_1z": ((MARINE,) * 2, (ZEALOT,)),
}
"""Maps of SMAC that jaxmarl leaves out, as unit types of allies and enemies. The ground is SMAX's open square: corridor
has no corridor."""


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Smax(JaxmarlTask):
    """A battle. All allies share one reward: enemy health taken (1 in all) plus 1 for a win. Success is a win."""

    family: Literal["smax"] = "smax"
    map: str = "3m"
    """Map: 3m, 2s3z, ... (`rookery tasks` lists them)."""
    see_enemy_actions: bool = True
    """Whether observations show what visible enemies last did."""
    walls_cause_death: bool = True
    """Whether a unit dies that touches the edge of the map."""
    attack_mode: Literal["closest", "random"] = "closest"
    """Whom the heuristic enemy shoots at."""
    limit: Count = 100
    """Transitions after which a battle is cut (undecided, not lost)."""

    def __post_init__(self) -> None:
        require(self.map, (*MAPS, *MORE_MAPS), "SMAX map")
        require(self.attack_mode, ("closest", "random"), "attack mode")
        check_ranges(self, "task")

    def build(self) -> World:
        """Construct the battle, its own time limit out of the way: it counts as an end and is one step too long."""
        env = construct(
            "smax",
            "HeuristicEnemySMAX",
            scenario=_scenario(self.map),
            see_enemy_actions=self.see_enemy_actions,
            walls_cause_death=self.walls_cause_death,
            attack_mode=self.attack_mode,
            max_steps=NEVER,
        )
        allies, enemies = env.num_allies, env.num_enemies
        unit, own = len(env.unit_features), len(env.own_features)
        start = (allies + enemies - 1) * unit

        def masks(env_state: Any) -> list[Array]:
            available = env.get_avail_actions(env_state)
            return [available[a] for a in env.agents]

        def won(env_state: Any, _: Any) -> Bool[Array, ""]:
            alive = env_state.state.unit_alive
            # Both sides may fall in the same instant: a draw.
            return jnp.any(alive[:allies]) & ~jnp.any(alive[allies:])

        return make_world(
            env,
            name=f"smax/{self.map}",
            limit=self.limit,
            score="success",
            position=(start + 1, start + 2),
            entities=(
                Entities("ally", 0, allies - 1, unit),
                # Action 5 + k attacks enemy k, and what allies last did names their target by its index.
                Entities(
                    "enemy", (allies - 1) * unit, enemies, unit, first_action=env.num_movement_actions, ordered=True
                ),
                Entities("self", start, 1, own),
            ),
            legal=masks,
            alive=lambda env_state: env_state.state.unit_alive[:allies],
            state=lambda _, event: event.obs["world_state"],
            success=won,
        )


def _scenario(name: str) -> Any:
    """jaxmarl's description of a map."""
    if name not in MORE_MAPS:
        return load("smax", "map_name_to_scenario")(name)
    allies, enemies = MORE_MAPS[name]
    with jax.ensure_compile_time_eval():  # the first call may come while tracing
        units = jnp.array(allies + enemies, jnp.uint8)
    return load("smax", "Scenario")(
        unit_types=units,
        num_allies=len(allies),
        num_enemies=len(enemies),
        smacv2_position_generation=False,
        smacv2_unit_type_generation=False,
    )


TASKS |= {f"smax/{name}": Smax(map=name) for name in (*MAPS, *MORE_MAPS)}
