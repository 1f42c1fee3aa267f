"""A run at one step, ready to be looked at: one member's policy, and a greedy episode of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array

from rookery.core.config import with_values
from rookery.core.errors import RunError
from rookery.core.host import HostTask, empty_rows
from rookery.core.keys import stream
from rookery.core.types import Action, Carry, Clock, Step, Task
from rookery.training import checkpoint
from rookery.training.compiled.compiler import jit
from rookery.training.compiled.rollout import within_bounds
from rookery.training.config import RunConfig
from rookery.training.engine import open_engine
from rookery.training.run import Run
from rookery.training.state import Policies, RunState, member_infos

ROWS = 400
"""Rows of an episode that are looked at, at most."""


@dataclass(frozen=True)
class Moment:
    """One member of a run at one step."""

    run: Run
    member: int
    steps: int
    which: str
    """last, best, or empty: a state between them."""
    algo: Any
    """With the member's swept values."""
    policy: Any
    clock: Clock
    state: Any = None
    """The algorithm's whole state, where it is known; a complete run keeps policies only."""

    @property
    def config(self) -> RunConfig:
        return self.run.config

    @property
    def title(self) -> str:
        """What is drawn, in words."""
        config = self.config
        seed = member_infos(config)[self.member].seed
        which = f" ({self.which})" if self.which else ""
        return f"{config.preset} on {config.task_name}, seed {seed}, step {self.steps:,}{which}"


def at(run: Run, step: str = "last", member: int = 0, *, again: bool = False) -> Moment:
    """The member at a step: "last", "best", or a number of steps that the run has kept.

    `again` trains the run once more, in memory, up to the first chunk that ends at or after the step: runs repeat bit
    for bit, so that is the state it had.
    """
    count = len(member_infos(run.config))
    if not 0 <= member < count:
        raise RunError(f"{run.folder.path} has no member {member}: they count from 0 to {count - 1}.")
    if step not in ("last", "best") and not step.replace("_", "").isdigit():
        raise RunError(f"--step is last, best or a number of environment steps; got '{step}'.")
    if step in ("last", "best"):
        return _kept(run, step, member)
    if again:
        return _trained(run, int(step), member)
    kept = {which: _steps(run, which, member) for which in ("last", "best")}
    for which, steps in kept.items():
        if steps == int(step):
            return _kept(run, which, member)
    older = [] if run.folder.policies.exists() else checkpoint.manifests(run.folder.checkpoints)
    for manifest in older:
        if manifest.steps[member] == int(step):
            found = checkpoint.load_before(run.folder.checkpoints, run.engine.shapes, manifest.chunk + 1)
            if found is not None and found.manifest.chunk == manifest.chunk:
                return _of_state(run, run.engine.policies(found.state), found.state, member)
    named = [f"{steps} ({which})" for which, steps in kept.items()] + [str(m.steps[member]) for m in older]
    raise RunError(
        f"{run.folder.path} keeps no policy of step {int(step)}; it has {', '.join(dict.fromkeys(named))}. Choose one "
        "of them, or give --again to train the run once more up to that step."
    )


def _steps(run: Run, which: str, member: int) -> int:
    """The steps of a kept policy: the best one is that of the latest among the best evaluations."""
    last = int(np.asarray(run.policies.steps)[member])
    seen = run.evaluations()
    if which == "last" or seen.is_empty():
        return last
    means = seen.filter(pl.col("member") == member).group_by("steps").agg(pl.col("score").mean())
    best = means.filter(pl.col("score") == pl.col("score").max())["steps"].max()
    return last if best is None else int(best)  # pyright: ignore[reportArgumentType]  (a column of integers)


def _kept(run: Run, which: str, member: int) -> Moment:
    policies = run.policies
    steps = _steps(run, which, member)
    return _moment(run, policies, policies.best if which == "best" else policies.last, member, steps, which)


def _of_state(run: Run, policies: Policies, state: RunState, member: int) -> Moment:
    """A moment of a whole state, which knows more than its policy. (Shards hold shares of it: then it does not.)"""
    whole = None
    if run.config.algo.collect.shards == 1:
        whole = jax.tree.map(lambda x: x[member], state.members.algo)
    steps = int(np.asarray(policies.steps)[member])
    return _moment(run, policies, policies.last, member, steps, "", whole)


def _trained(run: Run, step: int, member: int) -> Moment:
    if step > run.config.steps:
        raise RunError(f"--step {step} lies beyond the {run.config.steps} steps of {run.folder.path}.")
    with closing(open_engine(run.config)) as engine:
        engine.prepare(fresh=True)
        state = engine.init()
        while int(np.asarray(state.members.steps)[member]) < step:
            state, _ = engine.chunk(state)
        return _of_state(run, engine.policies(state), state, member)


def _moment(
    run: Run, policies: Policies, chosen: Any, member: int, steps: int, which: str, state: Any = None
) -> Moment:
    policy, swept = jax.tree.map(lambda x: x[member], (chosen, policies.swept))
    algo = with_values(run.config.algo, {path.removeprefix("algo."): float(x) for path, x in swept.items()})
    clock = Clock(policies.iteration, jnp.uint32(steps), policies.budget)
    return Moment(run, member, steps, which, algo, policy, clock, state)


Read = Callable[[Carry, Step, Array], tuple[Carry, Action, Any]]
"""From a carry, a row of one environment and a key to the carry, the action, and whatever is to be looked at."""


def episode(moment: Moment, read: Read) -> tuple[Step, Any]:
    """One greedy episode: its rows and what was read at each, in numpy, with a leading axis of time.

    Its start state depends on the member's key only.
    """
    spec, key = moment.config.task.spec, jnp.asarray(moment.run.policies.key)[moment.member]
    act, carry = jit(read), moment.algo.carry(spec, 1)
    world = (
        _host_world(moment.config.task, key)
        if isinstance(moment.config.task, HostTask)
        else _world(moment.config.task, key)
    )
    rows: list[tuple[Step, Any]] = []
    with closing(world):
        step = next(world)
        for t in range(ROWS):
            carry, action, found = act(carry, step, stream(key, "act", t))
            rows.append(jax.device_get((step, found)))
            if bool(np.asarray(step.last)[0]):
                break
            step = world.send(within_bounds(spec.action, action))
    return jax.tree.map(lambda *x: np.concatenate(x), *rows)


def _world(task: Task[Any], key: Array) -> Generator[Step, Action, None]:
    """The rows of one episode in a compiled environment; takes actions."""
    t = 0
    env, step = jit(jax.vmap(task.reset))(stream(key, "open")[None])
    move = jit(jax.vmap(task.step))
    while True:
        action = yield step
        env, step = move(env, action, stream(key, "env", t)[None])
        t += 1


def _host_world(task: HostTask, key: Array) -> Generator[Step, Action, None]:
    """The rows of one episode in a host environment; takes actions."""
    rows, seeds = empty_rows(task.spec, 1), np.asarray(key)[:1].astype(np.uint64) % 2**31
    envs = task.open(1)
    try:
        envs.reset(seeds, rows)
        while True:
            action = yield Step(*(jnp.array(field) for field in rows))
            envs.step(np.asarray(action), seeds, rows)
    finally:
        envs.close()
