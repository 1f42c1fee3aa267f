"""Which policy is kept as best: evaluations are noisy, and the best of many noisy scores is a lucky one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config

sys.path.insert(0, str(Path(__file__).parent / "host"))
from envs import Counter

from rookery.training.compiled.program import Program
from rookery.training.config import Workers
from rookery.training.engine import open_engine
from rookery.training.state import confirmed, score


@pytest.mark.parametrize(
    ("first", "second", "best", "kept", "value"),
    [
        (3.0, 1.0, 2.5, False, 2.0),  # lucky
        (3.0, 3.0, 2.5, True, 3.0),
        (2.0, 9.0, 2.5, False, 5.5),  # gets no second look, so its score there is none
        (2.5, 2.5, 2.5, True, 2.5),  # of equals the latest
        (-4.0, -6.0, -np.inf, True, -5.0),
    ],
)
def test_a_policy_must_be_as_good_at_a_second_look(
    first: float, second: float, best: float, kept: bool, value: float
) -> None:
    better, mean = confirmed(jnp.array([first, second]), jnp.float32(best))
    assert bool(better) == kept and float(mean) == value


@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_the_kept_score_is_not_the_luckiest_of_many(kind: str) -> None:
    """One policy, evaluated again and again: the largest of its scores is above what it is worth."""
    config = small_config("mappo", "mpe/simple_spread", seeds=tuple(range(8)))
    if kind == "host":
        config = replace(config, task=Counter(), workers=Workers(count=0))
    engine = open_engine(config)
    try:
        state, seen, kept = engine.init(), [], []
        for i in range(8):
            state, episodes = engine.evaluate(replace(state, iteration=jnp.int32(i)))
            seen.append(np.asarray(score(config.task.spec, episodes)).mean(axis=1))
            kept.append(np.asarray(state.members.best_score))
    finally:
        engine.close()
    # A second look can be lucky too, but one policy of many seeds is not lucky twice on average.
    assert np.mean(kept[-1]) < np.mean(np.max(seen, axis=0))
    assert np.all(np.diff(kept, axis=0) >= 0)


def test_sampled_evaluation_is_another_program() -> None:
    config = small_config("mappo")
    sampled = replace(config, evaluation=replace(config.evaluation, sampled=True))
    programs = [str(jax.make_jaxpr(Program(c).evaluate)(jax.eval_shape(Program(c).init))) for c in (config, sampled)]
    assert programs[0] != programs[1]
