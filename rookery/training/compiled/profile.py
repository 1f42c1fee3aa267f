"""Where the time of one iteration goes: its pieces, each compiled alone and timed beside the whole.

A piece compiled alone is not quite the piece inside the whole: XLA fuses across the borders, and a piece must write out
its results. So the pieces need not add up to the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rookery.core.keys import stream
from rookery.core.types import Clock, Rollout, Step
from rookery.training.compiled.compiler import jit
from rookery.training.compiled.program import Program, over_members
from rookery.training.compiled.rollout import advance, collect
from rookery.training.config import RunConfig
from rookery.training.engine import Timing
from rookery.training.state import Member, RunState, iterations_per_chunk

SECONDS = 1.0  # a piece is repeated for about so long
AT_ONCE = 10  # iterations in one call, at most; as in training, where a chunk has many


def profile(config: RunConfig) -> list[Timing]:
    """The whole iteration first, then its pieces. Nothing is written. Of a run with several shards, one is timed."""
    config = one_shard(config)
    program = Program(config)
    at_once = min(AT_ONCE, iterations_per_chunk(config))
    state = jit(program.init, once=True)()
    # The store of a Q learner must be full enough to learn from, or the update would be measured without learning.
    state = RunState(state.members, jnp.int32(config.algo.warmup()), state.budget)
    rollout = jit(lambda s: _each(s, partial(_collect, program, s))[1])(state)
    # Everything is an argument: XLA would fold a constant.
    pieces: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "whole": (partial(program.chunk, iterations=at_once), (state,)),
        "environment": (partial(_environment, program), (state, rollout)),
        "policy": (partial(_policy, program), (state, rollout)),
        "update": (partial(_update, program, at_once), (state, rollout)),
        "evaluation": (program.evaluate, (state,)),
    }
    again = {"whole": at_once, "update": at_once}
    return [_measure(name, f, args, again.get(name, 1)) for name, (f, args) in pieces.items()]


def one_shard(config: RunConfig) -> RunConfig:
    """The run of one of its shards."""
    return config if config.algo.collect.shards == 1 else replace(config, algo=config.algo.shard())


def _each(run: RunState, f: Callable[..., Any], *more: Any) -> Any:
    """`f` for every member."""
    return over_members(lambda m, *x: f(m, run.clock(m.steps, run.iteration), *x), run.members, *more)


def _collect(program: Program, run: RunState, member: Member, clock: Clock) -> Any:
    algo = program.algo(member.swept)
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
        algo = program.algo(member.swept)

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
        algo = program.algo(member.swept)
        return algo.update(program.task.spec, member.algo, rollout, clock, stream(member.key, "update"))

    return _again(program, times, run, rollout, one)


def _again(program: Program, times: int, run: RunState, rollout: Rollout, f: Callable[..., Any]) -> Any:
    """`f` moves the algorithm's state of every member so many times, in the same loop as a chunk, so that XLA treats a
    replay store as it does there."""

    def of_member(member: Member, rollout: Rollout) -> Any:
        def once(member: Member, iteration: Array) -> Any:
            moved, found = f(member, run.clock(member.steps, iteration), rollout)
            return replace(member, algo=moved), found

        return jax.lax.scan(once, member, run.iteration + jnp.arange(times))

    members, found = over_members(of_member, run.members, rollout, batch=program.keeps_axis(run, times))
    return RunState(members, run.iteration, run.budget), found


def _measure(name: str, f: Callable[..., Any], args: tuple[Any, ...], times: int) -> Timing:
    """Compile, warm up, then the best of as many calls as fit into `SECONDS`, for one of the `times` that a call has.
    The state is donated, as in training."""
    # Only what comes back in the same shape can be donated; the others have no use for the memory.
    donate = (0,) if name in ("whole", "update", "evaluation") else ()
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
    return Timing(name, min(walls[1:]) / times, min(cpus[1:]) / times)
