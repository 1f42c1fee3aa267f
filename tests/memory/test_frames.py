"""Stacks that are made of frames stored once are the observations that were seen, whatever was stored around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.core.types import ActionSpec, Clock, Collect, Rollout, Spec, Step
from rookery.memory.learning import Replayed, Store
from rookery.memory.replay import Draw, Replay, slot
from rookery.memory.sequences import Memory, Sequence

ENVS, FRAMES, KEY = 3, 4, jax.random.PRNGKey(0)
SPEC = Spec("toy", ("agent",), (2, 3, FRAMES * 2), ActionSpec("discrete", (2,)), 50, obs_dtype="uint8", frames=FRAMES)


def world(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """`rows` rows of each environment: episodes of random lengths, random frames and rewards."""
    rng = np.random.default_rng(seed)
    frame = rng.integers(1, 256, (rows, ENVS, 2, 3, 2), np.uint8)
    last = rng.random((rows, ENVS)) < 0.2
    first = np.concatenate([np.ones((1, ENVS), bool), last[:-1]])
    last &= ~first
    first[1:] = last[:-1]
    obs = np.zeros((rows, ENVS, 1, *SPEC.obs_shape), np.uint8)
    for e in range(ENVS):
        stack = [np.zeros((2, 3, 2), np.uint8)] * FRAMES
        for t in range(rows):
            stack = [np.zeros((2, 3, 2), np.uint8)] * FRAMES if first[t, e] else stack
            stack = [*stack[1:], frame[t, e]]
            obs[t, e, 0] = np.concatenate(stack, axis=-1)
    reward = np.where(first, 0.0, rng.integers(-9, 10, (rows, ENVS))).astype(np.float32)
    # A life is lost now and then: the return ends, the episode does not.
    discount = np.where(last | (rng.random((rows, ENVS)) < 0.1), 0.0, 1.0).astype(np.float32)
    return {"obs": obs, "first": first, "last": last, "reward": reward, "discount": np.where(first, 1.0, discount)}


def rollout(rows: dict[str, np.ndarray], start: int, time: int) -> Rollout:
    """`time` transitions; the number of its row is each row's action."""
    cut: dict[str, Any] = {name: jnp.asarray(x[start : start + time + 1]) for name, x in rows.items()}
    lead = (time + 1, ENVS)
    step = Step(
        obs=cut["obs"],
        state=jnp.zeros((*lead, 0)),
        legal=jnp.ones((*lead, 1, 2), bool),
        alive=jnp.ones((*lead, 1), bool),
        reward=cut["reward"][..., None],
        discount=cut["discount"][..., None],
        first=cut["first"],
        last=cut["last"],
        success=jnp.zeros(lead),
    )
    action = jnp.broadcast_to(jnp.arange(start, start + time)[:, None, None], (time, ENVS, 1)).astype(jnp.int32)
    carry = Memory(jnp.zeros((1, ENVS, 1, 0)), jnp.zeros((1, ENVS, 1), jnp.int32))
    return Rollout(step, action, {}, carry, ~cut["last"][:-1])


def adder(replayed: Replayed) -> Any:
    """Stores a rollout where it belongs."""
    capacity = replayed.replay.capacity
    return jax.jit(lambda store, rollout, k: replayed.add(store, rollout, k, slot(k, ENVS, capacity)))


def filled(replayed: Replayed, rows: dict[str, np.ndarray], iterations: int) -> Store:
    time, store, add = replayed.collect.length, replayed.empty(0), adder(replayed)
    for k in range(iterations):
        store = add(store, rollout(rows, k * time, time), jnp.int32(k))
    return store


def drawn(replayed: Replayed, store: Store, draw: Draw, stored: int, iteration: int) -> Sequence:
    """A batch as numpy arrays."""
    batch = jax.jit(lambda *x: replayed._batch(*x)[0])(store, draw, jnp.int32(stored), jnp.int32(iteration), KEY)
    return jax.tree.map(np.asarray, batch)


@pytest.mark.parametrize(("time", "slots", "iterations"), [(1, 9, 7), (1, 9, 38), (4, 3, 11), (5, 2, 9), (2, 1, 4)])
def test_every_stored_stack_is_what_was_seen(time: int, slots: int, iterations: int) -> None:
    """Before and after the ring wraps, across episode borders, for short and long rollouts."""
    replayed = Replayed(Replay(capacity=slots * ENVS), Collect(envs=ENVS, length=time), SPEC)
    rows = world(time * iterations + 1)
    store = filled(replayed, rows, iterations)
    assert store.frames is not None and store.items.step.obs.size == 0
    stored = min(slots, iterations) * ENVS
    batch = drawn(replayed, store, Draw(jnp.arange(stored), None), stored, iterations - 1)
    starts = batch.action[0, :, 0]  # the row that each sequence began with
    assert sorted(set(starts.tolist())) == [time * k for k in range(max(0, iterations - slots), iterations)]
    for b in range(stored):
        seen = rows["obs"][starts[b] : starts[b] + time + 1, b % ENVS]
        np.testing.assert_array_equal(batch.step.obs[:, b], seen)


def test_sequences_that_begin_with_a_reset_keep_their_own_last_row() -> None:
    replayed = Replayed(Replay(capacity=2 * ENVS), Collect(envs=ENVS, length=3, restart=True), SPEC)
    store, add, worlds = replayed.empty(0), adder(replayed), [world(4, seed) for seed in range(5)]
    for k, rows in enumerate(worlds):
        store = add(store, rollout(rows, 0, 3), jnp.int32(k))
    batch = drawn(replayed, store, Draw(jnp.arange(2 * ENVS), None), 2 * ENVS, 4)
    for b in range(2 * ENVS):
        np.testing.assert_array_equal(batch.step.obs[:, b], worlds[4 if b < ENVS else 3]["obs"][:, b % ENVS])


@pytest.mark.parametrize(("n", "framed"), [(1, True), (3, True), (3, False), (5, True)])
def test_transitions_span_n_steps_but_no_border(n: int, framed: bool) -> None:
    """Returns, discounts and rows of n-step transitions, worked out row by row beside the store."""
    spec, time, slots, gamma = SPEC if framed else replace(SPEC, frames=1), 2, 6, 0.5
    replay = Replay(capacity=slots * ENVS, batch=400, unit="transition")
    replayed = Replayed(replay, Collect(envs=ENVS, length=time), spec, n, gamma)
    iterations = 15
    rows = world(time * iterations + 1, seed=3)
    store, stored = filled(replayed, rows, iterations), jnp.int32(slots * ENVS)
    clock = Clock(jnp.int32(iterations - 1), jnp.uint32(0), jnp.float32(1))
    batch = drawn(replayed, store, replayed._draw(store, None, stored, clock, KEY), slots * ENVS, iterations - 1)
    environments = where_seen(rows, batch)
    shorter = 0
    for b in np.flatnonzero(batch.filled[0]):
        t, e = int(batch.action[0, b, 0]), environments[b]
        total, discount, m = 0.0, 1.0, 0
        while m < n and t + m < time * iterations and (m == 0 or not rows["last"][t + m, e]):
            m += 1
            total += gamma ** (m - 1) * discount * rows["reward"][t + m, e]
            discount *= rows["discount"][t + m, e]
        shorter += m < n
        np.testing.assert_array_equal(batch.step.obs[1, b], rows["obs"][t + m, e])
        assert batch.step.reward[1, b, 0] == total and batch.step.last[1, b] == rows["last"][t + m, e]
        assert batch.step.discount[1, b, 0] == gamma ** (m - 1) * discount
    assert n == 1 or shorter > 20


def where_seen(rows: dict[str, np.ndarray], batch: Sequence) -> list[int]:
    """Environments of the drawn transitions, told by their observations, which are all different."""
    found = []
    for b in range(batch.action.shape[1]):
        t = int(batch.action[0, b, 0])
        same = [e for e in range(ENVS) if np.array_equal(rows["obs"][t, e, 0], batch.step.obs[0, b, 0])]
        assert len(same) == 1
        found.append(same[0])
    return found


def test_transitions_have_priorities_of_their_own() -> None:
    replay = Replay(capacity=4 * ENVS, batch=2000, unit="transition", priority=1.0, eps=0.0)
    replayed = Replayed(replay, Collect(envs=ENVS, length=2), SPEC)
    rows = world(7, seed=1)
    store, clock = filled(replayed, rows, 3), Clock(jnp.int32(2), jnp.uint32(0), jnp.float32(1))
    empty = replayed.priorities()
    assert empty is not None and empty.shape == (4 * ENVS * 2,)
    priorities = jnp.arange(24.0).at[5].set(0.0)
    draw = replayed._draw(store, priorities, jnp.int32(3 * ENVS), clock, KEY)
    there = np.asarray(store.items.filled).reshape(-1) & (np.arange(24) < 18) & (np.asarray(priorities) > 0)
    assert 0 < there.sum() < 17 and set(np.unique(draw.index)) <= set(np.flatnonzero(there))
    share = np.bincount(np.asarray(draw.index), minlength=24) / 2000
    np.testing.assert_allclose(share, np.where(there, priorities, 0) / priorities[there].sum(), atol=0.04)
    batch = drawn(replayed, store, draw, 3 * ENVS, 2)
    assert np.all(batch.filled)
    sequence, time = np.asarray(draw.index) // 2, np.asarray(draw.index) % 2
    np.testing.assert_array_equal(batch.action[0, :, 0], 2 * (sequence // ENVS) + time)


def test_a_rollout_that_does_not_go_on_where_the_last_one_ended() -> None:
    """As after a resume that had to begin fresh episodes: the transition into the lost row counts no longer."""
    replayed = Replayed(Replay(capacity=4 * ENVS), Collect(envs=ENVS, length=2), SPEC)
    rows, other = world(7, seed=2), world(3, seed=3)
    store, add = filled(replayed, rows, 2), adder(replayed)
    went_on = add(store, rollout(rows, 4, 2), jnp.int32(2))
    np.testing.assert_array_equal(went_on.items.filled[: 2 * ENVS], store.items.filled[: 2 * ENVS])
    cut = np.asarray(add(store, rollout(other, 0, 2), jnp.int32(2)).items.filled)
    expected = np.asarray(store.items.filled).copy()
    expected[ENVS : 2 * ENVS, -1] &= rows["last"][4]
    np.testing.assert_array_equal(cut[: 2 * ENVS], expected[: 2 * ENVS])
    assert not rows["last"][4].all()


def test_a_million_frames_fit() -> None:
    """84 x 84 pixels, with everything else that a transition has."""
    spec = Spec("pong", ("agent",), (84, 84, 4), ActionSpec("discrete", (18,)), 27_000, obs_dtype="uint8", frames=4)
    for time, envs in ((4, 1), (1, 4)):
        replay = Replay(capacity=1_000_000 // time, unit="transition", priority=0.6)
        replayed = Replayed(replay, Collect(envs=envs, length=time), spec)
        shapes = jax.eval_shape(lambda r=replayed: (r.empty(0), r.priorities()))
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
        assert 7_056_000_000 < size < 7.5 * 2**30
