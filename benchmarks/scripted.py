"""What scripted players score on two particle worlds: how far above the learnt scores there is still room.

    python benchmarks/scripted.py [--episodes 2000]

simple_spread: each agent goes straight to its landmark, by the assignment with the least distance in all.
simple_speaker_listener: the listener goes to the middle of the landmarks (all that it can do without being told), or
straight to the one that is meant. Scores are returns of an episode, mean over agents, with their standard errors.
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

import rookery
from rookery.core.types import Step
from rookery.tasks.measure import episodes_of

Script = Callable[[Any], Int[Array, "agent"]]
"""From the positions and velocities of a world to the actions of all agents."""

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


PLAYERS: dict[str, tuple[str, Script]] = {
    "each to a landmark": ("mpe/simple_spread", spread),
    "to the middle": ("mpe/simple_speaker_listener", untold),
    "to the right landmark": ("mpe/simple_speaker_listener", told),
}


def main() -> None:
    """Print a line for each player."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000)
    episodes = parser.parse_args().episodes
    for name, (task, script) in PLAYERS.items():

        def player(state: Any, _: Step, __: Array, script: Script = script) -> Array:
            return script(state.env)

        play = jax.jit(partial(episodes_of, player, rookery.config("ippo", task).task, episodes))
        found = jnp.mean(play(jax.random.PRNGKey(0))["returns"], axis=1)
        print(f"{task}, {name}: {found.mean():.2f} ({found.std() / episodes**0.5:.2f})")


if __name__ == "__main__":
    main()
