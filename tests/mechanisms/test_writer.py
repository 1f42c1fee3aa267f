"""What a stream of rollouts leaves in a memory, worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit
from streams import Row, rollout

from rookery.core.types import Clock, Rollout
from rookery.mechanisms.reflect import Abstract, Reconstruct
from rookery.mechanisms.writer import Write, Writer
from rookery.memory.dictionary import Dictionary, DictionaryState
from rookery.memory.graph import TERMINAL, Graph, live

A, B, C, D = range(4)
GAMMA = 0.5
GRAPH = Graph(16, 4, neighbors=1, reach=1e-3, value_rate=0.5)
TABLE = Dictionary(16, "shared", neighbors=1, rate=0.5, reach=1e-3)


def written(memory: Graph | Dictionary, write: Write, *rollouts: Rollout) -> tuple[dict[Any, float], Any, Any]:
    """The values that are known after these rollouts, by state and action; the memory and the stream."""
    writer = Writer(memory, write, Abstract("common", nodes=2, trajectories=2, length=8), Reconstruct(), GAMMA)

    def run() -> Any:
        table, stream = writer.init(4, 4, 1, None, jax.random.PRNGKey(0))
        for i, one in enumerate(rollouts):
            keys, clock = one.step.obs.reshape(-1, 1, 4), Clock(jnp.int32(i), jnp.uint32(0), jnp.float32(9))
            table, stream = writer.see(table, stream, one.step, keys, clock)
            rows = writer.transitions(one, keys, clock)
            (table, stream), _ = jax.lax.scan(lambda now, row: (writer.row(*now, row)[:2], None), (table, stream), rows)
        return table, stream

    table, stream = hasty_jit(run)()
    values, visits, keys = (
        (table.values[0], table.visits[0], table.keys[0])
        if isinstance(table, DictionaryState)
        else (table.q, table.q_visits, table.keys)
    )
    found = {(int(np.argmax(keys[n])), int(a)): float(values[n, a]) for n, a in np.argwhere(np.asarray(visits) > 0)}
    return found, table, stream


def rows_of(*rows: Row, memory: Graph | Dictionary) -> Rollout:
    """A rollout whose reads touch nothing."""
    shape = (len(rows) - 1, 1, 1) if isinstance(memory, Graph) else (len(rows) - 1, 1, 1, 1)
    return rollout(rows, extra={"read": jnp.full(shape, 16, jnp.int32)})


def edges_of(table: Any) -> set[tuple[int, int, int]]:
    """(from, action, to) of states; -1 is the terminal node."""
    edges, keys = live(table), np.asarray(table.keys)
    state = lambda n: -1 if n == TERMINAL else int(np.argmax(keys[n]))  # noqa: E731
    return {(state(n), int(edges.action[n, s]), state(int(edges.next[n, s]))) for n, s in np.argwhere(edges.next >= 0)}


@pytest.mark.parametrize("memory", [GRAPH, TABLE])
def test_a_lost_life_ends_a_return_and_not_the_stream(memory: Graph | Dictionary) -> None:
    """A leads to B, where a life is lost; the game goes on from there to its reward."""
    rows = [Row(A, first=True), Row(B, 1, discount=0.0), Row(C, 2), Row(D, 0, 1.0, 0.0, last=True)]
    found, table, _ = written(memory, Write(n=3, drain=3), rows_of(*rows, memory=memory))
    assert found == {(A, 0): 0.0, (B, 1): GAMMA, (C, 2): 1.0}
    if isinstance(memory, Graph):
        assert edges_of(table) == {(A, 0, -1), (B, 1, C), (C, 2, -1)}


@pytest.mark.parametrize("memory", [GRAPH, TABLE])
@pytest.mark.parametrize("end", [Row(B, 1), Row(B, 1, 4.0, last=True)])
def test_an_episode_that_does_not_go_on_is_not_joined_with_the_next(memory: Graph | Dictionary, end: Row) -> None:
    """A run was resumed with a fresh episode, which begins at C, after A and B."""
    begun = rows_of(Row(A, first=True), end, memory=memory)
    fresh = [Row(C, 2, first=True), Row(D, 3, 8.0), Row(B, 0, 16.0, 0.0, last=True)]
    found, table, stream = written(memory, Write(n=3, drain=3), begun, rows_of(*fresh, memory=memory))
    known = {(C, 2): 8 + GAMMA * 16, (D, 3): 16.0}
    assert found == ({(A, 0): 4.0} | known if end.last else known)
    if isinstance(memory, Graph):
        assert edges_of(table) == {(A, 0, B), (C, 2, D), (D, 3, -1)}
        assert float(stream.reflection.trajectories.best_returns.max()) == 24.0
        paths, keys = np.asarray(stream.reflection.trajectories.best.node), np.asarray(table.keys)
        best = paths[np.argmax(stream.reflection.trajectories.best_returns)]
        assert [int(np.argmax(keys[n])) for n in best if 0 <= n < 16] == [C, D]


def test_a_first_row_at_the_end_of_a_rollout_is_one_visit() -> None:
    ends = rows_of(Row(A, first=True), Row(B, last=True, discount=0.0), Row(C, first=True), memory=GRAPH)
    _, table, _ = written(GRAPH, Write(), ends, rows_of(Row(C, 2, first=True), Row(D), memory=GRAPH))
    assert edges_of(table) == {(A, 0, -1), (C, 2, D)}
    assert sorted(np.asarray(table.visits)[np.asarray(table.filled)].tolist()) == [1, 1, 1]


@pytest.mark.parametrize(("later", "value"), [("n_step", 2.25), ("one_step", 2.5)])
def test_a_known_value_follows_the_next_node(later: Any, value: float) -> None:
    """A leads to B, which is worth 4 by one action and 2 by another; then to D, which has no value yet."""
    rows = [Row(A, first=True), Row(B), Row(C), Row(D, 0, 8.0, 0.0, last=True)]
    rows += [Row(A, first=True), Row(B, 1), Row(D, 0, 2.0, 0.0, last=True)]
    rows += [Row(A, first=True), Row(D), Row(C, 0, 6.0, 0.0, last=True)]
    found, _, _ = written(GRAPH, Write(n=3, drain=3, later=later), rows_of(*rows, memory=GRAPH))
    assert found == {(A, 0): value, (B, 0): 4.0, (C, 0): 8.0, (B, 1): 2.0, (D, 0): 6.0}
