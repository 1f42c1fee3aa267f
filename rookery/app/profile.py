"""Where the time of one iteration goes: its parts, each compiled alone and timed beside the whole.

A part alone is not quite the part inside: XLA fuses across the borders, and a part must write out what the whole hands
on. So the parts need not add up to the whole; the difference is shown as `rest`, and may be negative.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rookery.core.keys import stream
from rookery.core.types import Clock, Rollout, Step
from rookery.memory import replay
from rookery.memory.sequences import by_env, time_major
from rookery.training.build import jit
from rookery.training.config import RunConfig
from rookery.training.loop import Member, Program, RunState, member_infos, over_members
from rookery.training.rollout import advance, collect

SECONDS = 1.0  # a part is repeated for about so long
AT_ONCE = 10  # iterations in one call, at most; as in training, where a chunk has many


@dataclass(frozen=True)
class Part:
    """Seconds of one part in one iteration of all members; the best of several calls."""

    name: str
    wall: float
    cpu: float


def profile(config: RunConfig) -> list[Part]:
    """The whole iteration first, then its parts. Nothing is written. Of a run in several parts, one is timed."""
    config = one_part(config)
    program = Program(config)
    at_once = min(AT_ONCE, program.iterations_per_chunk())
    state = jit(program.init, once=True)()
    # The store of a Q learner must be full enough to learn from, or the update would be measured without learning.
    state = RunState(state.members, _late(config), state.budget)
    rollout = jit(lambda s: _each(s, partial(_collect, program, s))[1])(state)
    # Everything is an argument: what is not would be a constant, and XLA would fold it.
    parts: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "whole": (partial(program.chunk, iterations=at_once), (state,)),
        "environment": (partial(_environment, program), (state, rollout)),
        "policy": (partial(_policy, program), (state, rollout)),
        "update": (partial(_update, program, at_once), (state, rollout)),
    }
    if hasattr(state.members.algo, "store"):
        parts["buffer"] = (partial(_buffer, program, at_once), (state, rollout))
    parts["evaluation"] = (program.evaluate, (state,))
    again = {"whole": at_once, "update": at_once, "buffer": at_once}
    return [_measure(name, f, args, again.get(name, 1)) for name, (f, args) in parts.items()]


def lines(config: RunConfig, parts: list[Part]) -> list[str]:
    """The parts as a table, with their shares of the whole iteration."""
    several, config = config.algo.collect.parts, one_part(config)
    program, members = Program(config), len(member_infos(config))
    whole, seconds = parts[0], {p.name: p.wall for p in parts[1:]}
    every = program.iterations_per_chunk() * config.evaluation.rows
    seconds["evaluation"] /= every
    seconds["rest"] = whole.wall - sum(seconds[name] for name in ("environment", "policy", "update"))
    rows = config.algo.collect.envs * config.algo.collect.transitions(program.task.spec) * members
    return [
        f"one iteration of {members} member(s): {1e3 * whole.wall:.2f} ms, {rows / whole.wall:,.0f} rows/s, "
        f"{whole.cpu / whole.wall:.1f} cores busy",
        *(f"  {name:12} {1e3 * wall:9.2f} ms {wall / whole.wall:7.1%}" for name, wall in seconds.items()),
        "rest: the whole less environment, policy and update. buffer is a part of update. evaluation comes on top,",
        f"once in {every} iterations. Parts are compiled alone, each for itself: they need not add up.",
        *([f"This is one of {several} parts of the run, by itself: the others do as much beside it."] * (several > 1)),
    ]


def one_part(config: RunConfig) -> RunConfig:
    """What one of the run's parts does."""
    return config if config.algo.collect.parts == 1 else replace(config, algo=config.algo.part())


