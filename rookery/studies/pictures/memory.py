"""Pictures of memories: on the map of a maze, or as a projection of their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

from rookery.algorithms.episodic import Episodic, View
from rookery.core.types import Carry, Step
from rookery.mechanisms.encode import Encoder
from rookery.memory.dictionary import DictionaryState
from rookery.memory.graph import TERMINAL, GraphState, alive, live
from rookery.ops import graph as ops
from rookery.studies.pictures.moment import Moment, episode
from rookery.tasks.compiled.maze import MOVES, Maze, MazeState, layouts
from rookery.training.compiled.compiler import jit

_MAP = "viridis"
_KEY, _PATH, _EDGE, _PLAYED = "#d62728", "#ff7f0e", "#8a8a8a", "#1f77b4"
_EDGES, _THUMBNAILS = 3000, 8
_ARROWS = ("up", "down", "left", "right")


@dataclass(frozen=True)
class Nodes:
    """What a memory holds, node by node (or entry by entry), in numpy."""

    slot: Int[np.ndarray, "node"]
    """Where each is in the memory; of dictionaries, table * capacity + slot."""
    key: Float[np.ndarray, "node dim"]
    value: Float[np.ndarray, "node"]
    """The best known action value; nan where none is known."""
    visits: Int[np.ndarray, "node"]
    edges: Int[np.ndarray, "edge 3"]
    """From, to (-1: the terminal node) and action; empty for dictionaries."""
    key_nodes: Int[np.ndarray, "key"]
    paths: tuple[Int[np.ndarray, "length 2"], ...]
    """Reconstructed ones: nodes and the actions taken there, in order."""

    def at(self, slots: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """The nodes in these slots; -1 where there is none."""
        where = np.full(max(self.slot.max(initial=0), np.max(slots, initial=0)) + 1, -1)
        where[self.slot] = np.arange(len(self.slot))
        return np.where(np.asarray(slots) >= 0, where[slots], -1)


def nodes_of(moment: Moment) -> Nodes:
    """The nodes of a moment's memory, with its key nodes and the paths that reconstruction goes along."""
    algo, view = moment.algo, moment.policy
    assert isinstance(algo, Episodic) and isinstance(view, View)
    memory = view.memory
    if isinstance(memory, DictionaryState):
        return _entries(memory)
    edges = live(memory)
    chosen = key_nodes(algo, memory, moment)
    slot = np.flatnonzero(np.asarray(memory.filled))
    known, q = np.asarray(memory.known)[slot], np.asarray(memory.q)[slot]
    value = np.where(known.any(axis=1), np.max(np.where(known, q, -np.inf), axis=1), np.nan)
    plain = Nodes(
        slot, np.asarray(memory.keys)[slot], value, np.asarray(memory.visits)[slot], np.zeros((0, 3), int), chosen, ()
    )
    next, action = np.asarray(edges.next)[slot], np.asarray(edges.action)[slot]
    from_, column = np.nonzero(next >= 0)
    to = np.where(next[from_, column] == TERMINAL, -1, plain.at(next[from_, column]))
    found = np.stack([from_, to, action[from_, column]], axis=1)
    rows = plain.at(chosen)
    paths = tuple(_row_path(plain, edges, path) for path in paths_of(algo, memory, chosen, moment))
    return Nodes(slot, plain.key, value, plain.visits, found, rows[rows >= 0], paths)


def _entries(memory: DictionaryState) -> Nodes:
    """The entries of all tables, one after the other."""
    capacity = memory.norms.shape[1]
    table, slot = np.nonzero(np.isfinite(np.asarray(memory.norms)))
    values, visits = np.asarray(memory.values)[table, slot], np.asarray(memory.visits)[table, slot]
    best = np.max(np.where(visits > 0, values, -np.inf), axis=1, initial=-np.inf)
    none = np.zeros((0, 3), int)
    return Nodes(
        slot=table * capacity + slot,
        key=np.asarray(memory.keys)[table, slot],
        value=np.where(np.isfinite(best), best, np.nan),
        visits=visits.sum(axis=1),
        edges=none,
        key_nodes=none[:, 0],
        paths=(),
    )


