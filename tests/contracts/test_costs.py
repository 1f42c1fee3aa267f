"""No preset's program does much more, or much less, than what is recorded for it, and its state keeps its types."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from costs import COMMAND, RECORD, costs_of, count, program_of, traced_iteration

from rookery.core.registry import PRESETS
from rookery.training.compiled.program import Program

TOLERANCE = 0.1
RECORDED = json.loads(RECORD.read_text())


class Preset(NamedTuple):
    name: str
    program: Program
    start: Any
    iteration: jax.stages.Traced


@pytest.fixture(scope="module", params=list(PRESETS))
def preset(request: pytest.FixtureRequest) -> Preset:
    """A preset that is traced once for all tests of it: pytest runs them one after the other."""
    program = program_of(request.param)
    start = jax.eval_shape(program.init)
    return Preset(request.param, program, start, traced_iteration(program, start))


def test_costs_what_is_recorded(preset: Preset) -> None:
    name = preset.name
    assert name in RECORDED, f"no costs are recorded for {name}; record them: {COMMAND}"
    now = costs_of(preset.iteration)
    moved = {
        kind: f"{before:,} -> {now[kind]:,}"
        for kind, before in RECORDED[name].items()
        if abs(now[kind] - before) > TOLERANCE * before
    }
    assert not moved, f"{name} costs something else than before: {moved}. If that is meant, record it: {COMMAND}"


def test_the_state_holds_arrays_of_fixed_types_only(preset: Preset) -> None:
    """Else the second chunk would compile another program, or a checkpoint would not fit."""
    before = preset.start
    after, _ = jax.tree.unflatten(jax.tree.structure(preset.iteration.out_info), preset.iteration.jaxpr.out_avals)
    after_evaluation, _ = jax.eval_shape(preset.program.evaluate, before)
    for state in (before, after, after_evaluation):
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            assert not leaf.weak_type, jax.tree_util.keystr(path)
    assert _types(before) == _types(after)
    assert jax.tree.structure(before) == jax.tree.structure(after_evaluation)


def _types(state: Any) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), state)


def test_only_presets_that_exist_are_recorded() -> None:
    assert set(RECORDED) <= set(PRESETS), f"record anew: {COMMAND}"


def test_loops_count_as_often_as_they_run() -> None:
    w = jnp.ones((8, 8))

    def loop(x: jax.Array, times: int) -> jax.Array:
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=times)[0]

    x = jnp.ones((4, 8))
    once, ten = (count(jax.make_jaxpr(lambda x, n=n: loop(x, n))(x).jaxpr) for n in (1, 10))
    assert once["flops"] == 2 * 4 * 8 * 8 and ten["flops"] == 10 * once["flops"]
    assert ten["bytes"] == 10 * once["bytes"] == 10 * 2 * 4 * 4 * 8
    # A branch costs as much as its dearest side.
    either = jax.make_jaxpr(lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: loop(x, 3), lambda x: x, x))(x)
    assert count(either.jaxpr)["flops"] == 3 * once["flops"]
