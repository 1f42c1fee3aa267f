"""The second target of EMDQN and ERLAM: what is remembered of a stream worked out by hand, programs, learning."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit
from streams import Row, rollout

from rookery.algorithms.q import Q
from rookery.core.errors import ConfigError
from rookery.core.registry import PRESETS, TASKS
from rookery.core.types import Clock, Collect, Rollout
from rookery.mechanisms.remember import Remember
from rookery.nets.optimiser import Schedule
from rookery.tasks.compiled.maze import Maze
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig

# Only the two moves that lead nearer to the goal are worth anything, and a wrong one costs two steps.
MAZE = Maze(height=4, width=4, obstacles=2, bump="stay", limit=40, observation="onehot", goal_reward=1.0)
SPEC = replace(MAZE.spec, obs_shape=(4,))
GAMMA = 0.5
A, B, C, END = 0, 1, 2, 3
EPISODES = [[(A, 0, 0.0), (B, 0, 0.0)], [(C, 0, 0.0), (B, 1, 1.0)], [(A, 0, 0.0), (B, 0, 0.0)], [(C, 2, 0.0)] * 4]
"""(state, action, its reward); each ends at a terminal state. A leads to B, from where only action 1 pays."""


def stream_of(episodes: list[list[tuple[int, int, float]]]) -> Rollout:
    """The episodes one after the other, in one environment."""
    rows: list[Row] = []
    for episode in episodes:
        reward = 0.0
        for i, (state, action, brings) in enumerate(episode):
            rows.append(Row(state, action, reward, first=i == 0))
            reward = brings
        rows.append(Row(END, 0, reward, 0.0, last=True))
    return rollout(rows)


def remembered(config: Remember, *rollouts: Rollout) -> tuple[Any, dict[tuple[int, int], float]]:
    """The memory after these rollouts, and the value of each state and action that it knows."""
    pairs = [(state, action) for state in (A, B, C) for action in range(4)]
    state, action = (jnp.array(x) for x in zip(*pairs, strict=True))
    asked = jax.tree.map(lambda x: jnp.repeat(x[:2], len(pairs), axis=1), rollouts[0].step)
    asked = replace(asked, obs=jnp.eye(4)[jnp.stack([state, state])][:, :, None])

    def build() -> Any:
        kept = config.init(SPEC, 1, jax.random.PRNGKey(0))
        for i, each in enumerate(rollouts):
            kept, _ = config.write(SPEC, kept, each, GAMMA, Clock(jnp.int32(i), jnp.uint32(0), jnp.float32(100)))
        # Far from all values, so that none of them looks as if it were not known.
        q, valid = jnp.full((1, len(pairs), 1), -10.0), jnp.ones((1, len(pairs), 1), bool)
        return kept, *config.penalty(SPEC, kept, asked, action.reshape(1, -1, 1), q, valid)

    kept, squares, about = hasty_jit(build)()
    value = np.sqrt(np.asarray(squares[0, :, 0]) / config.weight) - 10.0
    found = {pair: round(float(v), 4) for pair, v in zip(pairs, value, strict=True) if v > -9.0}
    assert float(about["remember/known"].value) == pytest.approx(len(found) / len(pairs))
    assert float(about["remember/target"].value) == pytest.approx(np.mean(list(found.values())), abs=1e-4)
    return kept, found


def test_the_best_return_is_remembered() -> None:
    kept, found = remembered(Remember("best", weight=0.3, capacity=16, dim=8, length=8), stream_of(EPISODES))
    assert found == {(A, 0): 0.0, (B, 0): 0.0, (B, 1): 1.0, (C, 0): GAMMA, (C, 2): 0.0}
    assert int(kept.memory.count[0]) == 3 and int(kept.memory.evictions) == 0


def test_a_graph_joins_what_episodes_found() -> None:
    """No episode went from A to the reward; the third propagates what the second found at B."""
    kept, found = remembered(Remember("graph", weight=0.3, capacity=16, dim=8, length=8), stream_of(EPISODES))
    # C, 2 led three times back to C, whose best value is gamma, and once to the end.
    assert found == {(A, 0): GAMMA, (B, 0): 0.0, (B, 1): 1.0, (C, 0): GAMMA, (C, 2): 3 / 4 * GAMMA**2}
    assert int(kept.memory.nodes) == 3


@pytest.mark.parametrize("kind", ["best", "graph"])
def test_a_lost_life_ends_a_return_and_not_the_stream(kind: Any) -> None:
    """A leads to B, where a life is lost; the game goes on from there to its reward, in one rollout or in two."""
    rows = [Row(A, first=True), Row(B, 1, discount=0.0), Row(C), Row(END, 0, 1.0, 0.0, last=True)]
    whole, parts = [rollout(rows)], [rollout(rows[:2]), rollout(rows[1:])]
    for rollouts in (whole, parts):
        _, found = remembered(Remember(kind, weight=0.3, capacity=16, dim=8, length=4), *rollouts)
        assert found == {(A, 0): 0.0, (B, 1): GAMMA, (C, 0): 1.0}


def small(preset: str, **changes: Any) -> Q:
    algo = replace(PRESETS[preset], collect=Collect(envs=4, length=8), epsilon=Schedule(1.0, 0.05, steps=1500))
    algo = replace(algo, replay=replace(algo.replay, capacity=256, batch=16, start=16, steps_per_sequence=0.5))
    return replace(algo, remember=replace(algo.remember, **{"capacity": 64, "dim": 8, "length": 16, **changes}))


def program(algo: Q) -> str:
    program = Program(RunConfig("", "maze", algo, MAZE, 3000, (0,)))
    return str(jax.make_jaxpr(partial(program.chunk, iterations=1))(jax.eval_shape(program.init)))


def test_every_value_changes_the_program_unless_it_is_off() -> None:
    off = program(small("emdqn", kind="none", weight=0.7, dim=3))
    assert off == program(small("dqn"))
    on = {program(small("emdqn", **x)) for x in ({}, {"kind": "graph"}, {"weight": 0.5}, {"length": 8})}
    assert off not in on and len(on) == 4


@cache
def value(algo: Q) -> tuple[np.ndarray, Any]:
    """The mean value of what was done in the first iterations, and all metrics."""
    program = Program(RunConfig("", "maze", algo, MAZE, 3000, (0, 1)))
    state = hasty_jit(program.init)()
    _, report = hasty_jit(partial(program.chunk, iterations=30), donate_argnums=0)(state)
    for name, mean in report.means.items():
        assert np.all(np.isfinite(mean.total)) and np.all(np.asarray(report.broken[name]) == -1), name
    mean = report.means["q_taken"]
    return np.asarray(mean.total / mean.weight), report.means


@pytest.mark.parametrize("preset", ["emdqn", "erlam"])
def test_values_are_learned_sooner(preset: str) -> None:
    """After the same gradient steps values are nearer to those of the best way than without a memory."""

    (plain, _), (taught, means) = value(small("dqn")), value(small(preset, weight=1.0))
    assert np.all(taught > 1.5 * plain) and np.all(taught < 1.0)
    known, target = (np.asarray(x.total / x.weight) for x in (means["remember/known"], means["remember/target"]))
    assert np.all(known > 0.9) and np.all((target > 0.3) & (target < 1.0))


@pytest.mark.parametrize(
    ("task", "change", "word"),
    [
        ("mpe/simple_spread", {}, "one agent"),
        ("maze/static", {"collect": Collect(envs=4, restart=True)}, "no-restart"),
        ("maze/static", {"remember": Remember("best", capacity=16)}, "capacity"),
    ],
)
def test_what_does_not_fit_is_refused(task: str, change: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        replace(PRESETS["emdqn"], **change).check(TASKS[task].spec)
