"""Pictures of what a run has learned: which ones there are follows from its algorithm and its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rookery.core.errors import ConfigError, RunError
from rookery.training.config import RunConfig
from rookery.training.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rookery.studies.pictures.moment import Moment


class Picture(NamedTuple):
    """One kind of picture."""

    name: str
    caption: str
    draw: Callable[[Moment], Figure]


def picture_of(config: RunConfig) -> Picture | None:
    """What can be drawn of a run; None if nothing can."""
    from rookery.algorithms.episodic import Episodic
    from rookery.algorithms.ppo import PPO
    from rookery.studies.pictures import hyper, memory
    from rookery.tasks.compiled.maze import Maze

    if isinstance(config.algo, Episodic):
        if isinstance(config.task, Maze):
            return Picture("memory", "The memory on the map, and what a greedy episode read", memory.maze_figure)
        return Picture(
            "memory", "The memory's keys in two dimensions (PCA), colored by value", memory.projection_figure
        )
    if isinstance(config.algo, PPO) and config.algo.hyper.changes:
        return Picture("hyper", "Size of the increments, and attention over agents", hyper.hyper_figure)
    return None


def draw(folder: RunFolder, step: str = "last", member: int = 0, *, again: bool = False) -> tuple[Picture, Figure, int]:
    """The picture of a run's member at a step, and which step that is."""
    import matplotlib

    from rookery.studies.pictures import moment
    from rookery.studies.plots import STYLE
    from rookery.training.run import Run

    run = Run(folder)
    picture = picture_of(run.config)
    if picture is None:
        raise RunError(
            f"{folder.path} has nothing to draw: there are pictures of memories (q, nec, gbmr, ...) and of "
            f"hypernetworks (hyper_mappo, ...), and this is {run.config.preset} on {run.config.task_name}."
        )
    with closing(run.engine), matplotlib.rc_context(STYLE):
        now = moment.at(run, step, member, again=again)
        return picture, picture.draw(now), now.steps


def save(folder: RunFolder, to: Path, step: str = "last", member: int = 0, *, again: bool = False) -> Path:
    """Write the picture of a run as TO/<run>-<picture>-<member>-<step>.png."""
    import matplotlib

    from rookery.studies.plots import STYLE
    from rookery.training.folder import writing

    picture, figure, steps = draw(folder, step, member, again=again)
    which = step if step in ("last", "best") else str(steps)
    file = to / f"{folder.name}-{picture.name}-{member}-{which}.png"
    with writing(file), matplotlib.rc_context(STYLE):
        to.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=150)
    return file


def of_groups(groups: list[tuple[str, str, RunFolder, int]]) -> Iterator[tuple[str, str, Figure | str]]:
    """Name, caption and figure (or why there is none) of the complete runs that have a picture, from (label, task,
    folder, member)."""
    from rookery.training.run import Run

    for number, (label, task, folder, member) in enumerate(groups):
        if not folder.policies.exists():
            continue
        try:
            if picture_of(Run(folder).config) is None:
                continue
            picture, figure, _ = draw(folder, "last", member)
        except (RunError, ConfigError) as error:
            yield "", "", f"No picture of {label} on {task}: {error}"
            continue
        yield f"{picture.name}-{number + 1}", f"{label} on {task}: {picture.caption}.", figure
