"""No preset's program does much more, or much less, than what is recorded for it."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest
from costs import COMMAND, RECORD, costs_of, count

from rookery.core.registry import PRESETS

TOLERANCE = 0.1
RECORDED = json.loads(RECORD.read_text())


@pytest.mark.parametrize("preset", list(PRESETS))
def test_costs_what_is_recorded(preset: str) -> None:
    assert preset in RECORDED, f"no costs are recorded for {preset}; record them: {COMMAND}"
    now = costs_of(preset)
    moved = {
        name: f"{before:,} -> {now[name]:,}"
        for name, before in RECORDED[preset].items()
        if abs(now[name] - before) > TOLERANCE * before
    }
    assert not moved, f"{preset} costs something else than before: {moved}. If that is meant, record it: {COMMAND}"


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
