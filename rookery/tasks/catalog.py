"""What is known about every task: what its score means, what random play and good play score, and who says so."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rookery.core.registry import TASKS, find_task
from rookery.tasks import compiled  # noqa: F401  (fills TASKS)

UNKNOWN = "not yet measured"
SHAPES = Path(__file__).with_name("shapes.json")


@dataclass(frozen=True)
class Facts:
    """One task's entry."""

    about: str
    """What the task is, in one line."""
    score: str
    """What a score means, and its unit."""
    random: float
    """Mean score of uniformly random legal actions."""
    error: float
    """Standard error of `random`."""
    episodes: int
    """Episodes that `random` was measured on; 0 where it is exact."""
    reference: float = math.nan
    """A score to stand beside; nan where none is known in this unit."""
    source: str = UNKNOWN
    """Where `reference` comes from."""


_RETURN = "return of an episode, mean over agents"
_WINS = "share of battles won"
_GOALS = "share of episodes that reach the goal"
_MIXED = "return of an episode, mean over all agents of both teams: train one team to compare"

# name: (mean, standard error, episodes), by `python -m rookery.tasks.measure`; 0 episodes: exact.
_RANDOM: dict[str, tuple[float, float, int]] = {
    "hanabi/2p": (0.0, 0.0, 512),
    "hanabi/3p": (0.0, 0.0, 512),
    "hanabi/4p": (0.0, 0.0, 512),
    "hanabi/5p": (0.0, 0.0, 512),
    "key_to_door/short": (2.274062, 0.0, 0),
    "key_to_door/flat": (2.274062, 0.0, 0),
    "key_to_door/long": (4.054341, 0.0, 0),
    "key_to_door/noisy": (4.054341, 0.0, 0),
    "matrix/climbing": (-31.0 / 9.0, 0.0, 0),
    "matrix/penalty_0": (22.0 / 9.0, 0.0, 0),
    "matrix/penalty_25": (-28.0 / 9.0, 0.0, 0),
    "matrix/penalty_50": (-78.0 / 9.0, 0.0, 0),
    "matrix/penalty_100": (-178.0 / 9.0, 0.0, 0),
    "maze/static": (0.0002, 0.0002, 4096),
    "maze/static_image": (0.0002, 0.0002, 4096),
    "maze/goal": (0.0337, 0.0028, 4096),
    "maze/goal_hidden": (0.0337, 0.0028, 4096),
    "maze/walls": (0.0005, 0.0003, 4096),
    "maze/walls_moving": (0.0002, 0.0002, 4096),
    "maze/gbmr": (0.197679, 0.0, 0),
    "maze/image": (0.197679, 0.0, 0),
    "maze/20x20": (0.018583, 0.0, 0),
    "maze/dynamic": (0.155012, 0.0, 0),
    "minatar/asterix": (0.5, 0.0386, 512),
    "minatar/breakout": (0.4766, 0.0327, 512),
    "minatar/freeway": (0.375, 0.0276, 512),
    "minatar/space_invaders": (3.986, 0.1359, 512),
    "mpe/simple": (-38.12, 1.456, 512),
    "mpe/simple_spread": (-26.3, 0.3426, 512),
    "mpe/simple_speaker_listener": (-38.32, 1.498, 512),
    "mpe/simple_reference": (-28.19, 0.4251, 512),
    "mpe/simple_adversary": (-4.495, 0.3282, 512),
    "mpe/simple_tag": (-0.7705, 0.3329, 512),
    "mpe/simple_push": (-13.9, 0.2641, 512),
    "mpe/simple_crypto": (-540843.0, 36.4, 512),
    "mpe/simple_world_comm": (-6.309, 0.4292, 512),
    "mpe/simple_facmac": (1.406, 0.2634, 512),
    "mpe/simple_facmac_3a": (0.8398, 0.1908, 512),
    "mpe/simple_facmac_6a": (4.941, 0.5115, 512),
    "mpe/simple_facmac_9a": (15.29, 0.9773, 512),
    "overcooked/cramped_room": (0.8594, 0.1792, 512),
    "overcooked/asymm_advantages": (0.2344, 0.0951, 512),
    "overcooked/coord_ring": (0.0, 0.0, 512),
    "overcooked/forced_coord": (0.0, 0.0, 512),
    "overcooked/counter_circuit": (0.0, 0.0, 512),
    "overcooked/cramped_room_v2": (0.1953, 0.0869, 512),
    "overcooked/grounded_coord_simple": (-13.75, 0.5072, 512),
    "overcooked/grounded_coord_ring": (-10.17, 0.4372, 512),
    "overcooked/demo_cook_simple": (0.0391, 0.039, 512),
    "overcooked/test_time_simple": (0.0, 0.0, 512),
    "riddle/3": (-0.6465, 0.0307, 512),
    "riddle/4": (-0.8086, 0.0256, 512),
    "riddle/5": (-0.9453, 0.0144, 512),
    "rooms/four": (0.0022, 0.0007, 4096),
    "rooms/four_random": (0.166, 0.0058, 4096),
    "rooms/four_step": (0.166, 0.0058, 4096),
    "rooms/four_dense": (0.0022, 0.0007, 4096),
    "rooms/four_inertia": (0.0, 0.0, 4096),
    "smax/3m": (0.0, 0.0, 512),
    "smax/2s3z": (0.0, 0.0, 512),
    "smax/25m": (0.0, 0.0, 128),
    "smax/3s5z": (0.0, 0.0, 512),
    "smax/8m": (0.0, 0.0, 512),
    "smax/5m_vs_6m": (0.0, 0.0, 512),
    "smax/10m_vs_11m": (0.0, 0.0, 512),
    "smax/27m_vs_30m": (0.0, 0.0, 128),
    "smax/3s5z_vs_3s6z": (0.0, 0.0, 512),
    "smax/3s_vs_5z": (0.0, 0.0, 512),
    "smax/6h_vs_8z": (0.0, 0.0, 512),
    "smax/smacv2_5_units": (0.002, 0.002, 512),
    "smax/smacv2_10_units": (0.0, 0.0, 512),
    "smax/smacv2_20_units": (0.0, 0.0, 128),
    "smax/corridor": (0.0, 0.0, 256),
    "smax/3s_vs_3z": (0.0, 0.0, 512),
    "smax/3s_vs_4z": (0.0, 0.0, 512),
    "smax/8m_vs_9m": (0.0, 0.0, 512),
    "smax/2m_vs_1z": (0.0, 0.0, 512),
    "coin/selfish": (0.1426, 0.082, 512),
    "coin/shared": (0.2852, 0.164, 512),
    "storm/two_player": (0.8432, 0.0527, 512),
    "storm/matrix_4": (0.5581, 0.0376, 512),
    "tmaze/10": (0.490994, 0.0, 0),
    "tmaze/30": (0.499928, 0.0, 0),
    "tmaze/100": (0.5, 0.0, 0),
}

