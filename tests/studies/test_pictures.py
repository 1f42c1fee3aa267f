"""Pictures of runs: what they show is what the run holds, and they are drawn for every kind of run that has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import networkx as nx
import numpy as np
import pytest
from small import assert_same

from rookery.app import cli
from rookery.core.errors import RunError
from rookery.core.registry import PRESETS, TASKS
from rookery.mechanisms.encode import Encoder
from rookery.mechanisms.gnn import Gnn
from rookery.memory.graph import live
from rookery.studies import report, results
from rookery.studies.pictures import draw, hyper, memory, moment, picture_of
from rookery.studies.plan import Compare
from rookery.studies.read import open_runs
from rookery.tasks.compiled.maze import MOVES, Maze, MazeState, layouts
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.config import Evaluation, RunConfig
from rookery.training.run import Run
from rookery.training.train import train

QUICK = Evaluation(points=2, rows=1, episodes=2, final=2)
MAZE = Maze(height=4, width=4, obstacles=2, bump="stay", limit=20)
_gbmr = PRESETS["gbmr"]
GBMR = replace(
    _gbmr,
    graph=replace(_gbmr.graph, capacity=32),
    abstract=replace(_gbmr.abstract, nodes=4),
    reconstruct=replace(_gbmr.reconstruct, length=8),
)
_small = PRESETS["hyper_mappo"].small()
HYPER = replace(_small, hyper=replace(PRESETS["hyper_mappo"].hyper, width=8, features=3))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Small runs, each trained once."""
    out = tmp_path_factory.mktemp("runs")
    configs = {
        "maze": RunConfig("gbmr", "maze/static", GBMR, MAZE, 800, (3, 4), evaluation=QUICK),
        "hyper": RunConfig("hyper_mappo", "mpe/simple_spread", HYPER, Mpe(limit=5), 200, evaluation=QUICK),
        "vdn": RunConfig(
            "vdn", "matrix/climbing", PRESETS["vdn"].small(), TASKS["matrix/climbing"], 32, evaluation=QUICK
        ),
    }
    made: dict[str, Run] = {}

    def run(name: str) -> Run:
        if name not in made:
            made[name] = train(configs[name], out)
        return made[name]

    return run


def test_nodes_stand_where_the_agent_was(runs: Callable[[str], Run]) -> None:
    now = moment.at(runs("maze"), "last", 1)
    nodes, state = memory.nodes_of(now), now.policy.memory
    cell, layout = memory.cells_of(MAZE, now.algo.encoder, now.policy.encoder, nodes.key)
    np.testing.assert_allclose(nodes.key, cell / 3, atol=1e-6)
    assert (layout == 0).all() and len(cell) == int(state.nodes) > 5
    walls, (goal,) = layouts(MAZE)
    assert not walls[0][tuple(cell.T)].any()
    # Edges are moves: one cell on, or none where the way is blocked; to the terminal node from beside the goal only.
    assert len(nodes.edges) == int(state.edge_count)
    for a, b, action in nodes.edges:
        wanted = cell[a] + MOVES[action]
        assert (wanted == goal).all() if b < 0 else (cell[b] == wanted).all() or (cell[b] == cell[a]).all()


def test_paths_are_the_shortest_between_key_nodes(runs: Callable[[str], Run]) -> None:
    nodes = memory.nodes_of(moment.at(runs("maze"), "last", 1))
    assert 0 < len(nodes.key_nodes) <= 4 and nodes.paths
    leads = {(a, b): action for a, b, action in nodes.edges}
    graph, found = nx.DiGraph(list(leads)), set()
    for path in nodes.paths:
        assert path[0, 0] in nodes.key_nodes
        for (a, _), (b, _) in pairwise(path):
            assert graph.has_edge(a, b)
        last, action = path[-1]
        found |= {(path[0, 0], b, len(path)) for a, b, taken in nodes.edges if (a, taken) == (last, action)}
    for source in nodes.key_nodes:
        lengths = nx.single_source_shortest_path_length(graph, source)
        wanted = {(source, b, lengths[b]) for b in (*nodes.key_nodes, -1) if 0 < lengths.get(b, 0) <= 8}
        assert wanted <= found


def test_key_nodes_of_a_trained_network_are_its_own(runs: Callable[[str], Run]) -> None:
    """Without the network, which a policy has not, there are none: other nodes would be shown."""
    now = moment.at(runs("maze"), "last", 1)
    algo, table = replace(GBMR, abstract=replace(GBMR.abstract, gnn=Gnn(steps=1, dim=4))), now.policy.memory
    state = algo.init(MAZE.spec, jax.random.PRNGKey(0))
    shown = memory.key_nodes(algo, table, replace(now, state=state))
    chosen = np.asarray(algo.abstract.key_nodes(table, live(table), None, state.reflection.gnn))
    np.testing.assert_array_equal(shown, chosen[chosen >= 0])
    assert shown.tolist() != memory.key_nodes(GBMR, table, now).tolist()
    assert len(memory.key_nodes(algo, table, now)) == 0


def test_what_is_read_is_what_acting_reads(runs: Callable[[str], Run]) -> None:
    now = moment.at(runs("maze"), "last", 1)
    nodes = memory.nodes_of(now)
    seen = memory.played(now, nodes)
    assert seen.step.first[0] and seen.step.last[-1]
    there = seen.read[:, 0] >= 0
    assert there[0]
    np.testing.assert_allclose(nodes.key[seen.read[there, 0]], seen.query[there], atol=1e-4)
    best = np.max(np.where(seen.known, seen.q, -np.inf), axis=1)[there]
    np.testing.assert_allclose(best, nodes.value[seen.read[there, 0]], rtol=1e-6)


