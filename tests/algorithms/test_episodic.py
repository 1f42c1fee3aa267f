"""Memory agents: targets of a stream, what a graph gets of it, reconstruction, programs, learning."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import AS_TRAINED, copies
from small import hasty_jit

from rookery.algorithms.episodic import Act, Episodic, Learn, Write
from rookery.algorithms.memory_actor import MemoryActor
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.registry import PRESETS, TASKS
from rookery.core.types import Collect
from rookery.mechanisms import frontier as frontiers
from rookery.mechanisms.encode import Encoder
from rookery.mechanisms.gnn import Gnn
from rookery.mechanisms.reflect import Abstract, Reconstruct
from rookery.memory import pending
from rookery.memory.graph import TERMINAL, Graph, Handle, Moves, live
from rookery.nets.optimiser import Schedule
from rookery.tasks.compiled.maze import Maze
from rookery.training.compiled.program import Program
from rookery.training.compiled.rollout import collect
from rookery.training.config import RunConfig
from rookery.training.state import RunState

MAZE = Maze(height=4, width=4, obstacles=2, bump="stay", limit=40)
GRAPHS = ["gcmr", "gbmr", "gqsi", "gqil"]  # sweeping has a test of its own
GAMMA = 0.5
ITERATIONS, SEEDS = 1500, (0, 1, 2)  # long enough to learn the maze


def stream_of(rows: list[dict[str, float]], n: int, drain: int) -> list[tuple[int, int, float]]:
    """(time written, time of the transition, target) of a stream of one environment."""
    ring, found = pending.empty(jnp.zeros((1,), jnp.int32), n, 1), []
    step = hasty_jit(pending.step, static_argnums=3)
    for now, row in enumerate(rows):
        x = {name: jnp.array([value]) for name, value in row.items()}
        transition = pending.Row(
            kept=jnp.array([now], jnp.int32),
            action=jnp.zeros(1, jnp.int32),
            reward=x["reward"],
            discount=GAMMA * (1 - x["terminal"]),
            value=x["value"],
            last=x["last"] > 0,
            filled=x["filled"] > 0,
        )
        ring, due = step(ring, transition, jnp.int32(now), drain)
        found += [(now, int(due.kept[i]), float(due.target[i])) for i in np.flatnonzero(due.where)]
    return found


def row(reward: float, value: float = 0.0, terminal: int = 0, last: int = 0, filled: int = 1) -> dict[str, float]:
    return {"reward": reward, "value": value, "terminal": float(terminal), "last": float(last), "filled": float(filled)}


RESET = row(0.0, 100.0, filled=0)


def test_a_lost_life_ends_targets_and_not_the_episode() -> None:
    """n = 3: nothing that comes after the lost life counts for what was before it."""
    written = stream_of([row(1.0, 8.0), row(2.0, 16.0, terminal=1), row(4.0, 8.0), row(8.0, 4.0, last=1)], n=3, drain=3)
    assert written == [(2, 0, 1 + 2 / 2), (3, 1, 2.0), (3, 2, 4 + 8 / 2 + 4 / 4), (3, 3, 8 + 4 / 2)]


def test_targets_of_a_stream_by_hand() -> None:
    """n = 2, gamma 1/2: an episode that terminates, and one that is cut."""
    rows = [row(1.0, 8.0), row(2.0, 16.0), row(4.0, 99.0, terminal=1, last=1), RESET]
    rows += [row(1.0, 8.0), row(3.0, 4.0, last=1), RESET, row(5.0, 6.0)]
    written = stream_of(rows, n=2, drain=2)
    assert written == [
        (1, 0, 1 + 2 / 2 + 16 / 4),  # two rewards, then the value of the third state
        (2, 1, 2 + 4 / 2),  # nothing after termination
        (2, 2, 4.0),
        (5, 4, 1 + 3 / 2 + 4 / 4),  # cut: bootstrapped from the last row
        (5, 5, 3 + 4 / 2),
    ]  # row 7 waits for its second reward


@pytest.mark.parametrize(("n", "drain"), [(1, 1), (3, 1), (3, 3), (5, 2), (8, 8)])
def test_every_transition_is_written_once_with_its_target(n: int, drain: int) -> None:
    rng = np.random.default_rng(n * 10 + drain)
    rows, ends = [], []
    while len(rows) < 60:
        length, dies = int(rng.integers(1, 9)), bool(rng.integers(2))
        first = len(rows)
        for i in range(length):
            last = i == length - 1
            rows.append(row(float(rng.normal()), float(rng.normal()), int(last and dies), int(last)))
            ends.append(first + length)
        rows.append(RESET)
        ends.append(0)
    written = stream_of(rows, n, drain)
    times = [t for _, t, _ in written]
    assert times == sorted(set(times)), "once, and in order"
    expected = {}
    for t, now in enumerate(rows):
        if now["filled"] and t + n < len(rows):
            stop = min(t + n, ends[t])
            total = sum(GAMMA ** (k - t) * rows[k]["reward"] for k in range(t, stop))
            if not rows[stop - 1]["terminal"]:
                total += GAMMA ** (stop - t) * rows[stop - 1]["value"]
            expected[t] = total
    found = {t: target for _, t, target in written}
    assert set(expected) <= set(found)
    np.testing.assert_allclose([found[t] for t in expected], list(expected.values()), rtol=1e-5, atol=1e-6)
    for at, t, _ in written:
        due = min(t + n, ends[t]) - 1
        assert at == due if drain == n else due <= at < t + n


def compact(preset: str) -> Episodic:
    """A preset with room for the cells of these mazes, not for a thousand more: passes over its table are shorter."""
    algo = PRESETS[preset]
    dictionary, graph = (replace(table, capacity=64) for table in (algo.dictionary, algo.graph))
    return replace(algo, dictionary=dictionary, graph=graph)


@cache
def trained(algo: Episodic, iterations: int, task: Any = MAZE, seeds: tuple[int, ...] = (0,)) -> tuple[RunState, Any]:
    """The state after so many iterations and the report of them; kept for the tests that look at the same run."""
    config = RunConfig("", "maze", algo, task, 4000, seeds)
    program = Program(config)
    state = hasty_jit(program.init)()
    state, report = hasty_jit(partial(program.chunk, iterations=iterations), donate_argnums=0)(state)
    for name, mean in report.means.items():
        assert np.all(np.isfinite(mean.total)) and np.all(np.asarray(report.broken[name]) == -1), name
    return state, report


def memory_of(state: RunState, member: int = 0) -> Any:
    return jax.tree.map(lambda x: x[member], state.members.algo.view.memory)


def test_a_graph_gets_its_cells_edges_and_the_way_to_the_end() -> None:
    """On a maze a table of cells and moves is known: every node's edges are the maze's own."""
    state, _ = trained(compact("gq"), 3000)
    memory = memory_of(state)
    keys, edges = np.asarray(memory.keys), jax.tree.map(np.asarray, live(memory))
    cells = {tuple(np.rint(keys[i] * 3).astype(int)): i for i in np.flatnonzero(np.asarray(memory.filled))}
    assert (3, 3) not in cells and len(cells) == 16 - 2 - 1
    ends = np.argwhere(edges.next == TERMINAL)
    assert len(ends), "terminating actions have edges"
    for node, slot in ends:
        assert edges.reward[node, slot] == 200.0
        assert tuple(np.rint(keys[node] * 3).astype(int)) in {(2, 3), (3, 2)}
    moves = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
    for cell, node in cells.items():
        for slot in np.flatnonzero(edges.next[node] > 0):
            to = tuple(np.clip(np.array(cell) + moves[edges.action[node, slot]], 0, 3))
            assert edges.next[node, slot] == cells.get(to, node)
            assert edges.reward[node, slot] == (-1.0 if to not in cells else 0.0)


def test_every_transition_is_written_the_first_too() -> None:
    """Nodes are made of the rows that transitions lead to; the run's very first row has none before it."""
    state, report = trained(compact("gq"), 3000)
    steps = int(state.members.steps[0])
    assert int(np.sum(memory_of(state).q_visits)) == steps == int(report.means["writes"].total[0])


