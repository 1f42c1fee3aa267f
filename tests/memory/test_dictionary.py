"""The dictionary against one written with lists: matches, merges, columns, eviction, duplicates; and no copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import AS_TRAINED, copies
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.errors import ConfigError
from rookery.memory import dictionary
from rookery.memory.dictionary import Dictionary, DictionaryState, Rows
from rookery.memory.slots import fingerprint, running

ROWS, ACTIONS = 4, 3


@dataclass
class Entry:
    key: np.ndarray
    values: dict[int, float]
    last_use: int


@dataclass
class Brute:
    """Tables as lists of entries; a batch is matched with the table before it, then applied row by row."""

    config: Dictionary
    tables: list[list[Entry | None]] = field(default_factory=list)
    merges: int = 0
    evictions: int = 0

    def same(self, a: np.ndarray, b: np.ndarray) -> bool:
        return bool(np.sum((a - b) ** 2) <= self.config.merge**2)

    def write(self, key: np.ndarray, action: np.ndarray, value: np.ndarray, where: np.ndarray, now: int) -> None:
        per_action = self.config.tables == "per_action"
        table = [int(a) if per_action else 0 for a in action]
        place: dict[int, int] = {}
        for i in np.flatnonzero(where):
            near = [(float(np.sum((e.key - key[i]) ** 2)), s) for s, e in enumerate(self.tables[table[i]]) if e]
            if near and min(near)[0] <= self.config.merge**2:
                place[i] = min(near)[1]
        matched = {(table[i], s) for i, s in place.items()}
        leaders: list[int] = []
        for i in np.flatnonzero(where):
            if i in place:
                continue
            leader = next((j for j in leaders if table[j] == table[i] and self.same(key[j], key[i])), None)
            if leader is None:
                leaders.append(i)
            place[i] = -1 if leader is None else -2 - leader
        for i in leaders:
            entries = self.tables[table[i]]
            order = [
                (-1 if e is None else e.last_use, s) for s, e in enumerate(entries) if (table[i], s) not in matched
            ]
            slot = min(order)[1]
            self.evictions += entries[slot] is not None
            entries[slot] = Entry(key[i], {}, now)
            matched.add((table[i], slot))
            place[i] = slot
        for i in np.flatnonzero(where):
            self.merges += i not in leaders
            slot = place[i] if place[i] >= 0 else place[-2 - place[i]]
            entry = self.tables[table[i]][slot]
            assert entry is not None
            old, new = entry.values.get(int(action[i])), float(value[i])
            rate = self.config.rate
            better = new if old is None else max(old, new) if self.config.update == "max" else old + rate * (new - old)
            entry.values[int(action[i])] = better


def rows(rng: np.random.Generator, where: np.ndarray) -> tuple[np.ndarray, ...]:
    """Few different keys on a grid, so that batches and tables have many of the same."""
    key = rng.integers(0, 3, (ROWS, 2)).astype(np.float32)
    return key, rng.integers(0, ACTIONS, ROWS), rng.integers(-5, 6, ROWS).astype(np.float32), where


def compare(memory: DictionaryState, brute: Brute) -> None:
    per_action = brute.config.tables == "per_action"
    for t, entries in enumerate(brute.tables):
        for s, entry in enumerate(entries):
            assert bool(np.isfinite(memory.norms[t, s])) == (entry is not None)
            if entry is None:
                continue
            np.testing.assert_array_equal(memory.keys[t, s], entry.key)
            assert float(memory.norms[t, s]) == float(np.sum(entry.key**2))
            assert int(memory.last_use[t, s]) == entry.last_use
            for c in range(memory.values.shape[2]):
                action = t if per_action else c
                assert (int(memory.visits[t, s, c]) > 0) == (action in entry.values)
                np.testing.assert_allclose(memory.values[t, s, c], entry.values.get(action, 0.0), rtol=1e-5, atol=1e-5)
        assert int(memory.count[t]) == sum(e is not None for e in entries)
    assert (int(memory.merges), int(memory.evictions)) == (brute.merges, brute.evictions)


CONFIGS = [
    Dictionary(capacity, tables, neighbors=2, update=update, rate=0.25, merge=merge)
    for capacity, tables in ((4, "per_action"), (6, "shared"))
    for update in ("average", "max")
    for merge in (0.0, 1.0)
]
write = eqx.filter_jit(lambda config, *x: config.write(*x))
read = eqx.filter_jit(lambda config, *x: config.read(*x))
touch = jax.jit(dictionary.touch)


@pytest.mark.parametrize("config", CONFIGS)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 100_000))
def test_it_does_what_lists_do(config: Dictionary, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config.check(ROWS)
    memory = config.empty(2, ACTIONS)
    brute = Brute(config, [[None] * config.capacity for _ in range(memory.keys.shape[0])])
    for now in range(1, 9):
        key, action, value, where = rows(rng, rng.random(ROWS) < 0.8)
        batch = Rows(*map(jnp.asarray, (key, action.astype(np.int32), value, where)))
        memory, slots = write(config, memory, batch, jnp.int32(now))
        brute.write(key, action, value, where, now)
        compare(memory, brute)
        assert bool(np.all((np.asarray(slots.slot) < config.capacity) == where))
        index = read(config, memory, jnp.asarray(key[:1])).index
        memory = touch(memory, index, jnp.int32(now))
        for t in range(index.shape[0]):
            for s in np.asarray(index[t]).ravel():
                entry = brute.tables[t][s]
                if entry is not None:
                    entry.last_use = now


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from(["per_action", "shared"]))
def test_reads_are_kernel_means_of_the_nearest(seed: int, tables: Any) -> None:
    rng = np.random.default_rng(seed)
    config = Dictionary(8, tables, neighbors=3, delta=0.5)
    memory = config.empty(2, ACTIONS)
    for now in range(2):
        key, action, value, where = rows(rng, np.ones(ROWS, bool))
        batch = Rows(*map(jnp.asarray, (key, action.astype(np.int32), value, where)))
        memory, _ = write(config, memory, batch, jnp.int32(now))
    query = rng.normal(size=(2, 2)).astype(np.float32)
    got = read(config, memory, jnp.asarray(query))
    for b in range(2):
        for a in range(ACTIONS):
            t, c = (a, 0) if tables == "per_action" else (0, a)
            distance = np.where(
                np.isinf(memory.norms[t]), np.inf, ((np.asarray(memory.keys[t]) - query[b]) ** 2).sum(1)
            )
            near = [i for i in np.argsort(distance, kind="stable")[:3] if memory.visits[t, i, c] > 0]
            assert bool(got.known[b, a]) == bool(near)
            weight = 1 / (distance[near] + 0.5)
            want = (weight * np.asarray(memory.values)[t, near, c]).sum() / weight.sum() if near else 0.0
            np.testing.assert_allclose(got.q[b, a], want, rtol=1e-4, atol=1e-5)


def test_what_is_beyond_reach_is_not_used() -> None:
    """Entries at 0 and 1; a query at 0.95 reads the second, one at 0.4 none."""
    config = Dictionary(16, "shared", neighbors=2, reach=0.1)
    rows = Rows(jnp.array([[0.0], [1.0]]), jnp.zeros(2, jnp.int32), jnp.zeros(2), jnp.ones(2, bool))
    memory, _ = write(config, config.empty(1, 1), rows, jnp.int32(1))
    used = config.used(read(config, memory, jnp.array([[0.95], [0.4]])))
    assert dictionary.touch(memory, used, jnp.int32(7)).last_use[0, :3].tolist() == [1, 7, 0]


def test_hashes_match_where_keys_have_drifted() -> None:
    """The key was learned since; the observation's hash still finds it."""
    config = Dictionary(16, "shared", neighbors=1, rate=0.5)
    memory = config.empty(2, 1)
    seen = fingerprint(jnp.array([[7, 7, 7]], jnp.uint8))
    one = Rows(jnp.ones((1, 2)), jnp.zeros(1, jnp.int32), jnp.array([4.0]), jnp.array([True]), seen)
    memory, _ = write(config, memory, one, jnp.int32(0))
    at, _ = config.near(memory, jnp.ones((1, 2)), jnp.zeros(1, jnp.int32))
    memory = dictionary.shift(memory, at, jnp.full((1, 1, 2), 0.5), jnp.zeros((1, 1, 1)))
    np.testing.assert_allclose(memory.keys[0, 0], [1.5, 1.5])
    np.testing.assert_allclose(memory.norms[0, 0], 4.5)
    memory, _ = write(config, memory, eqx.tree_at(lambda r: r.value, one, jnp.array([8.0])), jnp.int32(1))
    assert int(memory.count[0]) == 1
    np.testing.assert_allclose(memory.values[0, 0], [6.0])