def test_cells_are_found_through_any_encoder() -> None:
    maze, encoder = replace(MAZE, observation="image"), Encoder("random", dim=16)
    params, cells = encoder.init(maze.spec, jax.random.PRNGKey(0)), np.argwhere(np.ones((4, 4)))
    obs = jnp.stack([maze.observe(MazeState(jnp.asarray(c), jnp.int32(0), jnp.int32(0))) for c in cells])
    found, _ = memory.cells_of(maze, encoder, params, np.asarray(encoder(maze.spec, params, obs[:, None])))
    np.testing.assert_array_equal(found, cells)


def test_projections_keep_the_main_directions() -> None:
    rng = np.random.default_rng(0)
    plane, basis = rng.normal(size=(50, 2)) * (3.0, 1.0), np.linalg.qr(rng.normal(size=(6, 2)))[0]
    mean, directions, share = memory.project(plane @ basis.T + 5.0)
    flat = (plane @ basis.T + 5.0 - mean) @ directions
    apart = lambda x: np.linalg.norm(x[:, None] - x[None], axis=-1)  # noqa: E731
    np.testing.assert_allclose(apart(flat), apart(plane), atol=1e-9)
    assert share.sum() == pytest.approx(1) and share[0] > share[1]
    # A memory of one entry has no directions.
    assert np.isfinite(memory.project(np.ones((1, 6)))[1]).all()


def test_a_few_far_keys_do_not_decide_the_projection() -> None:
    """The first rows of a game, whose stacks are half empty, lie far from all others."""
    rng = np.random.default_rng(0)
    key = rng.normal(size=(200, 6)) * (3.0, 2.0, 0.1, 0.1, 0.1, 0.1)
    far = np.concatenate([key, key[:4] + np.array([0, 0, 0, 0, 40.0, 0])])
    assert not memory.common(far)[-4:].any() and memory.common(far)[:-4].mean() > 0.9
    _, directions, share = memory.project(far)
    assert np.abs(directions[4]).max() < 0.1 and share.sum() > 0.95


def test_frames_are_shown_of_key_nodes_and_of_others() -> None:
    """Six nodes that were read one after the other; nodes 1 and 4 are key nodes."""
    none = np.zeros((0, 3), int)
    nodes = memory.Nodes(np.arange(6), np.zeros((6, 2)), np.zeros(6), np.ones(6, int), none, np.array([1, 4]), ())
    _, step = jax.vmap(MAZE.reset)(jax.random.split(jax.random.PRNGKey(0), 6))
    one = np.ones((6, 1))
    seen = memory.Played(step, one, np.arange(6)[:, None], one, one, one > 0)
    assert memory.pictured(nodes, seen, 4) == [(0, 0), (1, 1), (4, 4), (5, 5)]
    assert memory.pictured(nodes, seen, 2) == [(1, 1), (4, 4)]


def test_increments_are_those_that_training_logs(runs: Callable[[str], Run]) -> None:
    now = moment.at(runs("hyper"))
    looks = hyper.looks_of(now)
    assert looks.size.shape == (6, 3) and looks.attention is not None
    np.testing.assert_allclose(looks.attention.sum(axis=1), 1, rtol=1e-5)
    logged = now.run.metrics()["hyper/increment/agent_0"].to_numpy()
    assert 0 < looks.size.max() < 10 * logged.max()


@pytest.mark.parametrize(("name", "kind"), [("maze", "memory"), ("hyper", "hyper")])
def test_the_command_draws(
    runs: Callable[[str], Run], name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs(name)
    assert cli.main(["picture", str(run.folder.path), "--to", str(tmp_path)]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file == tmp_path / f"{run.folder.name}-{kind}-0-last.png"
    pixels = matplotlib.image.imread(file)[..., :3]
    assert pixels.std() > 0.05 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_training_again_gives_the_state_of_a_step(runs: Callable[[str], Run]) -> None:
    run = runs("maze")
    whole, last = moment.at(run, str(run.config.steps), 1, again=True), moment.at(run, "last", 1)
    assert whole.steps == last.steps and whole.state is not None
    assert_same(whole.policy, last.policy)
    half = moment.at(run, "400", 1, again=True)
    assert 400 <= half.steps < last.steps
    assert int(half.policy.memory.nodes) <= int(last.policy.memory.nodes)


def test_what_cannot_be_drawn_says_why(runs: Callable[[str], Run]) -> None:
    maze, vdn = runs("maze"), runs("vdn")
    assert picture_of(vdn.config) is None
    with pytest.raises(RunError, match="nothing to draw"):
        draw(vdn.folder)
    with pytest.raises(RunError, match=r"keeps no policy of step 17; it has \d+ \(last\).*--again"):
        draw(maze.folder, "17")
    with pytest.raises(RunError, match="last, best or a number"):
        draw(maze.folder, "newest")
    with pytest.raises(RunError, match="no member 2"):
        draw(maze.folder, "last", 2)
    with pytest.raises(RunError, match="beyond"):
        draw(maze.folder, "100000", again=True)


def test_reports_have_a_picture_of_each_group(runs: Callable[[str], Run], tmp_path: Path) -> None:
    folders = [runs(name).folder for name in ("maze", "vdn", "hyper")]
    written = report.write(results.collect(open_runs(folders), Compare(resamples=50), {}), "three", tmp_path)
    page = written.page.read_text()
    assert "gbmr on maze/static" in page and "hyper_mappo on mpe/simple_spread" in page
    names = {file.stem for file in (written.folder / "figures").glob("*.png")}
    assert {"memory-1", "hyper-3"} <= names and not names & {"memory-2", "hyper-2"}
    assert not [text for text in written.warnings if "picture" in text]
