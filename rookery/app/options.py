"""The options of `rookery train`: the preset and the task are found first, then their values become options too."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import tyro

from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.imports import import_files
from rookery.core.registry import PRESETS, TASKS, find_task, lookup
from rookery.studies.teams import with_teams
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Sweep, Workers

LogNames = Annotated[str, tyro.conf.arg(metavar="NAME,..")]


@dataclass(frozen=True)
class Imports:
    """The option that every command has. `import_given` acts on it before the others are parsed."""

    imports: Annotated[tyro.conf.UseAppendAction[tuple[Path, ...]], tyro.conf.arg(name="import", metavar="FILE.py")] = (
        field(default=(), kw_only=True)
    )
    """Python files of your own that register tasks, algorithms, networks or mechanisms; may be given several times."""


def import_given(argv: Sequence[str]) -> None:
    """Import the files that `--import` names: what they register may be needed to understand the other options."""
    pairs = zip(argv, [*argv[1:], ""], strict=False)
    files = [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == "--import"]
    if files:
        load_registries()
        import_files(files)


@dataclass(frozen=True)
class Train(Imports):
    """Train one algorithm on one task for a group of seeds; the same command again resumes.

    rookery train PRESET --task NAME [options]. Every value of the algorithm and of the task is an option of its own:
    `rookery train PRESET --task NAME --help` lists them.
    """

    task_name: Annotated[str, tyro.conf.arg(name="task", metavar="NAME")] = ""
    """Task to train on (`rookery tasks` lists them)."""
    steps: int = 1_000_000
    """Environment steps (joint transitions) of each seed."""
    seeds: Annotated[str, tyro.conf.arg(metavar="N|A,B,..")] = "1"
    """How many seeds are trained together, or which: 5 means 0,1,2,3,4."""
    first_seed: int = 0
    """Where counted seeds begin."""
    sweep: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="PATH=A,B,..")] = ()
    """Values of an entry that are trained side by side, for example algo.optimiser.lr=1e-4,5e-4."""
    team: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="TEAM=PRESET|RUN")] = ()
    """What moves one team of a mixed task: a preset that it learns by, or a complete run whose best policy plays it and
    does not change (RUN@2: that of member 2). Other teams learn by PRESET."""
    config: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """A config as --dry-run prints it; other options override it."""
    out: Path = Path("runs")
    """Folder of the runs."""
    dry_run: bool = False
    """Print the resolved config and stop."""
    profile: bool = False
    """Print where the time of one iteration goes, and stop; nothing is written."""
    quiet: bool = False
    """Show no progress."""
    log: LogNames = ""
    """Logs for other programs, live in the run's folder: tensorboard, wandb (extras; wandb is offline by default)."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    workers: Workers = field(default_factory=Workers)


def config(
    preset: str, task: str, *, steps: float = 1_000_000, seeds: int | Sequence[int] = 1, **values: Any
) -> RunConfig:
    """The config of `rookery train PRESET --task TASK`; `values` are checked entries at dotted paths.

    For example `config("qmix", "mpe/simple_spread", seeds=4, **{"algo.optimiser.lr": 1e-3, "evaluation.points": 5})`.
    """
    load_registries()
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    algo, world = lookup(PRESETS, preset, "preset"), find_task(task)
    made = RunConfig(preset, task, algo, world, seeds=chosen)
    for path, value in {"steps": steps, **values}.items():
        made = configs.set_path(made, path, value)
    return made


def parse_train(argv: Sequence[str]) -> tuple[Train, RunConfig]:
    """The options as given, and the config that they make."""
    from rookery.algorithms.teams import Teams

    preset, rest = _take_preset(argv)
    file, task_name = _value_of(rest, "--config"), _value_of(rest, "--task")
    if not preset and not file:
        _explain_train(rest)
    base = _from_file(file) if file else None
    # A name that the file has too keeps the file's values; another name brings its own.
    preset = preset or base.preset if base else preset
    task_name = task_name or base.task_name if base else task_name
    algo = base.algo if base and base.preset == preset else lookup(PRESETS, preset, "preset")
    if not task_name:
        _parse(Train(), {"algo": algo}, preset, rest)
        raise ConfigError(f"--task is missing. Known: {', '.join(sorted(TASKS))}.")
    task = base.task if base and base.task_name == task_name else find_task(task_name)
    base = dataclasses.replace(base or RunConfig(preset, task_name, algo, task), preset=preset, task_name=task_name)
    defaults = _as_options(base)
    # Teams have no options of their own: a list of configs is no option.
    configurable = {"task": task} if isinstance(algo, Teams) else {"algo": algo, "task": task}
    given, values = _parse(defaults, configurable, preset, rest)
    # The file's first seed means nothing beside a list of seeds; one given here is a contradiction.
    first = 0 if "," in given.seeds and given.first_seed == defaults.first_seed else given.first_seed
    made = RunConfig(
        preset=preset,
        task_name=task_name,
        algo=values.get("algo", algo),
        task=values["task"],
        steps=given.steps,
        seeds=parse_seeds(given.seeds, first),
        sweep=tuple(map(parse_sweep, given.sweep)) or base.sweep,
        evaluation=given.evaluation,
        checkpoints=given.checkpoints,
        workers=given.workers,
    )
    return given, with_teams(made, given.team, given.out)