_ABOUT = {
    "matrix/climbing": "two agents, 3 x 3 payoffs, miscoordination near the optimum costs 30",
    "mpe/simple": "one agent goes to a landmark",
    "mpe/simple_spread": "agents cover all landmarks without colliding",
    "mpe/simple_speaker_listener": "a speaker names a landmark, a listener goes there",
    "mpe/simple_reference": "two agents tell each other where to go, and go",
    "mpe/simple_adversary": "two agents hide from an adversary which landmark is the goal",
    "mpe/simple_tag": "three slow hunters chase one fast prey",
    "mpe/simple_push": "an adversary pushes an agent away from its landmark",
    "mpe/simple_crypto": "alice and bob share a key and a secret, eve listens; rewards are squared color distances",
    "mpe/simple_world_comm": "hunters with a talking leader, prey with food and forests to hide in",
    "mpe/simple_facmac": "three hunters chase scripted prey, continuous actions, limited sight",
    "mpe/simple_facmac_3a": "three hunters chase one scripted prey that flees the nearest",
    "mpe/simple_facmac_6a": "six hunters chase two scripted prey that flee the nearest",
    "mpe/simple_facmac_9a": "nine hunters chase three scripted prey that flee the nearest",
    "coin/selfish": "two agents and two colors of coins on a torus, each for itself",
    "coin/shared": "two agents and two colors of coins on a torus, rewards added",
    "storm/two_player": "prisoner's dilemma by collected coins, two agents",
    "storm/matrix_4": "prisoner's dilemma by collected coins, four agents, newer rules",
    "maze/static": "10 x 10 maze, 12 obstacles, own position seen",
    "maze/static_image": "10 x 10 maze, 12 obstacles, seen from above",
    "maze/goal": "maze whose goal is elsewhere in every episode, seen from above",
    "maze/goal_hidden": "maze whose goal is elsewhere in every episode, only own position seen",
    "maze/walls": "maze with other obstacles in every episode, seen from above",
    "maze/walls_moving": "maze whose obstacles move every 10 steps, seen from above",
    "maze/gbmr": "the 10 x 10 maze of the GBMR authors, 9 obstacles that block the way, own position seen",
    "maze/image": "the same maze seen from above",
    "maze/20x20": "20 x 20 maze, 48 obstacles that block the way, own position seen",
    "maze/dynamic": "10 x 10 maze with other obstacles in every episode, which block the way, seen from above",
    "key_to_door/short": "fetch a key, eat apples for 30 steps, open a door with the key",
    "key_to_door/flat": "key_to_door/short with a flat observation",
    "key_to_door/long": "fetch a key, eat apples for 90 steps, open a door with the key",
    "key_to_door/noisy": "key_to_door/long where one apple in ten has a reward, ten times as high",
    "minatar/asterix": "collect gold, avoid enemies",
    "minatar/breakout": "break bricks with a ball and a paddle",
    "minatar/freeway": "cross a road with eight lanes of cars, again and again",
    "minatar/space_invaders": "shoot aliens that come down and shoot back",
    "rooms/four": "four rooms in the plane, from one corner to the other, reward at the goal only",
    "rooms/four_random": "four rooms in the plane, any start and any goal, reward at the goal only",
    "rooms/four_step": "four rooms in the plane, any start and any goal, -1 for every step",
    "rooms/four_dense": "four rooms in the plane, from one corner to the other, rewards by straight distance",
    "rooms/four_inertia": "rooms/four for a point mass that keeps most of its velocity",
    "smax/corridor": "battle against a scripted enemy: 6 zealots, 24 zerglings, on open ground",
}