@pytest.mark.parametrize("tables", ["shared", "per_action"])
def test_one_action_is_read_as_all_of_them_are(tables: Any) -> None:
    config = Dictionary(64, tables, neighbors=3)
    rng = np.random.default_rng(0)
    keys, action = jnp.asarray(rng.normal(size=(40, 2)), jnp.float32), jnp.asarray(rng.integers(0, 3, 40), jnp.int32)
    rows = Rows(keys, action, jnp.asarray(rng.normal(size=40), jnp.float32), jnp.ones(40, bool))
    memory, _ = write(config, config.empty(2, 3), rows, jnp.int32(0))
    query, asked = keys[:9] + 0.1, jnp.arange(9, dtype=jnp.int32) % 3
    at, found = config.near(memory, query, asked)
    np.testing.assert_array_equal(memory.keys[at], found.key)
    all_of_them = read(config, memory, query).q
    np.testing.assert_allclose(config.value(query, asked, found), all_of_them[np.arange(9), asked], rtol=1e-6)


def test_a_shift_adds_up_where_an_entry_was_read_twice() -> None:
    config = Dictionary(16, "shared", neighbors=1)
    batch = Rows(jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32), jnp.zeros(1), jnp.array([True]))
    memory, _ = write(config, config.empty(2, 1), batch, jnp.int32(0))
    at, _ = config.near(memory, jnp.zeros((2, 2)), jnp.zeros(2, jnp.int32))
    memory = dictionary.shift(memory, at, jnp.ones((2, 1, 2)), jnp.full((2, 1, 1), 3.0))
    np.testing.assert_allclose(memory.keys[0, 0], [2, 2])
    np.testing.assert_allclose((memory.norms[0, 0], memory.values[0, 0, 0]), (8, 6))
    assert np.all(np.isinf(memory.norms[0, 1:]))


