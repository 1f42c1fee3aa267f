"""A study file (TOML) and the grid of runs that it means.

name = "credit"                       # default: the file's name
import = ["meet.py"]                  # files of your own, relative to this one, that register tasks or algorithms
tasks = ["smax/3m", { name = "maze/static", height = 8, steps = 200_000 }]
algorithms = ["vdn", { preset = "qmix", mixer.embed = 64 }]
seeds = 5                             # a count, a list, or a list of groups that are trained together
steps = 1_000_000                     # of each seed; a task may have a budget of its own

[[algorithms]]                        # the same list may be written as tables
preset = "mappo"
vary = { "optimiser.lr" = [1e-3, 3e-4] }    # one run for each combination of values
sweep = { "entropy" = [0.0, 0.01] }         # all values in one program, side by side with the seeds
teams = { prey = "runs/mappo__..." }        # other teams: a preset, or a complete run whose best policy plays (RUN@2)

[evaluation]                          # as in a run's config
[checkpoints]
[workers]
[compare]                             # see `Compare`
[scale."smax/3m"]                     # replaces the catalog's random and reference scores
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeGuard

from rookery.core import config as configs
from rookery.core.errors import ConfigError, suggest
from rookery.core.imports import import_files
from rookery.core.registry import PRESETS, find_task, known_task, lookup
from rookery.studies.teams import with_teams
from rookery.training import reads
from rookery.training.check import check
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Sweep, Workers
from rookery.training.folder import RunFolder

View = Literal["auto", "ablation", "algorithms", "screening"]


@dataclass(frozen=True)
class Compare:
    """What a report shows."""

    view: View = "auto"
    """Ablation: one task, settings of one preset. Algorithms: one task. Screening: many tasks. Auto: by the grid."""
    baseline: str = ""
    """Label of the algorithm that others are compared with; the first one if empty."""
    policy: Literal["best", "last"] = "best"
    """Which policy of each seed the absolute metric is of."""
    at: tuple[int, ...] = ()
    """Step counts of the table of scores; a quarter, a half and all of the budget if empty."""
    threshold: float = 0.5
    """Share of the way from the random to the reference score that sample efficiency is measured to."""
    resamples: int = 2000
    """Bootstrap resamples of every interval."""


@dataclass(frozen=True)
class Scale:
    """What a task's scores are measured against; nan where it is not known."""

    random: float = float("nan")
    reference: float = float("nan")
    unit: str = "score"


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    label: str
    """The algorithm: preset and overrides."""
    task: str
    """The task: name and overrides."""
    config: RunConfig

    @property
    def members(self) -> int:
        """Seeds, times swept values."""
        return len(self.config.seeds) * math.prod(len(sweep.values) for sweep in self.config.sweep)

    def folder(self, out: Path) -> RunFolder:
        """Where the run is, or would be."""
        return RunFolder(out / self._name)

    @cached_property
    def _name(self) -> str:
        """The folder's: a hash of the whole config, so worth keeping where there are thousands of runs."""
        config = self.config
        return RunFolder.locate(Path(), configs.to_json(config), config.preset, config.task_name).name


@dataclass(frozen=True)
class Study:
    """A study file that was read and checked."""

    name: str
    file: Path
    runs: tuple[Planned, ...]
    groups: tuple[tuple[int, ...], ...]
    """Seeds that are trained together."""
    compare: Compare = field(default_factory=Compare)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    """Scales that the file gives itself, by task name."""

    @property
    def tasks(self) -> list[str]:
        """Labels of the tasks, in the file's order."""
        return list(dict.fromkeys(run.task for run in self.runs))


_KEYS = ("name", "import", "tasks", "algorithms", "seeds", "steps", "evaluation", "checkpoints", "workers", "compare")
_KEYS += ("scale",)


def load(file: Path, out: Path = Path("runs")) -> Study:
    """Read a study file; every mistake in it is a `ConfigError`. Teams that saved policies play are runs in `out`."""
    data = read_toml(file)
    _refuse_unknown(data, _KEYS, str(file))
    _import(data.get("import", []), file)
    groups = seed_groups(data.get("seeds", 5))
    base = {
        "steps": _integer(data.get("steps", RunConfig.steps), "steps"),
        "evaluation": configs.from_json(Evaluation, data.get("evaluation", {}), "evaluation"),
        "checkpoints": configs.from_json(Checkpoints, data.get("checkpoints", {}), "checkpoints"),
        "workers": configs.from_json(Workers, data.get("workers", {}), "workers"),
    }
    algorithms = [algo for i, entry in enumerate(_listed(data, "algorithms")) for algo in _algorithms(entry, i)]
    tasks = [_task(entry, i, base["steps"]) for i, entry in enumerate(_listed(data, "tasks"))]
    runs = [
        replace(base_run, seeds=group)
        for base_run in _grid(algorithms, tasks, base, groups[0], out)
        for group in groups
    ]
    planned = tuple(Planned(algorithm_label(run), task_label(run.task_name, run.task), run) for run in runs)
    name = data.get("name", file.stem)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"name: expected a string, got {name!r}.")
    compare = configs.from_json(Compare, data.get("compare", {}), "compare")
    _check_compare(compare, planned)
    return Study(name, file, planned, groups, compare, _scales(data.get("scale", {}), tasks))