# Win rates of recurrent PPO after about 10M steps, read off plots: JaxMARL's IPPO and MAPPO, Mava's IPPO and MAPPO.
_SMAX_PUBLISHED = {
    "2s3z": "0.90 1.00 0.89 0.94",
    "3s5z": "0.55 0.70 1.00 0.97",
    "3s_vs_5z": "0.60 0.00 0.99 0.93",
    "5m_vs_6m": "0.12 0.05 0.05 0.09",
    "6h_vs_8z": "0.95 0.20 0.99 1.00",
    "10m_vs_11m": "0.28 0.40 0.31 0.67",
    "27m_vs_30m": "0.10 0.15 0.32 0.79",
    "3s5z_vs_3s6z": "0.02 0.35 0.70 0.76",
}

# Win rates of two scripted players: who shoots at the nearest enemy, and who also steps back while the weapon cools.
_SMAX_SCRIPTED = {
    "corridor": "0.00 0.00, no player that wins is known",
    "3s_vs_3z": "0.06 1.00",
    "3s_vs_4z": "0.00 1.00",
    "8m_vs_9m": "0.02 0.00",
    "2m_vs_1z": "1.00 1.00",
}

_PLANNER = "a planner that knows the rules and tries {} sequences of {} actions, {} games, benchmarks/scripted.py"

_REFERENCE: dict[str, tuple[float, str]] = {
    "matrix/climbing": (11.0, "the optimum"),
    "mpe/simple_spread": (
        -13.9,
        "JaxMARL MAPPO-RNN, 1.6M steps: -43.4 in its unit (times 3 agents, 26 transitions), converted",
    ),
    "mpe/simple_speaker_listener": (-13.9, "MARLlib A2C, 20M steps, PettingZoo's version"),
    "maze/gbmr": (
        1.0,
        "the goal in every episode; goals in 12,000 steps, published means of 5 runs: Q 323.6, GQ 323.6, "
        "GCQ 594.4, GNN 515.8; at most 666",
    ),
    "minatar/asterix": (11.16, _PLANNER.format(32, 12, 32)),
    "minatar/breakout": (18.64, _PLANNER.format(128, 30, 64)),
    "minatar/space_invaders": (182.6, _PLANNER.format(32, 12, 32)),
    "minatar/freeway": (15.67, "always up, 256 games, benchmarks/scripted.py"),
}


