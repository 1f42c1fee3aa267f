"""What a uniformly random policy scores: `python -m rookery.tasks.measure NAME...` prints it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rookery.core.registry import TASKS, lookup
from rookery.core.types import Action, ActionSpec, Step, Task, where_env


def random_action(spec: ActionSpec, legal: Array, key: Array) -> Action:
    """Uniform over legal actions (or over the box) for each agent; `legal` is [agent, action]."""
    if spec.kind == "box":
        low, high = (np.clip(bound, -10.0, 10.0) for bound in spec.bounds)  # a space may be unbounded
        return jax.random.uniform(key, legal.shape, minval=low, maxval=high)
    if spec.kind == "multi_binary":
        return jax.random.bernoulli(key, 0.5, legal.shape)
    logits = jnp.where(legal, 0.0, -jnp.inf)
    if spec.kind == "discrete":
        return jax.random.categorical(key, logits).astype(jnp.int32)
    starts = [sum(spec.sizes[:i]) for i in range(len(spec.sizes))]
    keys = jax.random.split(key, len(spec.sizes))
    branches = [
        jax.random.categorical(k, logits[:, start : start + size])
        for k, start, size in zip(keys, starts, spec.sizes, strict=True)
    ]
    return jnp.stack(branches, axis=-1).astype(jnp.int32)


Player = Callable[[Any, Step, Array], Action]
"""From the state of one environment, what was seen of it, and a key, to the actions of all agents."""


def episodes_of(player: Player, task: Task[Any], episodes: int, key: Array) -> dict[str, Array]:
    """One episode in each of `episodes` environments: `returns` [episode, agent], `success` and `length` [episode]."""
    reset_key, key = jax.random.split(key)
    state, step = jax.vmap(task.reset)(jax.random.split(reset_key, episodes))
    returns = jnp.zeros((episodes, task.spec.n_agents))

    def going(carry: tuple[Any, Step, Array, Array, Array]) -> Array:
        return ~jnp.all(carry[1].last)

    def advance(carry: tuple[Any, Step, Array, Array, Array]) -> tuple[Any, Step, Array, Array, Array]:
        state, step, returns, length, key = carry
        act_key, step_key, key = jax.random.split(key, 3)
        action = jax.vmap(player)(state, step, jax.random.split(act_key, episodes))
        after = jax.vmap(task.step)(state, action, jax.random.split(step_key, episodes))
        # Episodes that are over wait, unchanged, for the longest one.
        new_state, new_step = where_env(step.last, (state, step), after)
        returns = returns + jnp.where(step.last[:, None], 0.0, new_step.reward)
        return new_state, new_step, returns, length + ~step.last, key

    start = (state, step, returns, jnp.zeros(episodes, jnp.int32), key)
    _, step, returns, length, _ = jax.lax.while_loop(going, advance, start)
    return {"returns": returns, "success": step.success, "length": length}


@partial(jax.jit, static_argnums=(0, 1))
def random_episodes(task: Task[Any], episodes: int, key: Array) -> dict[str, Array]:
    """Episodes of uniformly random legal actions."""

    def player(_: Any, step: Step, key: Array) -> Action:
        return random_action(task.spec.action, step.legal, key)

    return episodes_of(player, task, episodes, key)


def random_score(task: Task[Any], episodes: int, key: Array) -> tuple[float, float, float]:
    """Mean score of uniformly random legal actions in the task's own unit, its standard error, mean episode length."""
    result = random_episodes(task, episodes, key)
    scores = result["success"] if task.spec.score == "success" else jnp.mean(result["returns"], axis=1)
    return float(jnp.mean(scores)), float(jnp.std(scores) / jnp.sqrt(episodes)), float(jnp.mean(result["length"]))


def main() -> None:
    """Print name, random score, standard error, mean length and seconds, one task a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="tasks; none: all of them")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in args.names or TASKS:
        task, key, began = lookup(TASKS, name, "task"), jax.random.key(args.seed), time.perf_counter()
        score, error, length = random_score(task, args.episodes, key)
        seconds = time.perf_counter() - began
        print(f"{name:34} {score:12.4f} +- {error:.4f}  length {length:6.1f}  {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