def test_fingerprints() -> None:
    x = np.random.default_rng(0).integers(0, 2, (2000, 16)).astype(np.uint8)
    hashed = np.asarray(fingerprint(jnp.asarray(x)))
    assert len(np.unique(hashed, axis=0)) == len(np.unique(x, axis=0))
    ab, ba = fingerprint(jnp.array([[1.0, 2.0], [2.0, 1.0]]))
    assert not np.array_equal(ab, ba)
    np.testing.assert_array_equal(*fingerprint(jnp.array([[0.0], [-0.0]])))


def test_running_applies_rows_in_order() -> None:
    """Cell 5 holds 8: 8 -> 4 (toward 0) -> 8 (toward 12). Cell 6 is new: 2 -> 3 (toward 4). The last row is masked."""
    cell, x = jnp.array([5, 6, 5, 6, 5]), jnp.array([0.0, 2.0, 12.0, 4.0, 99.0])
    new, where = jnp.array([False, True, False, False, False]), jnp.array([True, True, True, True, False])
    got = running(cell, new, where, jnp.array([8.0, 7.0, 8.0, 7.0, 8.0]), x, 0.5)
    np.testing.assert_allclose(got[:4], [8, 3, 8, 3])


def test_seeds_are_a_vmap() -> None:
    config = CONFIGS[1]
    rng = np.random.default_rng(0)
    batches = [[rows(rng, np.ones(ROWS, bool)) for _ in range(3)] for _ in range(2)]
    as_rows = [[Rows(*map(jnp.asarray, (k, a.astype(np.int32), v, w))) for k, a, v, w in batch] for batch in batches]

    def run(batch: Rows) -> DictionaryState:
        def one(memory: Any, x: Any) -> tuple[Any, None]:
            return config.write(memory, x[0], x[1])[0], None

        return jax.lax.scan(one, config.empty(2, ACTIONS), (batch, jnp.arange(3)))[0]

    stacked = [jax.tree.map(lambda *x: jnp.stack(x), *batch) for batch in as_rows]
    both = jax.jit(jax.vmap(run))(jax.tree.map(lambda *x: jnp.stack(x), *stacked))
    for i in range(2):
        alone = jax.jit(run)(stacked[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a, b[i], rtol=1e-6), alone, both)


@pytest.mark.parametrize(
    ("tables", "merge", "seeds"),
    [("per_action", 0.0, 2), ("per_action", 0.1, 0), ("shared", 0.0, 0), ("shared", 0.1, 2)],
)
def test_no_table_is_copied(tables: Any, merge: float, seeds: int) -> None:
    """Read, touch, write, shift in a loop, with the memory donated."""
    config = Dictionary(32_768, tables, neighbors=5, merge=merge)
    actions = 2

    def step(memory: DictionaryState, x: tuple[Any, Any]) -> tuple[DictionaryState, Any]:
        batch, now = x
        got = config.read(memory, batch.key)
        # What is written depends on what was read, as it does where an action was chosen by it.
        batch = eqx.tree_at(lambda b: b.action, batch, jnp.argmax(got.q, axis=1).astype(jnp.int32))
        memory = dictionary.touch(memory, got.index, now)
        memory, _ = config.write(memory, batch, now)
        at, entries = config.near(memory, batch.key, batch.action)
        return dictionary.shift(memory, at, 0.1 * entries.key, 0.1 * entries.value), got.q

    shape = (3, ROWS)
    batch = Rows(jnp.ones((*shape, 32)), jnp.zeros(shape, jnp.int32), jnp.ones(shape), jnp.ones(shape, bool))
    memory = config.empty(32, actions)
    run = lambda memory, batch: jax.lax.scan(step, memory, (batch, jnp.arange(3)))  # noqa: E731  (it is vmapped or not)
    if seeds:
        run = jax.vmap(run)
        memory, batch = jax.tree.map(lambda x: jnp.stack([x] * seeds), (memory, batch))
    compiled = jax.jit(run, donate_argnums=0).lower(memory, batch).compile(AS_TRAINED)
    assert copies(compiled, memory.last_use.nbytes) == []
    assert compiled.memory_analysis().temp_size_in_bytes < memory.keys.nbytes / 2
    after, _ = compiled(memory, batch)
    assert memory.keys.is_deleted(), "it was not donated"
    assert np.all(np.sum(np.asarray(after.count), axis=-1) > 0)


@pytest.mark.parametrize(
    "config", [Dictionary(8, neighbors=9), Dictionary(2, neighbors=1), Dictionary(delta=0.0), Dictionary(rate=0.0)]
)
def test_bad_sizes_are_refused(config: Dictionary) -> None:
    with pytest.raises(ConfigError, match="memory"):
        config.check(ROWS)
