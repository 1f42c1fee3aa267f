"""Collecting experience: environments, agents' carries and running episode scores, moved together."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from rookery.core.keys import stream
from rookery.core.types import (
    Action,
    ActionSpec,
    Algorithm,
    Carry,
    Clock,
    Mean,
    Metrics,
    Rollout,
    Spec,
    Step,
    Task,
    where_env,
)

LONGEST = 27_000
"""Transitions after which an evaluation cuts an episode of a task without a step limit (Atari's half an hour)."""


class Tally(eqx.Module):
    """Score of the episode under way in each environment."""

    returns: Float[Array, "env agent"]
    length: Int[Array, "env"]


class Worlds(eqx.Module):
    """Parallel environments between two steps; every leaf leads with an env axis."""

    env: PyTree[Array]
    step: Step
    carry: Carry
    tally: Tally


def open_worlds(algo: Algorithm[Any], task: Task[Any], envs: int, key: Array) -> Worlds:
    """Fresh episodes."""
    spec = task.spec
    env, step = jax.vmap(task.reset)(jax.random.split(key, envs))
    tally = Tally(jnp.zeros((envs, spec.n_agents)), jnp.zeros(envs, jnp.int32))
    return Worlds(env, step, algo.carry(spec, envs), tally)


def within_bounds(spec: ActionSpec, action: Action) -> Action:
    """What the environment is given: box actions are clipped, the learner keeps what it drew.

    0 stands for what is not a number: a member that diverged acts on until its chunk reports it as failed.
    """
    if spec.kind != "box":
        return action
    action = jnp.where(jnp.isfinite(action), action, 0.0)
    return jnp.clip(action, *spec.bounds) if spec.clip else action


def advance(task: Task[Any], env: PyTree[Array], step: Step, action: Action, key: Array) -> tuple[Any, Step]:
    """One row on: a transition, or where the last row closed an episode, a reset."""
    action = within_bounds(task.spec.action, action)
    envs = step.first.shape[0]
    moved = jax.vmap(task.step)(env, action, jax.random.split(stream(key, "step"), envs))
    return _reset_where(task, step.last, jax.random.split(stream(key, "reset"), envs), moved)


def _reset_where(task: Task[Any], last: Bool[Array, "env"], keys: Array, moved: Any) -> Any:
    """`moved`, but a fresh episode in each environment whose `last` is set.

    Resets are computed only in rows where an episode of any member has ended: environments that run in step (MPE) need
    them in 1 of 26. A condition of each member's own would turn into a `select` under vmap, and always be computed.
    """

    def keep(last: Array, keys: Array, moved: Any) -> Any:
        return moved

    def renew(last: Array, keys: Array, moved: Any) -> Any:
        return where_env(last, jax.vmap(task.reset)(keys), moved)

    @jax.custom_batching.custom_vmap
    def reset(last: Array, keys: Array, moved: Any) -> Any:
        return jax.lax.cond(jnp.any(last), renew, keep, last, keys, moved)

    @reset.def_vmap
    def over_members(members: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        def lead(x: Array, has: bool) -> Array:
            return x if has else jnp.broadcast_to(x, (members, *x.shape))

        args = jax.tree.map(lead, args, tuple(batched))
        out = jax.lax.cond(jnp.any(args[0]), jax.vmap(renew), jax.vmap(keep), *args)
        return out, jax.tree.map(lambda _: True, out)

    return reset(last, keys, moved)


def add_up(tally: Tally, reward: Float[Array, "env agent"], first: Bool[Array, "env"]) -> Tally:
    """Scores after one more row."""
    return Tally(jnp.where(first[:, None], 0.0, tally.returns + reward), jnp.where(first, 0, tally.length + 1))


def episode_metrics(tally: Tally, step: Step, counted: Bool[Array, "*time env"]) -> Metrics:
    """Scores of the episodes that end in these rows: per-agent mean and team sum, so that units are never guessed."""
    scores = {
        "return_mean": jnp.mean(tally.returns, axis=-1),
        "return_sum": jnp.sum(tally.returns, axis=-1),
        "episode_length": tally.length,
        "success": step.success,
    }
    return Mean.of_each(scores, step.last & counted)


def collect(
    algo: Algorithm[Any], task: Task[Any], policy: PyTree[Array], worlds: Worlds, clock: Clock, key: Array
) -> tuple[Worlds, Rollout, Metrics]:
    """One rollout with the exploring policy, and the scores of the episodes that ended in it."""
    spec = task.spec
    length = algo.collect.transitions(spec)
    interval = algo.carry_interval(spec) or length
    if algo.collect.restart:
        worlds = open_worlds(algo, task, algo.collect.envs, stream(key, "restart"))

    def one(worlds: Worlds, t: Array) -> tuple[Worlds, tuple[Step, Action, Any, Tally]]:
        here = worlds.step
        carry, action, extra = algo.act(spec, policy, worlds.carry, here, clock, stream(key, "act", t), greedy=False)
        env, step = advance(task, worlds.env, here, action, stream(key, "env", t))
        tally = add_up(worlds.tally, step.reward, step.first)
        return Worlds(env, step, carry, tally), (here, action, extra, tally)

    def stretch(worlds: Worlds, times: Array) -> tuple[Worlds, tuple[Carry, Any]]:
        after, rows = jax.lax.scan(one, worlds, times)
        return after, (worlds.carry, rows)

    times = jnp.arange(length).reshape(-1, interval)
    worlds, (carries, rows) = jax.lax.scan(stretch, worlds, times)
    steps, action, extra, tallies = jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), rows)
    steps = jax.tree.map(lambda rows, end: jnp.concatenate([rows, end[None]]), steps, worlds.step)
    filled = filled_rows(steps.last, algo.collect.restart)
    metrics = episode_metrics(tallies, jax.tree.map(lambda x: x[1:], steps), filled)
    return worlds, Rollout(steps, action, extra, carries, filled), metrics