def parse_seeds(text: str, first: int = 0) -> tuple[int, ...]:
    """ "3" -> (0, 1, 2); "3,7" -> (3, 7); "3," -> (3,)."""
    try:
        numbers = [int(part) for part in text.rstrip(",").split(",")]
    except ValueError:
        raise ConfigError(f"--seeds: expected a count such as 5 or a list such as 3,7,11, got '{text}'.") from None
    if "," not in text:
        if numbers[0] < 1:
            raise ConfigError(f"--seeds: expected at least one seed, got {numbers[0]}.")
        numbers = list(range(first, first + numbers[0]))
    elif first:
        raise ConfigError("--first-seed goes with a count of seeds, not with a list.")
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ConfigError(f"--seeds: expected different seeds from 0 up, got '{text}' from {first}.")
    return tuple(numbers)


def parse_sweep(text: str) -> Sweep:
    """ "algo.optimiser.lr=1e-4,5e-4" -> its path and values."""
    path, _, values = text.partition("=")
    try:
        return Sweep(path, tuple(float(value) for value in values.split(",")))
    except ValueError:
        raise ConfigError(
            f"--sweep: expected PATH=NUMBER,NUMBER such as algo.optimiser.lr=1e-4,5e-4, got '{text}'."
        ) from None


def parse_log(text: str) -> tuple[str, ...]:
    """ "tensorboard,wandb" -> its names, each checked."""
    from rookery.training.logs import require

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    require(names)
    return names


def load_registries() -> None:
    """Fill the registries: our own names, and those of installed packages with an entry point in group "rookery"."""
    import rookery.algorithms
    import rookery.tasks  # noqa: F401

    for plugin in entry_points(group="rookery"):
        plugin.load()


_WITH_NAMES = ("--task", "--config", "--out", "--import")  # options whose value may be spelt like a preset


def _take_preset(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The preset and the other arguments; it stands first, or is the first argument that is a preset's name."""
    names = [i for i, word in enumerate(argv) if word in PRESETS and argv[i - 1] not in _WITH_NAMES]
    index = 0 if argv and not argv[0].startswith("-") else next(iter(names), None)
    if index is None:
        return "", list(argv)
    return argv[index], [*argv[:index], *argv[index + 1 :]]


def _value_of(argv: Sequence[str], option: str) -> str:
    """The value of an option that is needed before the others can be known; empty if it is not given."""
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        if word == option and not after.startswith("-"):
            return after
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def _explain_train(argv: Sequence[str]) -> None:
    """The general help if it was asked for; otherwise say that the preset is missing."""
    if not argv or {"-h", "--help"} & set(argv):
        tyro.cli(Train, prog="rookery train PRESET", description=_train_help(), args=["--help"], registry=NUMBERS)
    raise ConfigError(f"train needs a preset or --config FILE. Known presets: {', '.join(PRESETS)}.")


def _train_help() -> str:
    return f"{inspect.getdoc(Train)}\n\nPresets: {', '.join(PRESETS)}."


def _from_file(path: str) -> RunConfig:
    try:
        return configs.from_json(RunConfig, json.loads(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"--config {path} is not JSON: {error}.") from error


def _as_options(config: RunConfig) -> Train:
    """Defaults of the options, such that giving none gives this config back (but for the sweep)."""
    first, count = (config.seeds or (0,))[0], len(config.seeds)
    counted = config.seeds == tuple(range(first, first + count))
    return Train(
        task_name=config.task_name,
        steps=config.steps,
        seeds=str(count) if counted else ",".join(map(str, config.seeds)),
        first_seed=first if counted else 0,
        evaluation=config.evaluation,
        checkpoints=config.checkpoints,
        workers=config.workers,
    )


def _parse(
    defaults: Train, values: Mapping[str, Any], preset: str, argv: Sequence[str]
) -> tuple[Train, dict[str, Any]]:
    """Parse the general options together with those of the given configs; tyro exits where it cannot."""
    hidden = {name: _without_family(value) for name, value in values.items()}
    fields = [(name, type(value), field(default=value)) for name, value in hidden.items()]
    options = dataclasses.make_dataclass("Options", fields, bases=(Train,), frozen=True)
    general = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(Train)}
    prog = f"rookery train {preset}"
    given = tyro.cli(
        options, default=options(**general), prog=prog, description=_train_help(), args=list(argv), registry=NUMBERS
    )
    return given, {name: _copy_to(type(value), getattr(given, name)) for name, value in values.items()}


def _without_family(config: Any) -> Any:
    """A copy whose class keeps tyro from offering the family as an option: another one would need another class."""
    family = ("family", tyro.conf.Suppress[str], field(default=config.family))
    cls = dataclasses.make_dataclass(type(config).__name__, [family], bases=(type(config),), frozen=True)
    return _copy_to(cls, config)


def _copy_to(cls: type, config: Any) -> Any:
    return cls(**{f.name: getattr(config, f.name) for f in dataclasses.fields(cls) if f.init})


NUMBERS = tyro.constructors.ConstructorRegistry()


@NUMBERS.primitive_rule
def _integers(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Let 2e6 be an integer."""
    if info.type is not int:
        return None

    def parse(words: list[str]) -> int:
        try:
            return int(words[0])
        except ValueError:
            if not float(words[0]).is_integer():
                raise ValueError(f"expected an integer, got {words[0]}") from None
            return int(float(words[0]))

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )
