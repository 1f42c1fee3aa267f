"""Examples that are drawn are those whose targets are complete, with the observations that were seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.core.types import ActionSpec, Spec
from rookery.memory import examples

ENVS = 2


@pytest.mark.parametrize(("frames", "block"), [(1, 1), (3, 1), (3, 4)])
def test_draws_are_complete_examples_as_they_were_seen(frames: int, block: int) -> None:
    """A stream that goes around the ring several times; its targets come six rows late, and not for all rows."""
    late, rows = 6, 60
    spec = Spec("toy", ("agent",), (2, 2, frames), ActionSpec("discrete", (2,)), 9, obs_dtype="uint8", frames=frames)
    rng = np.random.default_rng(frames + block)
    frame = rng.integers(1, 256, (rows + 1, ENVS, 2, 2, 1), np.uint8)
    first = rng.random((rows + 1, ENVS)) < 0.2
    first[0] = True
    obs = np.zeros((rows + 1, ENVS, 1, 2, 2, frames), np.uint8)
    for e in range(ENVS):
        for t in range(rows + 1):
            begin = max(s for s in range(t + 1) if first[s, e])
            for k in range(min(frames, t - begin + 1)):
                obs[t, e, 0, ..., frames - 1 - k] = frame[t - k, e, ..., 0]
    store = examples.empty(spec, 8 + late, ENVS, block)
    size = store.ready.shape[0]
    see, complete = jax.jit(examples.see), jax.jit(examples.complete)
    added = 0
    for start in range(0, rows, block):
        part = slice(start, start + block + 1)
        store = see(store, jnp.asarray(obs[part]), jnp.asarray(first[part]), jnp.int32(start))
        for t in range(start, start + block):
            row = np.full(ENVS, t - late)
            where = (row >= 0) & (rng.random(ENVS) < 0.7)
            added += where.sum()
            target = jnp.asarray((row * ENVS + np.arange(ENVS)).astype(np.float32))
            store = complete(store, jnp.asarray(row), jnp.asarray(row % 2), target, jnp.asarray(where))
    assert int(store.count) == added and np.sum(store.ready) >= 5
    seen, action, target = (np.asarray(x) for x in examples.draw(store, 200, jax.random.PRNGKey(0), frames))
    when, env = np.divmod(target.astype(int), ENVS)
    np.testing.assert_array_equal(seen, obs[when, env])
    np.testing.assert_array_equal(action, when % 2)
    assert when.min() > rows - size and len(set(target.tolist())) == np.sum(store.ready), "all of them, no others"
