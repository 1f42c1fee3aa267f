"""What scripted players score: how far above random play, or above the learnt scores, there is room.

    python benchmarks/scripted.py [TASK...] [--episodes 2000]

simple_spread: each agent goes straight to its landmark, by the assignment with the least distance in all.
simple_speaker_listener: the listener goes to the middle of the landmarks (all that it can do without being told), or
straight to the one that is meant.
SMAX: everyone shoots at the nearest enemy in range, or walks to the nearest one; kiting also steps back while the
weapon cools down.
MinAtar: a planner that knows the rules tries random sequences of actions and plays the first action of the best one; in
Freeway the player always walks up.
Scores are in the task's own unit (returns of an episode, mean over agents, or the share of battles won), with their
standard errors.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import rookery.tasks  # noqa: F401  (fills TASKS)
from rookery.core.keys import stream
from rookery.core.registry import TASKS
from rookery.core.types import Step, Task
from rookery.tasks.compiled.adapter import require, world_of
from rookery.tasks.compiled.smax import Smax
from rookery.tasks.measure import Player, episodes_of

Script = Callable[[Any], Int[Array, "agent"]]
"""From the positions and velocities of a world to the actions of all agents."""
Builder = Callable[[Any], Player]
"""From a task to a player of it."""

_AHEAD = 0.35
"""Seconds to look ahead, so that braking begins in time."""
_NEAR = 0.06


def towards(goal: Float[Array, "2"], place: Float[Array, "2"], velocity: Float[Array, "2"]) -> Int[Array, ""]:
    """The push (0: none, 1: left, 2: right, 3: down, 4: up) that helps most."""
    way = goal - (place + _AHEAD * velocity)
    axis = jnp.argmax(jnp.abs(way))
    push = 1 + 2 * axis + (way[axis] > 0)
    return jnp.where(jnp.abs(way[axis]) < _NEAR, 0, push).astype(jnp.int32)


def spread(world: Any) -> Int[Array, "agent"]:
    """Everyone to a landmark of their own."""
    agents, landmarks = world.p_pos[:3], world.p_pos[3:]
    orders = jnp.asarray(list(itertools.permutations(range(3))))
    far = jnp.linalg.norm(agents - landmarks[orders], axis=-1).sum(-1)
    return jax.vmap(towards)(landmarks[orders[jnp.argmin(far)]], agents, world.p_vel[:3])


def told(world: Any) -> Int[Array, "agent"]:
    """The listener to the landmark that is meant."""
    return _listener(world, world.p_pos[2:][world.goal])


def untold(world: Any) -> Int[Array, "agent"]:
    """The listener to the middle of all landmarks."""
    return _listener(world, jnp.mean(world.p_pos[2:], axis=0))


def _listener(world: Any, goal: Array) -> Int[Array, "agent"]:
    return jnp.stack([jnp.int32(0), towards(goal, world.p_pos[1], world.p_vel[1])])


def scripted(script: Script) -> Builder:
    """A player that sees the positions and velocities of a particle world."""
    return lambda _: lambda state, __, ___: script(state.env)


_MOVES = jnp.array([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
"""Directions of SMAX's first four actions; the fifth is to stop, then comes a shot at each enemy."""
_STOP, _SHOTS = 4, 5
_EDGE = 2.0


def fight(task: Smax, *, kiting: bool) -> Player:
    """Shoot at the nearest enemy in range, else walk to the nearest; `kiting`: step back while the weapon cools."""
    env = world_of(task).env
    n = env.num_allies

    def player(state: Any, step: Step, _: Array) -> Int[Array, "agent"]:
        battle = state.env.state
        own, enemies = battle.unit_positions[:n], battle.unit_positions[n:]
        apart = jnp.where(battle.unit_alive[n:], jnp.linalg.norm(own[:, None] - enemies, axis=-1), jnp.inf)
        in_range = step.legal[:, _SHOTS:]
        way = enemies[jnp.argmin(apart, axis=1)] - own
        shot = _SHOTS + jnp.argmin(jnp.where(in_range, apart, jnp.inf), axis=1)
        action = jnp.where(jnp.any(in_range, axis=1), shot, jnp.argmax(way @ _MOVES.T, axis=1))
        if kiting:
            retreat = jax.vmap(_retreat, (0, 0, None, None))(own, battle.unit_types[:n], battle, env)
            cooling = battle.unit_weapon_cooldowns[:n] > 0.0
            action = jnp.where(cooling & (jnp.min(apart, axis=1) < 6.0), retreat, action)
        return jnp.where(battle.unit_alive[:n], action, _STOP).astype(jnp.int32)

    return player