def test_a_table_learns_what_q_learning_learns() -> None:
    """The dictionary and the graph are the same table here; a reference in Python replays their transitions."""
    rate, gamma, algo = 0.5, 0.9, compact("q")
    program = Program(RunConfig("", "maze", algo, MAZE, 4000, (0,)))
    state = hasty_jit(program.init)()
    step = jax.jit(partial(program.chunk, iterations=1))
    q: dict[tuple[Any, int], float] = {}

    def roll(state: RunState) -> Any:
        member = jax.tree.map(lambda x: x[0], state.members)
        clock = state.clock(member.steps, state.iteration)
        key = stream(member.key, "collect", state.iteration)
        return collect(algo, MAZE, algo.policy(member.algo), member.worlds, clock, key)[1]

    roll = jax.jit(roll)
    for _ in range(150):
        rollout = jax.tree.map(np.asarray, roll(state))
        if rollout.filled[0, 0]:
            s, s2 = (tuple(rollout.step.obs[i, 0, 0].tolist()) for i in (0, 1))
            a, r = int(rollout.action[0, 0, 0]), float(rollout.step.reward[1, 0, 0])
            ahead = [q[s2, b] for b in range(4) if (s2, b) in q]
            target = r + gamma * max(ahead, default=0.0) * float(rollout.step.discount[1, 0, 0])
            q[s, a] = q[s, a] + rate * (target - q[s, a]) if (s, a) in q else target
        state, _ = step(state)
    memory = memory_of(state)
    found = {}
    for slot in np.flatnonzero(np.isfinite(np.asarray(memory.norms[0]))):
        for a in np.flatnonzero(np.asarray(memory.visits[0, slot])):
            found[tuple(np.asarray(memory.keys[0, slot]).tolist()), int(a)] = float(memory.values[0, slot, a])
    assert set(found) == set(q)
    np.testing.assert_allclose([found[k] for k in q], list(q.values()), rtol=1e-5, atol=1e-6)