def _about(name: str) -> str:
    """One line about a task."""
    kind, _, rest = name.partition("/")
    lines = {
        "matrix": f"two agents, 3 x 3 payoffs, two optima, {rest.removeprefix('penalty_')} lost between them",
        "smax": f"battle against a scripted enemy: {rest}",
        "overcooked": f"cooks who share a kitchen and deliver soups: {rest}",
        "hanabi": f"the full card game for {rest.removesuffix('p')} players",
        "riddle": f"{rest} prisoners who meet only through a light bulb",
        "tmaze": f"a cue at the start, a corridor of {rest} cells, a choice between two arms",
    }
    return _ABOUT.get(name) or lines[kind]


def _score(name: str) -> str:
    """What a task's score means."""
    kind, _, rest = name.partition("/")
    if rest in ("simple_adversary", "simple_tag", "simple_push", "simple_crypto", "simple_world_comm"):
        return _MIXED
    units = {
        "smax": _WINS,
        "maze": _GOALS,
        "rooms": _GOALS,
        "tmaze": "share of episodes that end in the right arm; without memory at most 0.5",
        "key_to_door": "return of an episode: 1 on average for each of 5 apples, 5 for the door",
        "minatar": "return of a game, as gymnax counts it",
        "overcooked": f"{_RETURN}: 20 for each delivery of the team, less 5 for each press of a recipe button",
        "hanabi": f"{_RETURN}: cards played, 0 to 25, 0 if all lives are lost",
    }
    return units.get(kind, _RETURN)


def _reference(name: str) -> tuple[float, str]:
    """A score to stand beside, and its source."""
    kind, _, rest = name.partition("/")
    published = f"; published {_SMAX_PUBLISHED[rest]}" if rest in _SMAX_PUBLISHED else ""
    scripted = f"; scripted {_SMAX_SCRIPTED[rest]}" if rest in _SMAX_SCRIPTED else ""
    bounds = {
        "matrix": (10.0, "the optimum"),
        "smax": (1.0, f"every battle won{published}{scripted}"),
        "hanabi": (25.0, "a perfect game"),
        "maze": (1.0, "the goal in every episode"),
        "rooms": (1.0, "the goal in every episode"),
        "tmaze": (1.0, "the right arm in every episode"),
        "key_to_door": (10.0, "the optimum"),
    }
    # Walls that move may leave no way that is safe, and a hidden goal has to be searched.
    if name in ("maze/walls_moving", "maze/goal_hidden"):
        return math.nan, UNKNOWN
    return _REFERENCE.get(name) or bounds.get(kind) or (math.nan, UNKNOWN)


FACTS: dict[str, Facts] = {
    name: Facts(_about(name), _score(name), *_RANDOM[name], *_reference(name)) for name in TASKS if name in _RANDOM
}
"""Task name -> what is known about it."""


def shapes(name: str) -> dict[str, Any]:
    """Sizes of a task, read off its spec. Builds the task: a second for some."""
    spec = find_task(name).spec
    return {
        "agents": spec.n_agents,
        "teams": list(dict.fromkeys(spec.teams)),
        "obs": list(spec.obs_shape),
        "state": spec.state_size,
        "action": spec.action.kind,
        "actions": spec.action.width,
        "limit": spec.limit,
    }


@cache
def recorded_shapes() -> dict[str, dict[str, Any]]:
    """`shapes` of every task as recorded by `python -m rookery.tasks.catalog`, so that a list needs to build none."""
    return json.loads(SHAPES.read_text())


def _own_facts(name: str) -> Facts:
    task = TASKS[name]
    about = (type(task).__doc__ or "").partition("\n")[0]
    return Facts(about, "success" if task.spec.score == "success" else _RETURN, math.nan, math.nan, 0)


def describe(name: str) -> dict[str, Any]:
    """One row of the table of tasks; of a task from a file of the user's own, what its class says."""
    facts = FACTS.get(name) or _own_facts(name)
    return {
        "name": name,
        **(recorded_shapes().get(name) or shapes(name)),
        "random": facts.random,
        "reference": facts.reference,
        "score": facts.score,
        "source": facts.source,
        "about": facts.about,
    }


if __name__ == "__main__":
    SHAPES.write_text(json.dumps({name: shapes(name) for name in sorted(FACTS)}, indent=1) + "\n")
