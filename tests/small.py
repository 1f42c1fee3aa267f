"""Configs that compile and run in seconds."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from screens import Screens

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.algorithms.episodic import Episodic
from rookery.algorithms.q import Q
from rookery.core.config import leaves
from rookery.core.registry import PRESETS, TASKS
from rookery.nets.encoder import Encoder as ImageEncoder
from rookery.tasks.compiled.maze import Maze
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.compiled.compiler import ONCE
from rookery.training.compiled.program import Program
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Sweep
from rookery.training.state import RunState

# These programs run a few times: compiling them fast matters, running them fast does not.
hasty_jit = partial(jax.jit, compiler_options=ONCE)

SMALL_TASKS: dict[str, Any] = {
    "matrix/climbing": TASKS["matrix/climbing"],
    "maze/static": Maze(height=3, width=3, obstacles=1, limit=3),
    "mpe/simple_spread": Mpe(agents=2, limit=3),
    "screens": Screens(),
}


def reads_images(algo: Any) -> bool:
    """Whether an algorithm has convolutions."""
    kinds = [value for path, value in leaves(algo).items() if path.endswith("encoder.kind")]
    return any(kind in get_args(get_type_hints(ImageEncoder)["kind"])[1:] for kind in kinds)


def smallest(preset: str) -> str:
    """The cheapest of the small tasks that a preset can train on: who shares with those in range needs positions."""
    algo = PRESETS[preset]
    if reads_images(algo):
        return "screens"
    if isinstance(algo, Episodic):  # a memory agent is alone
        return "screens" if algo.encoder.kind in ("conv", "resnet") else "maze/static"
    if isinstance(algo, Q) and algo.remember.kind != "none":
        return "maze/static"
    ranged = isinstance(algo, Q) and algo.share.partners == "range"
    return "mpe/simple_spread" if ranged else "matrix/climbing"


def small_config(
    preset: str,
    task: str = "",
    seeds: tuple[int, ...] = (0,),
    sweep: tuple[Sweep, ...] = (),
    **kwargs: Any,
) -> RunConfig:
    """A run of a shrunken preset on a small task."""
    task = task or smallest(preset)
    evaluation = kwargs.pop("evaluation", Evaluation(points=1, rows=1, episodes=4, final=4))
    checkpoints = kwargs.pop("checkpoints", Checkpoints())
    steps = kwargs.pop("steps", 64)
    algo = kwargs.pop("algo", None) or PRESETS[preset].small()
    assert not kwargs
    return RunConfig(preset, task, algo, SMALL_TASKS[task], steps, seeds, sweep, evaluation, checkpoints)


@cache
def donating_chunk(config: RunConfig, iterations: int) -> Any:
    """A compiled chunk that uses up its state; shared by the tests of a process."""
    return hasty_jit(partial(Program(config).chunk, iterations=iterations), donate_argnums=0)


def chunk_of(config: RunConfig, iterations: int) -> Any:
    """The same chunk, on a copy of its state."""
    return lambda state: donating_chunk(config, iterations)(copied(state))


@cache
def evaluate_of(config: RunConfig) -> Any:
    """A compiled evaluation, shared by the tests of a process."""
    return hasty_jit(Program(config).evaluate)


@cache
def policies_of(config: RunConfig) -> Any:
    """What acting needs of a state, compiled; shared by the tests of a process."""
    return hasty_jit(Program(config).policies)


@hasty_jit
def copied(tree: Any) -> Any:
    """A copy of all arrays by one program: copied one by one, every shape would compile its own."""
    return jax.tree.map(jnp.copy, tree)


def rows_of(tree: Any, rows: Any) -> Any:
    """`x[rows]` of all arrays, on the host: there, no shape compiles a program of its own."""
    return jax.tree.map(lambda x: np.asarray(x)[rows], tree)


@cache
def init_of(config: RunConfig) -> RunState:
    """A fresh state, shared by the tests of a process."""
    return hasty_jit(Program(config).init)()


def assert_same(a: Any, b: Any) -> None:
    """Bit for bit equal pytrees."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), (_, y) in zip(*(jax.tree_util.tree_leaves_with_path(t) for t in (a, b)), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=jax.tree_util.keystr(path))


def assert_close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    """Equal pytrees up to rounding."""
    for (path, x), (_, y) in zip(*(jax.tree_util.tree_leaves_with_path(t) for t in (a, b)), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance, err_msg=name)


def differs(a: Any, b: Any) -> bool:
    """Whether any leaf differs."""
    return any(not np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
