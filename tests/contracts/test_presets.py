"""What holds for every preset: it trains, is a function of its seed, and its state is the whole of it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small import (
    assert_close,
    assert_same,
    chunk_of,
    copied,
    differs,
    donating_chunk,
    evaluate_of,
    init_of,
    policies_of,
    rows_of,
    small_config,
)

from rookery.training import checkpoint
from rookery.training.check import check
from rookery.training.compiled.program import Program
from rookery.training.state import RunState, score

ITERATIONS = 3
# Presets whose programs differ in kind. The others are values of the same code: they are traced (test_costs.py), not
# compiled, or they are trained for longer where metrics must be finite too (test_learning.py, test_episodic.py and
# test_remember.py).
KINDS = ["per", "qmix", "inspire_qmix", "differ_transformer", "mappo", "mappo_jaxmarl", "hyper_mappo", "hypermarl"]
KINDS += ["happo", "maddpg", "masac", "facmac", "nec", "gbmr", "gbmr_framework", "der", "erlam"]
# What only has to train: the other hypernetwork, delayed actors, two more memories.
MORE = ["hyper_mappo_last", "matd3", "mfec", "nec_atari"]
kinds = pytest.mark.parametrize("preset", KINDS)


@cache
def trained(preset: str) -> tuple[RunState, Any]:
    """State and report after the first chunk, shared by the tests of a preset."""
    config = small_config(preset, seeds=(0, 1))
    return chunk_of(config, ITERATIONS)(init_of(config))


@pytest.mark.parametrize("preset", [*KINDS, *MORE])
def test_trains_and_all_metrics_are_finite(preset: str) -> None:
    config = small_config(preset, seeds=(0, 1))
    check(config)
    state, report = trained(preset)
    for name, mean in report.means.items():
        assert np.all(np.isfinite(mean.total)) and np.all(np.asarray(mean.weight) >= 0), name
        assert np.all(np.asarray(report.broken[name]) == -1), name
    measured = {name for name, mean in report.means.items() if np.all(np.asarray(mean.weight) > 0)}
    # Gradient steps were taken (or a memory written) and episodes ended, in every member.
    assert {"train/return_mean", "train/return_sum", "train/episode_length"} <= measured
    assert any(name.startswith(("grad_norm", "writes")) for name in measured)
    program = Program(config)
    spec, collect = program.task.spec, config.algo.collect
    rows = ITERATIONS * collect.envs * collect.transitions(spec)
    steps = np.asarray(state.members.steps)
    assert np.all(steps > rows / 4) and np.all(steps <= rows) and np.array_equal(steps, report.steps)
    assert int(state.iteration) == ITERATIONS
    acting = jax.vmap(config.algo.policy)
    assert differs(acting(state.members.algo), acting(init_of(config).members.algo))


@kinds
def test_is_deterministic_in_its_seed_and_members_do_not_mix(preset: str) -> None:
    config = small_config(preset, seeds=(0, 1))
    chunk, start = chunk_of(config, ITERATIONS), init_of(config)
    state, report = trained(preset)
    assert_same((state, report), chunk(start))
    other = replace(start, members=rows_of(start.members, slice(None, None, -1)))
    swapped, _ = chunk(other)
    assert_same(state.members, rows_of(swapped.members, slice(None, None, -1)))
    one, two = (rows_of(state.members.algo, i) for i in (0, 1))
    assert differs(one, two)


@pytest.mark.parametrize("preset", ["qmix", "mappo", "maddpg", "nec"])
def test_a_member_begins_as_its_seed_says_wherever_it_stands(preset: str) -> None:
    """One of each family."""
    here, there = (init_of(small_config(preset, seeds=seeds)).members for seeds in ((0, 1), (1, 0)))
    assert_same(here, rows_of(there, slice(None, None, -1)))


@pytest.mark.parametrize("preset", ["qmix", "mappo"])
def test_two_chunks_equal_one_of_twice_the_length(preset: str) -> None:
    config = small_config(preset, seeds=(0, 1))
    state, first = trained(preset)
    state, second = chunk_of(config, ITERATIONS)(state)
    longer, report = chunk_of(config, 2 * ITERATIONS)(init_of(config))
    assert_close(state, longer, 1e-4)
    for name, mean in report.means.items():
        np.testing.assert_allclose(mean.weight, first.means[name].weight + second.means[name].weight)


@kinds
def test_goes_on_bit_for_bit_from_a_checkpoint(preset: str, tmp_path: Path) -> None:
    config = small_config(preset, seeds=(0, 1))
    chunk = chunk_of(config, ITERATIONS)
    state, _ = trained(preset)
    checkpoint.save(tmp_path, state, chunk=1, steps=[1, 1], score=0.0, keep=1)
    found = checkpoint.load(tmp_path, jax.eval_shape(Program(config).init))
    assert found is not None
    assert_same(found.state, state)
    assert_same(chunk(found.state), chunk(state))


@kinds
def test_the_state_is_donated_whole(preset: str) -> None:
    config = small_config(preset, seeds=(0, 1))
    state = copied(init_of(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a buffer that cannot be used again is warned of
        after, _ = donating_chunk(config, ITERATIONS)(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert int(after.iteration) == ITERATIONS


@kinds
def test_evaluation_uses_what_the_update_returned(preset: str) -> None:
    config = small_config(preset, seeds=(0, 1))
    spec = Program(config).task.spec
    state, _ = trained(preset)
    evaluated, episodes = evaluate_of(config)(state)
    policies = policies_of(config)(evaluated)
    # Nothing was evaluated before: the newest policy is the best so far, and it is the one that will act.
    acting = jax.vmap(config.algo.policy)(state.members.algo)
    assert_same(policies.last, acting)
    assert_same(policies.best, acting)
    assert differs(policies.best, state.members.best)
    assert np.all(np.isfinite(score(spec, episodes)) & np.isfinite(evaluated.members.best_score)[:, None])
    # A worse one does not replace it.
    proud = RunState(_with_score(evaluated.members, 1e9), evaluated.iteration, evaluated.budget)
    later, _ = chunk_of(config, ITERATIONS)(proud)
    kept, _ = evaluate_of(config)(later)
    assert_same(kept.members.best, policies.best)
    assert np.all(np.asarray(kept.members.best_score) == np.float32(1e9))


def _with_score(members: Any, score: float) -> Any:
    import equinox as eqx

    return eqx.tree_at(lambda m: m.best_score, members, jax.numpy.full_like(members.best_score, score))
