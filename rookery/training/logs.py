"""Logs for other programs, written while a run trains: TensorBoard and Weights & Biases (extras).

The parts in the run's folder are the truth, and a log is a copy of them: whenever a run is started or resumed its log
is made anew from the parts that are there, then goes on with every new one. So it has no gaps and nothing twice.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import polars as pl

from rookery.core.config import label, to_json
from rookery.core.errors import ConfigError
from rookery.training.config import RunConfig
from rookery.training.digest import is_metric
from rookery.training.folder import Kind, RunFolder
from rookery.training.state import MemberInfo, member_infos

_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
Write = Callable[[Kind, pl.DataFrame], None]


@runtime_checkable
class Log(Protocol):
    """Somebody else's log of one run."""

    def write(self, member: int, steps: int, values: Mapping[str, float]) -> None:
        """What was measured of a member after so many steps; steps never fall."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


def require(names: Sequence[str]) -> None:
    """Raise `ConfigError` unless there is a log of each name, and the package that it needs."""
    for name in names:
        if name not in _PACKAGES:
            raise ConfigError(f"--log: expected {' or '.join(_PACKAGES)}, got '{name}'.")
        try:
            importlib.import_module(_PACKAGES[name])
        except ImportError as error:
            raise ConfigError(f"{name} needs an extra: pip install 'rookery[{name}]'.") from error


@contextmanager
def logging(names: Sequence[str], config: RunConfig, folder: RunFolder) -> Iterator[Write]:
    """Logs of these names, brought up to date; what is then written goes to all of them."""
    logs = [_OPEN[name](config, folder) for name in names]

    def write(kind: Kind, frame: pl.DataFrame) -> None:
        for log in logs:
            write_part(log, kind, frame)

    try:
        for log in logs:
            replay(log, folder)
        yield write
    finally:
        for log in logs:
            log.close()


def replay(log: Log, folder: RunFolder) -> None:
    """Write all that a run has measured so far, in the order of training."""
    kinds: tuple[Kind, ...] = ("metrics", "evaluations")
    parts: dict[Kind, dict[str, Path]] = {kind: {part.name: part for part in folder.parts(kind)} for kind in kinds}
    # An evaluation follows the chunk that it is named after.
    for name in sorted({name for group in parts.values() for name in group}):
        for kind, group in parts.items():
            if name in group:
                write_part(log, kind, pl.read_parquet(group[name]))


def write_part(log: Log, kind: Kind, frame: pl.DataFrame) -> None:
    """Write one part: metrics as they are, of an evaluation the mean score of each member."""
    if kind == "evaluations":
        rows = frame.group_by("member", maintain_order=True).agg(
            pl.col("steps").first(), pl.col("score").mean().alias("evaluation/score")
        )
    elif kind == "metrics":
        rows = frame
    else:
        return
    names = [n for n, of in rows.schema.items() if of.is_float() and is_metric(n)]
    for row in rows.iter_rows(named=True):
        values = {name: row[name] for name in names if row[name] is not None and row[name] == row[name]}
        log.write(row["member"], row["steps"], values)


class TensorBoard:
    """One event file for each member, in FOLDER/seed_<seed>."""

    def __init__(self, config: RunConfig, to: Path) -> None:
        require(["tensorboard"])
        from tensorboardX import SummaryWriter

        infos = member_infos(config)
        self._writers: list[Any] = [SummaryWriter(str(to / _name(i, info))) for i, info in enumerate(infos)]
        for writer, info in zip(self._writers, infos, strict=True):
            writer.add_text("label", _label(config, info))

    def write(self, member: int, steps: int, values: Mapping[str, float]) -> None:
        """As scalars, on the disk at once."""
        for name, value in values.items():
            self._writers[member].add_scalar(name, value, steps)
        self._writers[member].flush()

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers:
            writer.close()


class Wandb:
    """One run of Weights & Biases for each member, grouped by run; offline unless WANDB_MODE says otherwise."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        require(["wandb"])
        import wandb

        shutil.rmtree(folder.path / "wandb", ignore_errors=True)
        quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_save_requirements=False)
        self._runs: list[Any] = [
            wandb.init(
                dir=str(folder.path),
                mode=os.environ.get("WANDB_MODE", "offline"),  # pyright: ignore[reportArgumentType]
                project=os.environ.get("WANDB_PROJECT", "rookery"),
                group=folder.name,
                name=f"{_label(config, info)} seed {info.seed}",
                id=f"{folder.id}-{i}",
                resume="allow",
                reinit="create_new",
                config={**to_json(config), "seed": info.seed, **info.values},
                settings=quiet,
            )
            for i, info in enumerate(member_infos(config))
        ]
        self._known = [run.step for run in self._runs]
        """Where a run that is kept online stands: what came before is there."""

    def write(self, member: int, steps: int, values: Mapping[str, float]) -> None:
        """Under the number of steps."""
        if steps >= self._known[member]:
            self._runs[member].log(dict(values), step=steps)

    def close(self) -> None:
        """Finish the runs."""
        for run in self._runs:
            run.finish()


def _open_tensorboard(config: RunConfig, folder: RunFolder) -> Log:
    shutil.rmtree(folder.path / "tensorboard", ignore_errors=True)
    return TensorBoard(config, folder.path / "tensorboard")


_OPEN: dict[str, Callable[[RunConfig, RunFolder], Log]] = {"tensorboard": _open_tensorboard, "wandb": Wandb}


def _name(member: int, info: MemberInfo) -> str:
    return f"seed_{info.seed}" + (f"_member_{member}" if info.values else "")


def _label(config: RunConfig, info: MemberInfo) -> str:
    values = [f"{path.removeprefix('algo.')}={value:g}" for path, value in info.values.items()]
    return " ".join([label(config.preset, config.algo), *values, "on", config.task_name])