def test_dictionary_and_graph_are_the_same_table() -> None:
    (_, one), (_, two) = (trained(compact(name), 3000) for name in ("q", "gq"))
    for name in ("train/success", "target", "writes"):
        np.testing.assert_allclose(one.means[name].total, two.means[name].total, rtol=1e-5)


# --- reconstruction


@pytest.mark.parametrize("preset", GRAPHS)
def test_reconstruction_is_made_and_counted(preset: str) -> None:
    # What is trained for longer below serves here too.
    iterations, seeds = (ITERATIONS, SEEDS) if preset == "gbmr" else (400, (0,))
    state, report = trained(compact(preset), iterations, seeds=seeds)
    plan = PRESETS[preset].reconstruct
    assert_counted(state, report, -(-iterations // plan.every) * plan.paths * plan.length)


def assert_counted(state: RunState, report: Any, most: int) -> None:
    """Updates of every member were made, and no more than its plan allows."""
    updates = np.asarray(state.members.algo.reflection.updates)
    assert np.all(updates > 0) and np.all(updates <= most), updates
    assert np.all(np.asarray(report.means["reconstruction_updates"].total) > 0)


@pytest.mark.parametrize(
    "change",
    [
        {"abstract": Abstract("degree"), "reconstruct": Reconstruct("from_start")},
        {"reconstruct": Reconstruct("all_pairs", every=5)},
    ],
)
def test_other_ways_to_reconstruct(change: dict[str, Any]) -> None:
    state, _ = trained(replace(compact("gq"), **change), 400)
    assert int(state.members.algo.reflection.updates[0]) > 0


def test_sweeping_reaches_the_values_of_the_known_graph() -> None:
    """After enough backups every value is its own Bellman backup over the graph."""
    algo = replace(compact("gbmr_sweep"), reconstruct=Reconstruct("sweep", every=1, backups=200, tolerance=1e-4))
    state, report = trained(algo, 600)
    assert_counted(state, report, 600 * 200)
    memory = memory_of(state)
    edges, q, known = live(memory), np.asarray(memory.q), np.asarray(memory.known)
    best = np.where(known.any(1), np.where(known, q, -np.inf).max(1), 0.0)
    best[TERMINAL] = 0.0
    next, action, reward = (np.asarray(x) for x in (edges.next, edges.action, edges.reward))
    for node, slot in np.argwhere(next >= 0):
        target = reward[node, slot] + 0.9 * best[next[node, slot]]
        assert abs(q[node, action[node, slot]] - target) < 1e-2
    assert q.max() == 200.0


@cache
def jaxpr(algo: Episodic) -> str:
    program = Program(RunConfig("", "maze", algo, MAZE, 4000, (0,)))
    state = jax.eval_shape(program.init)
    return str(jax.make_jaxpr(partial(program.chunk, iterations=2))(state))


def test_what_is_off_leaves_no_trace() -> None:
    plain = PRESETS["gq"]
    off = replace(
        plain,
        reconstruct=Reconstruct("none", every=7, paths=5, backups=9),
        abstract=Abstract(nodes=3, gnn=Gnn(dim=3)),
        actor=MemoryActor(width=3, entropy=0.5),
        learn=Learn(batch=7, steps=3),
    )
    abstract = PRESETS["gbmr"].abstract
    on = {
        jaxpr(replace(plain, reconstruct=Reconstruct("sweep", backups=9))),
        jaxpr(PRESETS["gbmr"]),
        jaxpr(replace(PRESETS["gbmr"], abstract=replace(abstract, gnn=Gnn(steps=2)))),
        *(jaxpr(replace(plain, actor=MemoryActor(kind))) for kind in ("a2c", "fused")),
    }
    assert jaxpr(off) == jaxpr(plain) and jaxpr(plain) not in on and len(on) == 5
    directed = {jaxpr(replace(plain, acting=replace(plain.acting, explore=e))) for e in ("unseen", "frontier")}
    assert jaxpr(plain) not in directed and len(directed) == 2


# A dictionary and a graph, each of one member and of several, and both with a trained encoder.
TABLES = [("q", (0,)), ("mfec", (0, 1)), ("gbmr_sweep", (0,)), ("gq", (0, 1)), ("nec", (0, 1))]
TABLES += [("gbmr_framework", (0, 1))]


@pytest.mark.parametrize(("preset", "seeds"), TABLES)
def test_no_table_is_copied(preset: str, seeds: tuple[int, ...]) -> None:
    algo = PRESETS[preset]
    encoder = replace(algo.encoder, dim=16, width=16) if algo.encoder.trained else Encoder("random", dim=16)
    algo = replace(
        algo,
        encoder=encoder,
        dictionary=replace(algo.dictionary, capacity=4096, neighbors=4),
        graph=replace(algo.graph, capacity=4096, neighbors=4),
        actor=algo.actor.small(),
        # A ring of open targets is no table: every step passes over all of it.
        write=replace(algo.write, n=min(algo.write.n, 100)),
        # Paths have large intermediate arrays of their own.
        abstract=Abstract(),
        reconstruct=algo.reconstruct if preset == "gbmr_sweep" else Reconstruct(),
        learn=replace(algo.learn, batch=4, capacity=16_384),
        collect=Collect(envs=4, length=2),
    )
    program = Program(RunConfig("", "maze", algo, MAZE, 4000, seeds))
    state = jax.eval_shape(program.init)
    compiled = jax.jit(partial(program.chunk, iterations=3), donate_argnums=0).lower(state).compile(AS_TRAINED)
    # A sweep's loop copies its priorities, one number for each node that every backup looks at anyway.
    assert copies(compiled, 4096 * 4 + (preset == "gbmr_sweep")) == []


# --- acting


def test_choosing() -> None:
    act, legal = Act(Schedule(0.0, 0.0)), jnp.array([[True, True, True, False]] * 400)
    known = jnp.array([[True, True, False, False]] * 400)
    q = jnp.array([[1.0, 1.0, 50.0, 9.0]] * 400)
    key, none = jax.random.PRNGKey(0), jnp.float32(0.0)
    assert set(np.asarray(act.choose(key, q, known, legal, none)).tolist()) == {0, 1}, "ties at random, unknown is 0"
    below = set(np.asarray(act.choose(key, -q, known, legal, none)).tolist())
    assert below == {2}
    blank = jnp.zeros_like(known)
    assert set(np.asarray(act.choose(key, q, blank, legal, None)).tolist()) == {0, 1, 2}, "an unseen state, at random"
    directed = replace(act, explore="unseen")
    assert set(np.asarray(directed.choose(key, q, known, legal, jnp.float32(1.0))).tolist()) == {2}
    assert set(np.asarray(directed.choose(key, q, legal, legal, jnp.float32(1.0))).tolist()) == {2}
    assert set(np.asarray(directed.choose(key, 0 * q, known, legal, none)).tolist()) == {2}, "unseen ones win ties"
    assert set(np.asarray(directed.choose(key, q, known, legal, none)).tolist()) == {0, 1}
    steps = jnp.array([[3, 2, 1, 1]] * 400)
    assert set(np.asarray(directed.choose(key, q, known, legal, none, steps)).tolist()) == {1}, "the nearer one of ties"
    assert set(np.asarray(directed.choose(key, 0 * q, known, legal, none, steps)).tolist()) == {2}, "here is nearest"


def test_a_frontier_leads_to_the_nearest_untried_action() -> None:
    """A corridor 1 - 2 - 3 of two actions (back, on): only node 3 has not tried to go on."""
    config = Graph(capacity=8, edges_per_node=2, neighbors=1)
    rows = lambda *x: jnp.array(x, jnp.int32)  # noqa: E731
    memory, node = config.insert(config.empty(1, 2), jnp.array([[1.0], [2.0], [3.0]]), jnp.int32(0), jnp.ones(3, bool))
    one, two, three = np.asarray(node.node)
    handle = lambda x: Handle(rows(x), jnp.zeros(1, jnp.int32))  # noqa: E731
    at = Handle(rows(one, one, two, two, three), jnp.zeros(5, jnp.int32))
    to = Handle(rows(one, two, one, three, two), jnp.zeros(5, jnp.int32))
    action, yes = rows(0, 1, 0, 1, 0), jnp.ones(5, bool)
    memory = config.connect(memory, at, Moves(action, jnp.zeros(5), ~yes, yes), to)
    memory = config.learn(memory, at, action, jnp.zeros(5), yes)
    memory = eqx.tree_at(lambda m: m.visits, memory, memory.visits + 1)
    frontier, legal = frontiers.unexplored(8), jnp.ones((1, 2), bool)
    for _ in range(3):
        for left, entered in ((one, two), (two, three), (three, two)):
            frontier = frontiers.leave(memory, frontier, handle(left), legal, handle(entered))
    assert [int(frontier[x]) for x in (one, two, three)] == [2, 1, 0]
    by_action = frontiers.steps_by_action(memory, frontier, rows(one, two, three))
    assert np.asarray(by_action).tolist() == [[3, 2], [3, 1], [2, frontiers.FAR]]
    # Where going on is not legal, nothing is left to try: distances grow.
    frontier = frontiers.leave(memory, frontier, handle(three), legal.at[0, 1].set(False), handle(two))
    assert int(frontier[three]) == 2


def test_directed_exploration_sees_more_of_a_maze() -> None:
    """Edges of a maze without a goal in reach, by what directs exploration."""
    far = Maze(height=7, width=7, obstacles=4, bump="stay", limit=400, goal_reward=0.0)
    found = {}
    for explore in ("uniform", "unseen", "frontier"):
        algo = replace(compact("gq"), acting=Act(Schedule(0.03, 0.03), explore))
        state, report = trained(algo, 350, far, seeds=(0, 1, 2))
        found[explore] = float(np.mean(state.members.algo.view.memory.edge_count))
        if explore != "uniform":
            assert np.all(np.asarray(report.means["untried"].total) > 0)
    assert found["frontier"] > 1.1 * found["unseen"] > 1.1 * found["uniform"], found


# --- learning


def goals_of(algo: Episodic) -> np.ndarray:
    """How often each member reached the goal while it trained."""
    return np.asarray(trained(algo, ITERATIONS, seeds=SEEDS)[1].means["train/success"].total)


def by_chance() -> np.ndarray:
    """The same for uniformly random actions, whatever an agent remembers of them."""
    return goals_of(replace(compact("q"), acting=Act(Schedule(1.0, 1.0))))


@pytest.mark.parametrize("preset", ["q", "gbmr"])
def test_a_small_maze_is_learned(preset: str) -> None:
    goals = goals_of(compact(preset))
    assert np.all(goals > 2 * by_chance()), (goals, by_chance())


@pytest.mark.parametrize("evict", ["lru", "visits"])
def test_a_full_graph_goes_on_learning(evict: Any) -> None:
    """Room for 9 of the 13 cells: what is new must stay long enough to lead somewhere."""
    algo = replace(PRESETS["gbmr"], graph=replace(PRESETS["gbmr"].graph, capacity=10, evict=evict))
    algo = replace(algo, abstract=replace(algo.abstract, nodes=8))
    state, _ = trained(algo, ITERATIONS, seeds=SEEDS)
    goals = goals_of(algo)
    assert np.all(np.asarray(state.members.algo.view.memory.evictions) > 0)
    assert np.all(goals > 2 * by_chance()), (goals, by_chance())


@pytest.mark.parametrize("preset", ["gqsi", "gqil"])
def test_eviction_by_score_follows_the_abstraction(preset: str) -> None:
    """Neither score depends on values, so that what is kept is the score of the graph as it is now."""
    algo = replace(compact(preset), graph=replace(compact(preset).graph, evict="score"))
    algo = replace(algo, reconstruct=replace(algo.reconstruct, every=1))
    state, _ = trained(algo, 400)
    memory, kept = memory_of(state), jax.tree.map(lambda x: x[0], state.members.algo.reflection)
    want = np.asarray(algo.abstract.score(memory, live(memory), kept.trajectories, None))
    filled = np.asarray(memory.filled)
    np.testing.assert_allclose(np.asarray(memory.score)[filled], want[filled], rtol=1e-6)
    assert np.ptp(want[filled]) > 0 and np.all(np.isinf(np.asarray(memory.score)[~filled]))
    unscored, _ = trained(compact(preset), 400)
    assert np.all(np.isinf(np.asarray(memory_of(unscored).score)))


def test_gradients_reach_encoder_keys_and_values() -> None:
    algo = replace(PRESETS["nec"].small(), write=Write(n=3, drain=3))
    algo = replace(algo, learn=replace(algo.learn, key_rate=0.1, value_rate=0.1))
    still = replace(algo, learn=replace(algo.learn, key_rate=0.0, value_rate=0.0))
    (one, report), (two, _) = trained(algo, 8), trained(still, 8)
    assert float(report.means["grad_norm"].total[0]) > 0
    moved, kept = memory_of(one), memory_of(two)
    assert not np.allclose(moved.values, kept.values) and not np.allclose(moved.keys, kept.keys)
    first = algo.init(MAZE.spec, jax.random.PRNGKey(0)).view.encoder
    trained_ = jax.tree.map(lambda x: x[0], one.members.algo.view.encoder)
    assert not np.allclose(first.layers[0].weight, trained_.layers[0].weight)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"reconstruct": Reconstruct("key_paths"), "memory": "graph"}, "key nodes"),
        ({"abstract": Abstract("gnn"), "memory": "graph"}, "abstract.method"),
        ({"reconstruct": Reconstruct("sweep")}, "algo.memory graph"),
        ({"acting": Act(explore="frontier")}, "algo.memory graph"),
        ({"memory": "graph", "graph": Graph(evict="score")}, "algo.graph.evict score needs scores"),
        ({"memory": "graph", "encoder": Encoder("mlp")}, "encoder.kind"),
        ({"encoder": Encoder("conv")}, "images"),
        ({"collect": Collect(envs=1, length=1, restart=True)}, "restart"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        replace(PRESETS["q"], **change).check(MAZE.spec)


def test_several_agents_are_refused() -> None:
    with pytest.raises(ConfigError, match="single agents"):
        PRESETS["q"].check(TASKS["mpe/simple_spread"].spec)