def refuse_unread(runs: Iterable[Planned]) -> None:
    """Raise `ConfigError` if a run sets a value that nothing reads."""
    for run in runs:
        try:
            reads.refuse_unread(run.config)
        except ConfigError as error:
            raise ConfigError(f"{run.label} on {run.task}: {error}") from error


def read_toml(file: Path) -> dict[str, Any]:
    """What a TOML file holds."""
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"study file {file}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"study file {file} is not TOML: {error}.") from error


def seed_groups(given: Any) -> tuple[tuple[int, ...], ...]:
    """A count, a list of seeds, or a list of groups of them -> groups."""
    groups: list[Any] = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    parsed = tuple(tuple(range(group)) if _is_int(group) else group for group in groups)
    seeds = [seed for group in parsed for seed in (group if isinstance(group, (list, tuple)) else [None])]
    if not seeds or not all(map(len, parsed)) or not all(_is_int(seed) and seed >= 0 for seed in seeds):
        raise ConfigError(f"seeds: expected a count from 1, a list of seeds, or a list of such lists, got {given!r}.")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds: every seed may be named once, got {given!r}.")
    return tuple(map(tuple, parsed))


def add_seeds(file: Path, count: int) -> Study:
    """Add a group of `count` new seeds to a study file, and leave the rest of its text alone.

    The group is part of a run's identity, so the runs that are there stay what they are.
    """
    if count < 1:
        raise ConfigError(f"the number of seeds to add must be at least 1, got {count}.")
    groups = load(file).groups
    first = max(max(group) for group in groups) + 1
    groups = (*groups, tuple(range(first, first + count)))
    before, text = read_toml(file), file.read_text()
    changed = _replace_seeds(text, f"seeds = {[list(group) for group in groups]}")
    if tomllib.loads(changed) != before | {"seeds": [list(group) for group in groups]}:
        raise ConfigError(f"cannot edit the seeds in {file}; write them yourself: {[list(g) for g in groups]}.")
    file.write_text(changed)
    return load(file)


def algorithm_label(config: RunConfig) -> str:
    """The preset and what the run changes of it; swept entries are named without a value."""
    swept = [f"{sweep.path.removeprefix('algo.')}=*" for sweep in config.sweep]
    return " ".join([configs.label(config.preset, config.algo), *swept])


def task_label(name: str, task: Any) -> str:
    """The task's name and what the run changes of it."""
    plain = known_task(name)
    return name if plain is None else " ".join([name, *configs.overrides(plain, task)])


# --- the entries of a file


def _grid(
    algorithms: Sequence[tuple[str, Any, tuple[Sweep, ...], tuple[str, ...]]],
    tasks: Sequence[tuple[str, Any, int]],
    base: Mapping[str, Any],
    seeds: tuple[int, ...],
    out: Path,
) -> Iterator[RunConfig]:
    """Every algorithm on every task, each combination checked."""
    seen: dict[tuple[Any, ...], str] = {}
    for preset, algo, sweep, teams in algorithms:
        for name, task, steps in tasks:
            run = RunConfig(preset, name, algo, task, seeds=seeds, sweep=sweep, **{**base, "steps": steps})
            run = with_teams(run, teams, out)
            what = f"{algorithm_label(run)} on {task_label(name, task)}"
            key = (run.algo, sweep, task)
            if key in seen:
                raise ConfigError(f"{what} is the same run as {seen[key]}; list it once.")
            seen[key] = what
            try:
                check(run)
            except ConfigError as error:
                raise ConfigError(f"{what}: {error}") from error
            yield run


def _algorithms(entry: Any, index: int) -> Iterator[tuple[str, Any, tuple[Sweep, ...], tuple[str, ...]]]:
    """Preset, config, sweep and other teams (TEAM=PRESET or TEAM=RUN) of every algorithm that an entry means."""
    where = f"algorithms[{index}]"
    values = _table(entry, "preset", where)
    preset, given = values.pop("preset"), values.pop("teams", {})
    vary, swept = (_paths(values.pop(key, {}), f"{where}.{key}") for key in ("vary", "sweep"))
    algo = _with_overrides(lookup(PRESETS, preset, f"preset in {where}:"), values, where)
    sweep = tuple(
        configs.from_json(Sweep, {"path": f"algo.{path}", "values": choices}, f"{where}.sweep.{path}")
        for path, choices in swept.items()
    )
    teams = _teams(given, where)
    if teams and sweep:
        raise ConfigError(f"{where}: an algorithm with teams cannot be swept; use vary.")
    for choice in itertools.product(*vary.values()):
        varied = algo
        for path, value in zip(vary, choice, strict=True):
            varied = _set(varied, path, value, f"{where}.vary")
        yield preset, varied, sweep, teams


