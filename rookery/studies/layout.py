"""Seeds and swept values of a run in one program, or in a process each: whichever was measured to be faster.

Members that are trained together differ in the last bits from members that are trained alone, so a layout is part of
what the runs are. It is measured once, before the first of them begins, kept in OUT/.layouts beside the runs, and used
by every command from then on. A group that was not measured, or was begun together before, stays together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rookery.core import config as configs
from rookery.core.errors import RunError
from rookery.studies.plan import Planned, Study, algorithm_label
from rookery.training.config import RunConfig
from rookery.training.disk import make_folder
from rookery.training.folder import read_json, write_json, writing
from rookery.training.provenance import usable_cores
from rookery.training.state import member_infos

LONG = 20_000_000
"""Steps of a group, all members together, from which on measuring is not asked about: they take minutes on the fastest
of presets, measuring half a minute."""


@dataclass(frozen=True)
class Layout:
    """What was measured of a group of members: steps per second of all processes side by side."""

    together: float
    """With all members in one program."""
    apart: float
    """With one member in each process."""
    cores: int

    @property
    def is_apart(self) -> bool:
        return self.apart > self.together

    def text(self) -> str:
        """For the plan."""
        chosen = "a process for each member" if self.is_apart else "all members in one program"
        return f"{chosen}: {self.together:,.0f} steps/s together, {self.apart:,.0f} apart on {self.cores} cores"


def laid_out(study: Study, out: Path) -> Study:
    """The study with the groups split that were measured to be faster apart."""
    return replace(study, runs=tuple(run for planned in study.runs for run in _runs(planned, out)))


def layouts(study: Study, out: Path) -> dict[str, Layout]:
    """What is known of the groups of a study as its file has them, by what they are."""
    known = {title(planned): known_layout(planned, out) for planned in study.runs}
    return {name: layout for name, layout in known.items() if layout is not None}


def unmeasured(study: Study, out: Path, steps: int = 0) -> list[Planned]:
    """Groups of at least so many steps, all members together, whose layout is still open."""
    return [
        planned
        for planned in study.runs
        if planned.members > 1
        and planned.members * planned.config.steps >= steps
        and not planned.folder(out).path.exists()
        and not known_layout(planned, out)
    ]


def known_layout(planned: Planned, out: Path) -> Layout | None:
    """What was measured of a group; None if nothing was."""
    file = _file(planned, out)
    if not file.exists():
        return None
    try:
        return Layout(**read_json(file))
    except TypeError as error:
        raise RunError(f"{file} is not a layout ({error}). Remove it, and the group is trained together.") from error


def measure(planned: Planned, out: Path, program: Sequence[str], pending: int, seconds: float = 4.0) -> Layout:
    """Measure a group both ways and keep the result.

    Each way is given the machine as the study would give it: `pending` runs (times the members, apart) share the cores.
    """
    cores = usable_cores()
    alone = members_of(planned)[0].config
    arguments = [*program, str(seconds)]
    layout = Layout(
        together=_rate(planned.config, min(pending, cores), cores, arguments),
        apart=_rate(alone, min(pending * planned.members, cores), cores, arguments),
        cores=cores,
    )
    file = _file(planned, out)
    with writing(file):
        make_folder(file.parent)
        write_json(file, asdict(layout))
    return layout


def title(planned: Planned) -> str:
    return f"{planned.label} on {planned.task}, seeds {configs.format_value(planned.config.seeds)}"


def _runs(planned: Planned, out: Path) -> Iterator[Planned]:
    layout = known_layout(planned, out)
    if layout is None or not layout.is_apart or planned.folder(out).path.exists():
        yield planned
    else:
        yield from members_of(planned)


def members_of(planned: Planned) -> list[Planned]:
    """A run for each seed at each of the swept values."""
    runs = []
    for info in member_infos(planned.config):
        alone = replace(planned.config, seeds=(info.seed,), sweep=())
        for path, value in info.values.items():
            alone = configs.set_path(alone, path, value)
        runs.append(replace(planned, label=algorithm_label(alone), config=alone))
    return runs


def _file(planned: Planned, out: Path) -> Path:
    return out / ".layouts" / f"{planned.folder(out).name}.json"


def _rate(config: RunConfig, processes: int, cores: int, arguments: Sequence[str]) -> float:
    """Steps per second of so many processes side by side, all members together."""
    environment = {**os.environ, "NPROC": str(max(1, cores // processes))}
    text = json.dumps(configs.to_json(config))

    def one(_: int) -> float:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise RunError(f"the speed of {config.preset} on {config.task_name} could not be measured: {said[-1]}")
        return float(done.stdout.split()[-1])

    with ThreadPoolExecutor(processes) as pool:
        return sum(pool.map(one, range(processes)))