def filled_rows(last: Bool[Array, "rows env"], restart: bool) -> Bool[Array, "time env"]:
    """Transitions that count (see `Rollout.filled`)."""
    if restart:
        return jnp.cumsum(last[:-1], axis=0) == 0
    return ~last[:-1]


def play(
    algo: Algorithm[Any],
    task: Task[Any],
    policy: PyTree[Array],
    clock: Clock,
    key: Array,
    episodes: int,
    *,
    greedy: bool = True,
    wanted: Array | bool = True,
) -> dict[str, Array]:
    """Whole episodes side by side: per-episode returns of each agent, length and success; no step unless `wanted`."""
    spec: Spec = task.spec
    limit = spec.limit or LONGEST
    worlds = open_worlds(algo, task, episodes, stream(key, "open"))

    def going(now: tuple[Array, Worlds, Array]) -> Array:
        t, _, done = now
        return ~jnp.all(done) & (t < limit)

    def one(now: tuple[Array, Worlds, Array]) -> tuple[Array, Worlds, Array]:
        t, worlds, done = now
        now_key = stream(key, "act", t)
        carry, action, _ = algo.act(spec, policy, worlds.carry, worlds.step, clock, now_key, greedy=greedy)
        keys = jax.random.split(stream(key, "env", t), episodes)
        env, step = jax.vmap(task.step)(worlds.env, within_bounds(spec.action, action), keys)
        after = Worlds(env, step, carry, add_up(worlds.tally, step.reward, step.first))
        # An episode that is over stands still until the others are.
        return t + 1, where_env(done, worlds, after), done | step.last

    _, worlds, _ = jax.lax.while_loop(going, one, (jnp.int32(0), worlds, jnp.full(episodes, ~jnp.asarray(wanted))))
    return {
        "returns": worlds.tally.returns,
        "length": worlds.tally.length,
        "success": worlds.step.success,
    }