def _teams(given: Any, where: str) -> tuple[str, ...]:
    """{ prey = "maddpg" } -> ("prey=maddpg",)."""
    if not isinstance(given, dict) or not all(isinstance(what, str) for what in given.values()):
        raise ConfigError(f'{where}.teams: expected a table such as {{ prey = "maddpg" }}, got {given!r}.')
    return tuple(f"{name}={what}" for name, what in given.items())


def _task(entry: Any, index: int, steps: int) -> tuple[str, Any, int]:
    """Name, config and budget of a task."""
    where = f"tasks[{index}]"
    values = _table(entry, "name", where)
    name, steps = values.pop("name"), _integer(values.pop("steps", steps), f"{where}.steps")
    return name, _with_overrides(_named_task(name, where), values, where), steps


def _named_task(name: str, where: str) -> Any:
    try:
        return find_task(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _table(entry: Any, name: str, where: str) -> dict[str, Any]:
    """An entry as a table; a mere string is a table with a name only."""
    if isinstance(entry, str):
        return {name: entry}
    if not isinstance(entry, dict) or not isinstance(entry.get(name), str):
        raise ConfigError(f'{where}: expected a name or a table with {name} = "...", got {entry!r}.')
    return dict(entry)


def _with_overrides(config: Any, values: Mapping[str, Any], where: str) -> Any:
    """The config with the entries of a (nested) table set."""
    for path, value in _leaves(config, values):
        config = _set(config, path, value, where)
    return config


def _set(config: Any, path: str, value: Any, where: str) -> Any:
    try:
        return configs.set_path(config, path, value)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _leaves(config: Any, values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of the entries of a table, as deep as the config is."""
    for name, value in values.items():
        path = f"{above}.{name}" if above else name
        inner = getattr(config, name, None)
        if isinstance(value, dict) and is_dataclass(inner):
            yield from _leaves(inner, value, path)
        else:
            yield path, value


def _paths(values: Any, where: str) -> dict[str, list[Any]]:
    """Dotted path -> list of values, from a table that may be nested."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a table of lists, got {values!r}.")
    found: dict[str, list[Any]] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}.{path}": choices for path, choices in _paths(value, f"{where}.{name}").items()}
        elif isinstance(value, list) and value:
            found[name] = value
        else:
            raise ConfigError(f"{where}.{name}: expected a list of values, got {value!r}.")
    return found


def _scales(given: Any, tasks: Sequence[tuple[str, Any, int]]) -> dict[str, Scale]:
    """The file's own scales; a scale of a task that is not in the study is a mistake."""
    if not isinstance(given, dict):
        raise ConfigError(f'scale: expected tables such as [scale."smax/3m"], got {given!r}.')
    _refuse_unknown(given, [name for name, _, _ in tasks], "scale")
    return {name: configs.from_json(Scale, entry, f"scale.{name}") for name, entry in given.items()}


def _check_compare(compare: Compare, runs: Sequence[Planned]) -> None:
    labels = list(dict.fromkeys(run.label for run in runs))
    if compare.baseline and compare.baseline not in labels and not any(run.config.sweep for run in runs):
        raise ConfigError(f"compare.baseline: no algorithm '{compare.baseline}'.{suggest(compare.baseline, labels)}")
    if compare.resamples < 1:
        raise ConfigError(f"compare.resamples must be at least 1, got {compare.resamples}.")
    if any(at < 1 for at in compare.at):
        raise ConfigError(f"compare.at: expected step counts from 1, got {list(compare.at)}.")


def _import(given: Any, file: Path) -> None:
    """Import the files that a study names, relative to the study's own."""
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f'import: expected a list of files such as ["meet.py"], got {given!r}.')
    import_files(file.parent / name for name in given)


def _listed(data: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(data.get(key), list) or not data[key]:
        raise ConfigError(f"{key}: expected a list with at least one entry, got {data.get(key)!r}.")
    return data[key]


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: there is no such entry as '{key}'.{suggest(key, known)}")


def _integer(value: Any, where: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not _is_int(value):
        raise ConfigError(f"{where}: expected an integer, got {value!r}.")
    return value


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _replace_seeds(text: str, entry: str) -> str:
    """The file's text with another top-level `seeds` entry, its comment kept."""
    lines = text.splitlines(keepends=True)
    top = next((i for i, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    start = next((i for i in range(top) if lines[i].partition("=")[0].strip() in ("seeds", '"seeds"')), None)
    if start is None:
        return f"{entry}\n{text}"
    end = next(j for j in range(start + 1, len(lines) + 1) if _parses("".join(lines[start:j])))
    _, mark, comment = lines[end - 1].partition("#")
    return "".join([*lines[:start], entry, f"  {mark}{comment}" if mark else "\n", *lines[end:]])


def _parses(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