def key_nodes(algo: Episodic, memory: GraphState, moment: Moment) -> Int[np.ndarray, "key"]:
    """Slots of the key nodes of a graph; none where nobody chooses them, or what chooses them was not kept."""
    reflection = None if moment.state is None else moment.state.reflection
    if algo.abstract.method == "none" or (algo.abstract.remembers and reflection is None):
        return np.zeros(0, int)
    about = (None, None) if reflection is None else (reflection.trajectories, reflection.gnn)
    chosen = np.asarray(jit(lambda m, t, g: algo.abstract.key_nodes(m, live(m), t, g))(memory, *about))
    return chosen[chosen >= 0]


def paths_of(
    algo: Episodic, memory: GraphState, chosen: Int[np.ndarray, "key"], moment: Moment
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(node, slot of its edge) along the paths between key nodes (or from the start) and to the terminal node."""
    method = algo.reconstruct.method
    if method not in ("key_paths", "from_start") or not len(chosen):
        return []
    sources = chosen
    if method == "from_start":
        if moment.state is None:
            return []
        start = moment.state.reflection.start
        sources = np.asarray(start.node)[np.asarray(alive(memory, start))]
    targets, length = jnp.asarray([TERMINAL, *chosen]), algo.reconstruct.length

    def all_paths(memory: GraphState, sources: Array) -> tuple[Array, Array]:
        next = live(memory).next
        distance = ops.distances_to(next, targets, length)
        each = jax.vmap(lambda d, s: ops.walk(next, d, s, length), (None, 0))
        return jax.vmap(each, (0, None))(distance, sources)

    node, slot = (np.asarray(x).reshape(-1, length) for x in jit(all_paths)(memory, jnp.asarray(sources)))
    return [(n[n >= 0], s[n >= 0]) for n, s in zip(node, slot, strict=True) if (n >= 0).any()]


def _row_path(nodes: Nodes, edges: ops.Edges, path: tuple[np.ndarray, np.ndarray]) -> Int[np.ndarray, "length 2"]:
    node, slot = path
    return np.stack([nodes.at(node), np.asarray(edges.action)[node, slot]], axis=1)


# --- what an action read


@dataclass(frozen=True)
class Played:
    """A greedy episode, and what was read in it."""

    step: Step
    """Rows [time, ...]"""
    query: Float[np.ndarray, "time dim"]
    read: Int[np.ndarray, "time k"]
    """Nodes that were read at each row, -1 where there are fewer."""
    weight: Float[np.ndarray, "time k"]
    """How much each counts, in all 1."""
    q: Float[np.ndarray, "time action"]
    known: np.ndarray


def played(moment: Moment, nodes: Nodes) -> Played:
    """A greedy episode with what it read."""
    algo, view, spec = moment.algo, moment.policy, moment.config.task.spec
    config = algo.graph if isinstance(view.memory, GraphState) else algo.dictionary

    def read(carry: Carry, step: Step, key: Array) -> Any:
        carry, action, _ = algo.act(spec, view, carry, step, moment.clock, key, greedy=True)
        query = algo.encoder(spec, view.encoder, step.obs)
        found = config.read(view.memory, query)
        index, distance = found.index, found.distance
        if index.ndim == 3:  # [table, env, k]
            index = index + jnp.arange(index.shape[0])[:, None, None] * view.memory.norms.shape[1]
            index, distance = (jnp.moveaxis(x, 1, 0).reshape(x.shape[1], -1) for x in (index, distance))
        return carry, action, (query, index, distance, found.q, found.known)

    step, (query, index, distance, q, known) = episode(moment, read)
    within = distance <= config.reach**2 if config.reach else np.isfinite(distance)
    weight = np.where(within, 1.0 / (np.where(within, distance, 0.0) + config.delta), 0.0)
    weight = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    return Played(step, query, np.where(within, nodes.at(index), -1), weight, q, known)


# --- on the map of a maze


def cells_of(
    maze: Maze, encoder: Encoder, params: Any, key: Float[np.ndarray, "node dim"]
) -> tuple[Int[np.ndarray, "node 2"], Int[np.ndarray, "node"]]:
    """The (row, column) and the layout whose observation has the key nearest to each node's."""
    walls, _ = layouts(maze)
    where = np.argwhere(np.ones_like(walls))

    def keys(layout: Array, cell: Array) -> Array:
        obs = jax.vmap(lambda c, x: maze.observe(MazeState(c, x, jnp.int32(0))))(cell, layout)
        return encoder(maze.spec, params, obs[:, None])

    known = np.asarray(jit(keys)(jnp.asarray(where[:, 0]), jnp.asarray(where[:, 1:], jnp.int32)))
    distance = np.sum(known**2, axis=1) - 2.0 * key @ known.T
    nearest = where[np.argmin(distance, axis=1)] if len(key) else where[:0]
    return nearest[:, 1:], nearest[:, 0]


def maze_figure(moment: Moment) -> Figure:
    """The memory on the map, and what the greedy policy read in one of its episodes."""
    maze, nodes = moment.config.task, nodes_of(moment)
    assert isinstance(maze, Maze)
    cell, layout = cells_of(maze, moment.algo.encoder, moment.policy.encoder, nodes.key)
    shown = int(np.bincount(layout).argmax()) if len(layout) else 0
    here, place = layout == shown, cell[:, ::-1].astype(float)  # (x, y)
    figure = Figure(figsize=(12.5, 5.6))
    grid = figure.add_gridspec(2, 4, width_ratios=(1, 0.04, 1, 0.4))
    map_, scale, reads, bars = (figure.add_subplot(at) for at in (grid[:, 0], grid[:, 1], grid[:, 2], grid[0, 3]))
    for axis in (map_, reads):
        _draw_map(axis, maze, shown)
    _draw_graph(map_, nodes, place, here)
    points = _points(map_, nodes, place, here)
    figure.colorbar(points, cax=scale, label="value: best known action value")
    map_.set_title(_counts(moment, nodes))
    seen = played(moment, nodes)
    path, _ = cells_of(maze, moment.algo.encoder, moment.policy.encoder, seen.query)
    row = len(path) // 2
    _draw_reads(reads, nodes, place, path[:, ::-1].astype(float), seen, row)
    reads.set_title(
        f"a greedy episode: {len(path) - 1} steps, {'goal reached' if seen.step.success[-1] else 'no goal'}"
    )
    _bars(bars, seen, row, _ARROWS)
    _legend(figure.add_subplot(grid[1, 3]), moment, nodes)
    several = f"; layout {shown + 1} of {len(layouts(maze)[1])}" if maze.dynamics != "static" else ""
    figure.suptitle(moment.title + several)
    return figure


def _draw_map(axis: Axes, maze: Maze, layout: int) -> None:
    walls, goals = layouts(maze)
    axis.imshow(walls[layout], cmap="Greys", vmin=0, vmax=1.6, zorder=0)
    axis.set_xticks(np.arange(maze.width + 1) - 0.5, labels=[])
    axis.set_yticks(np.arange(maze.height + 1) - 0.5, labels=[])
    axis.tick_params(length=0)
    axis.grid(visible=True, color="#dddddd", linewidth=0.6)
    axis.spines[:].set_visible(True)
    row, column = goals[layout]
    axis.plot(column, row, "*", color="#e6b800", markersize=17, markeredgecolor="black", zorder=6)
    if maze.start == "corner":
        axis.text(0, 0, "S", ha="center", va="center", fontsize=8, fontweight="bold", zorder=7, color="#444444")


def _ends(nodes: Nodes, place: np.ndarray) -> np.ndarray:
    """Where each edge ends [edge, 2]; those to the terminal node at the cell that the action leads to."""
    from_, to, action = nodes.edges.T
    return np.where((to >= 0)[:, None], place[to], place[from_] + MOVES[action][:, ::-1])


def _draw_graph(axis: Axes, nodes: Nodes, place: np.ndarray, here: np.ndarray) -> None:
    """Edges, paths and key nodes."""
    if len(nodes.edges):
        # An edge to another layout is a change of the layout, not a move.
        known = here[nodes.edges[:, 0]] & ((nodes.edges[:, 1] < 0) | here[nodes.edges[:, 1]])
        lines = np.stack([place[nodes.edges[:, 0]], _ends(nodes, place)], axis=1)[known][:_EDGES]
        axis.add_collection(LineCollection(list(lines), colors=_EDGE, linewidths=0.8, alpha=0.6, zorder=2))
    for path in nodes.paths:
        if here[path[:, 0]].all():
            last, action = path[-1]
            end = place[last] + MOVES[action][::-1]
            line = np.concatenate([place[path[:, 0]], end[None]])
            axis.plot(*line.T, color=_PATH, linewidth=2.5, alpha=0.5, zorder=3, solid_capstyle="round")
    chosen = nodes.key_nodes[here[nodes.key_nodes]]
    axis.scatter(*place[chosen].T, s=210, facecolors="none", edgecolors=_KEY, linewidths=1.8, zorder=5)


def _points(axis: Axes, nodes: Nodes, place: np.ndarray, here: np.ndarray) -> Any:
    """Nodes, colored by their values; hollow where none is known."""
    known = here & np.isfinite(nodes.value)
    unknown = here & ~np.isfinite(nodes.value)
    axis.scatter(*place[unknown].T, s=45, facecolors="white", edgecolors="#666666", linewidths=0.8, zorder=4)
    return axis.scatter(
        *place[known].T, s=75, c=nodes.value[known], cmap=_MAP, edgecolors="black", linewidths=0.4, zorder=4
    )


def _draw_reads(
    axis: Axes, nodes: Nodes, place: np.ndarray, path: np.ndarray, seen: Played, row: int, size: float = 75
) -> None:
    """An episode, and lines from one of its rows to the nodes that were read there."""
    long = len(path) > 60  # a thick line would hide the nodes
    axis.plot(*path.T, "-", color=_PLAYED, linewidth=0.6 if long else 2, alpha=0.5 if long else 0.7, zorder=3)
    there = seen.read[row] >= 0
    index, weight = seen.read[row][there], seen.weight[row][there]
    share = weight / weight.max(initial=1e-12)
    for i, w in zip(index, share, strict=True):
        axis.plot(
            *np.stack([path[row], place[i]]).T, color=_KEY, linewidth=0.3 + 2.5 * w, alpha=0.1 + 0.8 * w, zorder=4
        )
    axis.scatter(*place[index].T, s=size * (0.15 + 0.85 * share), color=_KEY, edgecolors="none", zorder=5)
    axis.plot(*path[row], "o", color="none", markeredgecolor=_PLAYED, markersize=14, markeredgewidth=2.2, zorder=6)


def _bars(axis: Axes, seen: Played, row: int, names: tuple[str, ...]) -> None:
    """Action values that were read at a row."""
    q, known = seen.q[row], seen.known[row]
    best = known & (q == np.max(np.where(known, q, -np.inf), initial=-np.inf))
    axis.bar(range(len(q)), np.where(known, q, 0.0), color=np.where(best, _PLAYED, "#b8cbe0"))
    for i in np.flatnonzero(~known):
        axis.text(float(i), 0, "?", ha="center", va="bottom", color="#888888")
    axis.set_xticks(range(len(q)), names if len(names) == len(q) else map(str, range(len(q))), fontsize=7)
    axis.set_title(f"read at step {row} (circled)", fontsize=9)
    axis.set_ylabel("action value")


def _counts(moment: Moment, nodes: Nodes) -> str:
    what = "nodes" if isinstance(moment.policy.memory, GraphState) else "entries"
    parts = [f"{len(nodes.slot):,} {what}"]
    parts += [f"{len(nodes.edges):,} edges"] if len(nodes.edges) else []
    parts += [f"{len(nodes.key_nodes)} key nodes"] if len(nodes.key_nodes) else []
    parts += [f"{len(nodes.paths)} paths"] if nodes.paths else []
    return ", ".join(parts)


def _legend(axis: Axes, moment: Moment, nodes: Nodes) -> None:
    """What is what, in a panel without axes."""
    axis.axis("off")
    marks = [Line2D([], [], marker="o", linestyle="", color="#35b779", markeredgecolor="black", label="node")]
    if np.isnan(nodes.value).any():
        marks.append(
            Line2D([], [], marker="o", linestyle="", color="white", markeredgecolor="#666666", label="no value")
        )
    if len(nodes.edges):
        marks.append(Line2D([], [], color=_EDGE, label="edge"))
    if len(nodes.key_nodes):
        ring = {"marker": "o", "linestyle": "", "markerfacecolor": "none", "markersize": 11}
        marks.append(Line2D([], [], **ring, markeredgecolor=_KEY, markeredgewidth=1.8, label="key node"))
    if nodes.paths:
        marks.append(Line2D([], [], color=_PATH, linewidth=2.5, alpha=0.6, label="reconstructed path"))
    if isinstance(moment.config.task, Maze):
        marks.append(Line2D([], [], marker="*", linestyle="", color="#e6b800", markeredgecolor="black", label="goal"))
    marks.append(Line2D([], [], color=_PLAYED, linewidth=2, label="greedy episode"))
    marks.append(Line2D([], [], color=_KEY, linewidth=2, alpha=0.7, label="read, by weight"))
    axis.legend(handles=marks, loc="center", frameon=False, fontsize=8)


# --- as a projection


def common(key: Float[np.ndarray, "node dim"]) -> Bool[np.ndarray, "node"]:
    """The 95% of the keys that are nearest to their median.

    A few that lie far away would decide both directions of a projection, and all others would be one spot: the first
    rows of a game, for example, whose stacks are half empty.
    """
    if not len(key):
        return np.zeros(0, bool)
    distance = np.linalg.norm(key - np.median(key, axis=0), axis=1)
    return distance <= np.quantile(distance, 0.95, method="higher")


def project(key: Float[np.ndarray, "node dim"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of the common keys, their two main directions [dim, 2] (PCA by SVD), and each one's share of the
    variance."""
    key = key[common(key)]
    mean = key.mean(axis=0) if len(key) else np.zeros(key.shape[1])
    _, size, directions = np.linalg.svd(key - mean, full_matrices=False)
    two = np.zeros((key.shape[1], 2))
    count = min(2, len(size))
    two[:, :count] = directions[:count].T
    share = np.zeros(2)
    share[:count] = size[:count] ** 2 / max(float(np.sum(size**2)), 1e-12)
    return mean, two, share


def projection_figure(moment: Moment) -> Figure:
    """The keys projected to a plane, colored by value, with a greedy episode and what it read."""
    nodes, spec = nodes_of(moment), moment.config.task.spec
    mean, directions, share = project(nodes.key)
    flat = (nodes.key - mean) @ directions
    seen = played(moment, nodes)
    inner = flat[common(nodes.key)] if len(flat) else np.zeros((1, 2))
    margin = 0.25 * np.ptp(inner, axis=0) + 1e-9
    low, high = inner.min(axis=0) - margin, inner.max(axis=0) + margin
    place, path = np.clip(flat, low, high), np.clip((seen.query - mean) @ directions, low, high)
    outside = int(np.sum(np.any(flat != place, axis=1)))
    figure = Figure(figsize=(11.5, 6.2))
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 0.26))
    axis, bars = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    if len(nodes.edges):
        between = nodes.edges[nodes.edges[:, 1] >= 0][:_EDGES]
        lines = np.stack([place[between[:, 0]], place[between[:, 1]]], axis=1)
        axis.add_collection(LineCollection(list(lines), colors=_EDGE, linewidths=0.4, alpha=0.35, zorder=1))
    for way in nodes.paths:
        axis.plot(*place[way[:, 0]].T, color=_PATH, linewidth=1.8, alpha=0.4, zorder=2)
    known = np.isfinite(nodes.value)
    size = 12 + 40 * np.sqrt(nodes.visits / max(nodes.visits.max(initial=1), 1))
    axis.scatter(*place[~known].T, s=size[~known], facecolors="none", edgecolors="#999999", linewidths=0.6, zorder=2)
    points = axis.scatter(
        *place[known].T, s=size[known], c=nodes.value[known], cmap=_MAP, linewidths=0, alpha=0.85, zorder=3
    )
    figure.colorbar(points, ax=axis, label="value: best known action value", shrink=0.85)
    axis.scatter(*place[nodes.key_nodes].T, s=130, facecolors="none", edgecolors=_KEY, linewidths=1.5, zorder=5)
    row = len(path) // 2
    _draw_reads(axis, nodes, place, path, seen, row, size=30)
    cut = f"; {outside:,} far nodes are drawn at the edges" if outside else ""
    axis.set_xlabel(f"first main direction of the keys ({share[0]:.0%} of their variance{cut})")
    axis.set_ylabel(f"second main direction ({share[1]:.0%})")
    axis.set_title(f"{_counts(moment, nodes)}; area: visits; a greedy episode of {len(path) - 1} steps", fontsize=9)
    if len(spec.obs_shape) == 3:
        _thumbnails(axis, nodes, place, seen)
    _bars(bars, seen, row, ())
    bars.set_xlabel("action")
    _legend(figure.add_subplot(grid[1, 1]), moment, nodes)
    figure.suptitle(moment.title)
    return figure


def pictured(nodes: Nodes, seen: Played, count: int = _THUMBNAILS) -> list[tuple[int, int]]:
    """Pairs (node, row of the episode): key nodes that the episode read, and so many of the other nodes it read.

    A memory keeps no frames; a node's frame is that of the row whose reading weighed the node most.
    """
    best: dict[int, tuple[float, int]] = {}
    for row in range(len(seen.read)):
        k = int(np.argmax(seen.weight[row]))
        node, weight = int(seen.read[row, k]), float(seen.weight[row, k])
        if node >= 0 and weight > best.get(node, (0.0, 0))[0]:
            best[node] = (weight, row)
    keys = _evenly([node for node in best if node in nodes.key_nodes], count)
    others = _evenly([node for node in best if node not in nodes.key_nodes], count - len(keys))
    return [(node, best[node][1]) for node in sorted(keys + others, key=lambda node: best[node][1])]


def _evenly(items: list[int], count: int) -> list[int]:
    """So many of these, evenly spaced."""
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int))]


def _thumbnails(axis: Axes, nodes: Nodes, place: np.ndarray, seen: Played) -> None:
    """Frames of nodes above and below the plane, each tied to its node."""
    pairs = sorted(pictured(nodes, seen), key=lambda pair: -place[pair[0], 1])
    half = -(-len(pairs) // 2)
    for y, group in ((0.91, pairs[:half]), (0.09, pairs[half:])):
        for i, (node, row) in enumerate(sorted(group, key=lambda pair: place[pair[0], 0])):
            image = OffsetImage(
                frame(np.asarray(seen.step.obs[row, 0])), zoom=46 / seen.step.obs.shape[-2], cmap="gray"
            )
            box = AnnotationBbox(
                image,
                tuple(place[node]),
                xybox=((i + 0.5) / len(group), y),
                boxcoords="axes fraction",
                pad=0.1,
                arrowprops={"arrowstyle": "-", "color": "#555555", "linewidth": 0.7},
                zorder=8,
            )
            axis.add_artist(box)
    axis.margins(y=0.3)


def frame(obs: np.ndarray) -> np.ndarray:
    """An observation [height, width, channel] to look at: RGB as it is, the newest of stacked frames, or colors for
    the planes of a grid."""
    channels = obs.shape[-1]
    if channels == 3 and obs.dtype == np.uint8:
        return obs
    if obs.dtype == np.uint8 or channels == 1:
        newest = obs[..., -1].astype(float)
        return (newest - newest.min()) / max(float(np.ptp(newest)), 1e-9)
    colors = matplotlib.colormaps["tab10"](np.arange(channels) % 10)[:, :3]
    planes = (obs > 0)[..., None] * colors
    return np.where((obs > 0).any(axis=-1, keepdims=True), planes.max(axis=-2), 0.08)