def _late(config: RunConfig) -> Array:
    """An iteration at which every algorithm learns."""
    stored = getattr(config.algo, "replay", None)
    return jnp.int32(stored.capacity // config.algo.collect.envs if stored else 0)


def _each(run: RunState, f: Callable[..., Any], *more: Any) -> Any:
    """`f` for every member."""
    return over_members(lambda m, *x: f(m, run.clock(m.steps, run.iteration), *x), run.members, *more)


def _collect(program: Program, run: RunState, member: Member, clock: Clock) -> Any:
    algo = program.algo(member.hyper)
    key = stream(member.key, "collect", run.iteration)
    return collect(algo, program.task, algo.policy(member.algo), member.worlds, clock, key)


def _environment(program: Program, run: RunState, rollout: Rollout) -> Any:
    """The recorded actions again, resets included."""

    def one(member: Member, clock: Clock, rollout: Rollout) -> Any:
        def move(now: tuple[Any, Step], x: tuple[Array, Array]) -> tuple[tuple[Any, Step], Array]:
            action, t = x
            env, step = advance(program.task, *now, action, stream(member.key, "env", t))
            return (env, step), step.reward

        times = jnp.arange(rollout.filled.shape[0])
        return jax.lax.scan(move, (member.worlds.env, member.worlds.step), (rollout.action, times))

    return _each(run, one, rollout)


def _policy(program: Program, run: RunState, rollout: Rollout) -> Any:
    """Actions for the recorded observations."""
    spec = program.task.spec

    def one(member: Member, clock: Clock, rollout: Rollout) -> Any:
        algo = program.algo(member.hyper)

        def act(carry: Any, x: tuple[Step, Array]) -> tuple[Any, Any]:
            step, t = x
            key = stream(member.key, "act", t)
            carry, *out = algo.act(spec, algo.policy(member.algo), carry, step, clock, key, greedy=False)
            return carry, out

        times = jnp.arange(rollout.filled.shape[0])
        steps = jax.tree.map(lambda x: x[:-1], rollout.step)
        return jax.lax.scan(act, member.worlds.carry, (steps, times))

    return _each(run, one, rollout)


def _update(program: Program, times: int, run: RunState, rollout: Rollout) -> Any:
    def one(member: Member, clock: Clock, rollout: Rollout) -> Any:
        algo = program.algo(member.hyper)
        return algo.update(program.task.spec, member.algo, rollout, clock, stream(member.key, "update"))

    return _again(program, times, run, rollout, one)


def _buffer(program: Program, times: int, run: RunState, rollout: Rollout) -> Any:
    """What the store takes and gives: sequences in, batches out."""
    settings, envs = program.config.algo.replay, program.config.algo.collect.envs
    draws = round(settings.steps_per_sequence * envs)

    def one(member: Member, clock: Clock, rollout: Rollout) -> Any:
        position = replay.slot(clock.iteration, envs, settings.capacity)
        stored = replay.filled(clock.iteration, envs, settings.capacity)
        store = replay.add(member.algo.store, by_env(rollout), position)
        priorities = settings.welcome(member.algo.learner.priorities, position, envs)

        def draw(total: Array, k: Array) -> tuple[Array, None]:
            drawn = settings.draw(stream(member.key, "replay", k), priorities, stored, clock)
            batch = time_major(replay.take(store, drawn.index))
            # All of the batch must be used, or XLA leaves it out.
            return total + sum(jnp.sum(x, dtype=jnp.float32) for x in jax.tree.leaves(batch)), None

        total = jax.lax.scan(draw, jnp.float32(0), jnp.arange(draws))[0]
        return replace(member.algo, store=store), total

    return _again(program, times, run, rollout, one)


def _again(program: Program, times: int, run: RunState, rollout: Rollout, f: Callable[..., Any]) -> Any:
    """`f` moves the algorithm's state of every member, so many times: the same loop that a chunk has, so that XLA
    treats a replay store as it does there."""

    def of_member(member: Member, rollout: Rollout) -> Any:
        def once(member: Member, iteration: Array) -> Any:
            moved, found = f(member, run.clock(member.steps, iteration), rollout)
            return replace(member, algo=moved), found

        return jax.lax.scan(once, member, run.iteration + jnp.arange(times))

    members, found = over_members(of_member, run.members, rollout, batch=program.keeps_axis(times))
    return RunState(members, run.iteration, run.budget), found


def _measure(name: str, f: Callable[..., Any], args: tuple[Any, ...], times: int) -> Part:
    """Compile, warm up, then the best of as many calls as fit into `SECONDS`, for one of the `times` that a call has.
    The state is donated, as in training."""
    # Only what comes back in the same shape can be donated; the others have no use for the memory.
    donate = (0,) if name in ("whole", "update", "buffer", "evaluation") else ()
    compiled = jit(f, donate_argnums=donate).lower(*args).compile()
    state, rest = jax.tree.map(lambda x: x.copy(), args[0]), args[1:]
    walls, cpus = [], []
    end = time.perf_counter() + SECONDS
    while len(walls) < 4 or time.perf_counter() < end:
        wall, cpu = time.perf_counter(), time.process_time()
        out = jax.block_until_ready(compiled(state, *rest))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        state = out[0] if donate else state
    return Part(name, min(walls[1:]) / times, min(cpus[1:]) / times)
