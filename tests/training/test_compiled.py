"""What XLA is told, and runs of one member."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config

from rookery.core.registry import PRESETS
from rookery.training.checkpoint import nbytes
from rookery.training.compiled import compiler
from rookery.training.compiled.engine import CompiledEngine
from rookery.training.compiled.program import over_members


def test_programs_of_a_run_call_no_ynnpack_and_give_what_jax_gives() -> None:
    x = jax.random.normal(jax.random.PRNGKey(0), (64, 128))

    def f(x: jax.Array) -> jax.Array:
        return jnp.sum(x @ x.T, axis=-1)

    lowered = compiler.jit(f).lower(x)
    assert "__ynn_fusion" not in lowered.compile().as_text()
    np.testing.assert_allclose(lowered.compile()(x), jax.jit(f)(x), rtol=1e-4, atol=1e-3)
    assert "__ynn_fusion" in jax.jit(f).lower(x).compile().as_text(), "XLA has left YNNPACK by itself: is FAST needed?"


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "FAST", {"xla_cpu_option_of_another_version": "1", **compiler.FAST})
    compiler._accepted.cache_clear()
    try:
        assert compiler._accepted(once=False) == {"xla_cpu_experimental_ynn_fusion_type": ""}
        assert int(compiler.jit(lambda x: x + 1)(1)) == 2
    finally:
        compiler._accepted.cache_clear()


def test_the_only_member_is_taken_without_a_batch_axis() -> None:
    def f(member: dict[str, Any], scale: jax.Array) -> dict[str, Any]:
        return {"y": member["x"] * scale, "n": jnp.sum(member["x"])}

    x = jnp.arange(12.0).reshape(2, 6)
    both = over_members(f, {"x": x}, jnp.array([2.0, 3.0]))
    for i in range(2):
        alone = over_members(f, {"x": x[i : i + 1]}, jnp.array([2.0, 3.0])[i : i + 1])
        jax.tree.map(partial(np.testing.assert_array_equal), alone, jax.tree.map(lambda y, i=i: y[i : i + 1], both))


@pytest.mark.parametrize(
    ("preset", "task"), [("qmix", "mpe/simple_spread"), ("dqn", "maze/static"), ("drq", "screens")]
)
@pytest.mark.usefixtures("as_trained")
def test_a_store_is_never_copied(preset: str, task: str) -> None:
    """It may be as large as memory: neither one iteration nor several nor an evaluation may need a second one."""
    algo = PRESETS[preset].small()
    algo = replace(algo, replay=replace(algo.replay, capacity=100_000))
    engine = CompiledEngine(small_config(preset, task, algo=algo))
    store = nbytes(algo.stores(engine.shapes.members.algo))
    for executable in (engine._chunk(1), engine._chunk(2), engine._evaluate):
        used = executable.memory_analysis()
        assert store > 5_000_000 and used.temp_size_in_bytes < store / 10


def test_what_cannot_be_compiled_says_so_when_it_is_needed() -> None:
    wrong = jax.jit(lambda x: x + 1, compiler_options={"xla_cpu_option_of_another_version": "1"}).lower(1.0)
    right = compiler.Executable(compiler.jit(lambda x: x + 1).lower(1.0))
    failed = compiler.Executable(wrong)
    assert float(right(1.0)) == 2.0
    for use in (failed.wait, lambda: failed(1.0)):
        with pytest.raises(jax.errors.JaxRuntimeError, match="xla_cpu_option_of_another_version"):
            use()