def _retreat(place: Float[Array, "2"], kind: Int[Array, ""], battle: Any, env: Any) -> Int[Array, ""]:
    """The move that leads farthest from the nearest enemy and not to the edge of the map, where units die."""
    seconds = env.world_steps_per_env_step * env.time_per_step
    after = place + _MOVES * env.unit_type_velocities[kind] * seconds
    enemies, alive = battle.unit_positions[env.num_allies :], battle.unit_alive[env.num_allies :]
    apart = jnp.linalg.norm(after[:, None] - enemies, axis=-1)
    edge = jnp.min(jnp.minimum(after, jnp.array([env.map_width, env.map_height]) - after), axis=1)
    return jnp.argmax(jnp.min(jnp.where(alive, apart, jnp.inf), axis=1) - 100.0 * (edge < _EDGE))


def planner(task: Task[Any], *, tries: int = 32, depth: int = 12) -> Player:
    """Random shooting: the first action of the sequence that earns most, an end of the game costing 1."""
    actions = task.spec.action.width

    def worth(state: Any, sequence: Int[Array, "depth"], key: Array) -> Float[Array, ""]:
        def advance(carry: Any, xs: tuple[Array, Array]) -> tuple[Any, Array]:
            state, going = carry
            state, step = task.step(state, xs[0][None], xs[1])
            earned = going * (step.reward[0] - (1.0 - step.discount[0]))
            return (state, going * step.discount[0]), earned

        keys = jax.random.split(key, depth)
        return jnp.sum(jax.lax.scan(advance, (state, 1.0), (sequence, keys))[1] * 0.95 ** jnp.arange(depth))

    def player(state: Any, _: Step, key: Array) -> Int[Array, "1"]:
        sequences = jax.random.randint(stream(key, "sequences"), (tries, depth), 0, actions)
        keys = jax.random.split(stream(key, "luck"), tries)
        found = jax.vmap(worth, (None, 0, 0))(state, sequences, keys)
        return sequences[jnp.argmax(found), :1]

    return player


def always(action: int) -> Builder:
    """One action, again and again."""
    return lambda task: lambda _, __, ___: jnp.full(task.spec.n_agents, action, jnp.int32)


_SMAX_TASKS = ("corridor", "3s_vs_3z", "3s_vs_4z", "8m_vs_9m", "2m_vs_1z")
PLAYERS: list[tuple[str, str, Builder]] = [
    ("mpe/simple_spread", "each to a landmark", scripted(spread)),
    ("mpe/simple_speaker_listener", "to the middle", scripted(untold)),
    ("mpe/simple_speaker_listener", "to the right landmark", scripted(told)),
    *((f"smax/{name}", "the nearest", partial(fight, kiting=False)) for name in _SMAX_TASKS),
    *((f"smax/{name}", "kiting", partial(fight, kiting=True)) for name in _SMAX_TASKS),
    *((f"minatar/{name}", "planner", planner) for name in ("asterix", "space_invaders")),
    # The ball takes up to 18 steps from the paddle to the bricks and back.
    ("minatar/breakout", "planner", partial(planner, tries=128, depth=30)),
    ("minatar/freeway", "always up", always(1)),
]


def main() -> None:
    """Print a line for each player."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="tasks; none: all that have a scripted player")
    parser.add_argument("--episodes", type=int, default=2000)
    args = parser.parse_args()
    known = list(dict.fromkeys(task for task, _, _ in PLAYERS))
    for task in args.tasks:
        require(task, known, "task with a scripted player")
    for name, how, build in PLAYERS:
        if args.tasks and name not in args.tasks:
            continue
        task = TASKS[name]
        result = jax.jit(partial(episodes_of, build(task), task, args.episodes))(jax.random.PRNGKey(0))
        found = result["success"] if task.spec.score == "success" else jnp.mean(result["returns"], axis=1)
        print(f"{name}, {how}: {found.mean():.2f} ({found.std() / args.episodes**0.5:.2f})", flush=True)


if __name__ == "__main__":
    main()
