"""The `rookery` command. Modules that import JAX are imported inside the commands: help must come at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from rookery.app.options import NUMBERS, Imports, LogNames, Train, import_given, load_registries, parse_log, parse_train
from rookery.app.progress import Progress, progress_for
from rookery.app.study_cli import CompareRuns, Export, Study, study_command
from rookery.app.text import member_means, preset_row, print_rows, run_rows, score_lines, score_rows, show_lines
from rookery.core import config as configs
from rookery.core.errors import ConfigError, RookeryError, suggest
from rookery.core.registry import PRESETS
from rookery.core.stats import INTERVAL
from rookery.studies.teams import cross_play
from rookery.training.check import check
from rookery.training.config import RunConfig

RunName = tyro.conf.Positional[str]


@dataclass(frozen=True)
class Resume(Imports):
    """Continue a run from its newest checkpoint."""

    run: RunName
    """Path, name or unique beginning of the name of a run."""
    out: Path = Path("runs")
    """Folder of the runs."""
    quiet: bool = False
    """Show no progress."""
    log: LogNames = ""
    """Logs for other programs, live in the run's folder: tensorboard, wandb (extras; wandb is offline by default)."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.training.folder import resolve
        from rookery.training.train import resume

        load_registries()
        path, log = resolve(self.run, self.out).path, parse_log(self.log)
        return _watched(lambda progress: resume(path, progress, log), self.quiet, lambda: path)


@dataclass(frozen=True)
class Ls(Imports):
    """List runs."""

    out: Path = Path("runs")
    """Folder of the runs."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.training.folder import find_runs

        rows = [row for run in find_runs(self.out) for row in run_rows(run)]
        if rows or self.json:
            print_rows(rows, self.json)
        else:
            print(f"no runs in {self.out}")
        return 0


@dataclass(frozen=True)
class Show(Imports):
    """Show one run: config, status, where it was made, newest metrics, scores, files."""

    run: RunName
    """Path, name or unique beginning of the name of a run."""
    out: Path = Path("runs")
    """Folder of the runs."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.training.folder import resolve

        load_registries()
        run = resolve(self.run, self.out)
        print("\n".join(show_lines(run)))
        return 0


@dataclass(frozen=True)
class Eval(Imports):
    """Play episodes with the policies of a run and print their scores."""

    run: RunName
    """Path, name or unique beginning of the name of a run."""
    episodes: int = 320
    """Episodes of each seed."""
    checkpoint: Literal["best", "last"] = "best"
    """Which policy of each seed."""
    actions: Literal["own", "greedy", "sampled"] = "own"
    """How policies act; own: as in the run's own evaluations (evaluation.sampled), which are greedy by default."""
    against: str = ""
    """Cross-play: another run, whose best policies play all teams but one, for each team in turn."""
    out: Path = Path("runs")
    """Folder of the runs."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """Run the command."""
        if self.episodes < 1:
            raise ConfigError(f"--episodes must be at least 1, got {self.episodes}.")
        from rookery.training.failures import told
        from rookery.training.folder import resolve
        from rookery.training.train import evaluate_run

        load_registries()
        if self.against:
            if self.checkpoint != "best" or self.actions != "own":
                raise ConfigError("--against is played by best policies: leave out --checkpoint and --actions.")
            ours, theirs = (resolve(run, self.out).path for run in (self.run, self.against))
            print_rows(cross_play(ours, theirs, self.episodes), self.json)
            return 0
        folder = resolve(self.run, self.out)
        frame = evaluate_run(folder.path, self.episodes, self.checkpoint, self.actions)
        left_out = [f"left out: {text}" for text in told(folder)]
        if self.json:
            print(json.dumps({"members": member_means(frame).to_dicts(), "scores": score_rows(frame)}, indent=2))
        else:
            print(f"{self.checkpoint} policy, {self.episodes} episodes of each seed ({self.actions} actions)")
            print("\n".join([*score_lines(frame), f"low, high: {INTERVAL}", *left_out]))
        return 0


@dataclass(frozen=True)
class Picture(Imports):
    """Draw what a run has learned: a memory with its values, key nodes and paths; a hypernetwork's increments."""

    run: RunName
    """Path, name or unique beginning of the name of a run."""
    step: str = "last"
    """The policy to draw: last, best, or environment steps of a state that the run has kept."""
    again: bool = False
    """Train the run once more, in memory, up to --step: for steps that were not kept."""
    member: int = 0
    """Which seed (and swept value), counted from 0."""
    to: Path = Path("pictures")
    """Folder of the pictures."""
    out: Path = Path("runs")
    """Folder of the runs."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.studies import pictures
        from rookery.training.folder import resolve

        load_registries()
        print(pictures.save(resolve(self.run, self.out), self.to, self.step, self.member, again=self.again))
        return 0


@dataclass(frozen=True)
class Tasks(Imports):
    """List tasks."""

    filter: tyro.conf.Positional[str] = ""
    """Show only tasks whose name begins with this."""
    host: bool = False
    """List the installed host environments instead (Gymnasium, PettingZoo, Atari)."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.core.registry import TASKS
        from rookery.tasks.catalog import FACTS, describe

        if self.host:
            return self._host()
        known = {*FACTS, *TASKS}
        names = [name for name in sorted(known) if name.startswith(self.filter)]
        if not names:
            raise ConfigError(f"no task's name begins with '{self.filter}'.{suggest(self.filter, known)}")
        print_rows([describe(name) for name in names], self.json)
        return 0

    def _host(self) -> int:
        from rookery.tasks.host.names import extras, installed

        rows = [{"task": name} for names in installed().values() for name in names if name.startswith(self.filter)]
        print_rows(rows, self.json)
        absent = [f"rookery[{extra}]" for extra, there in extras().items() if not there]
        if absent and not self.json:
            print(f"not installed: {', '.join(absent)}")
        return 0


@dataclass(frozen=True)
class Algorithms(Imports):
    """List presets: what they are and what they need."""

    filter: tyro.conf.Positional[str] = ""
    """Show only presets whose name begins with this, and what they change of their family's defaults."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """Run the command."""
        load_registries()
        rows = [preset_row(name, algo) for name, algo in PRESETS.items() if name.startswith(self.filter)]
        if not rows:
            raise ConfigError(f"no preset's name begins with '{self.filter}'.{suggest(self.filter, PRESETS)}")
        if not (self.filter or self.json):
            rows = [{name: value for name, value in row.items() if name != "settings"} for row in rows]
        print_rows(rows, self.json)
        return 0


COMMANDS: dict[str, type] = {
    "train": Train,
    "resume": Resume,
    "ls": Ls,
    "show": Show,
    "eval": Eval,
    "picture": Picture,
    "tasks": Tasks,
    "algorithms": Algorithms,
    "study": Study,
    "compare": CompareRuns,
    "export": Export,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        import_given(argv)
        if argv[:1] == ["train"]:
            return train_command(argv[1:])
        if argv[:1] == ["study"]:
            return study_command(argv[1:])
        description = "Train, compare and explain multi-agent and memory-based reinforcement learning."
        # Without a command: the help, not a complaint.
        return tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="rookery", description=description, args=argv or ["--help"], registry=NUMBERS
        )()
    except RookeryError as error:
        print(f"rookery: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("rookery: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def train_command(argv: Sequence[str]) -> int:
    """`rookery train`."""
    load_registries()
    given, config = parse_train(argv)
    if given.dry_run:
        from rookery.training.reads import refuse_unread

        check(config)
        refuse_unread(config)
        print(json.dumps(configs.to_json(config), indent=2))
        return 0
    if given.profile:
        from rookery.app.profile import lines
        from rookery.training.compiled.compiler import use_compilation_cache
        from rookery.training.engine import claim, open_engine

        claim(config)
        check(config)
        use_compilation_cache()
        with closing(open_engine(config)) as engine:
            print("\n".join(lines(config, engine.profile())))
        return 0
    from rookery.training.train import train

    log = parse_log(given.log)
    return _watched(
        lambda progress: train(config, given.out, progress, log), given.quiet, lambda: _folder_of(config, given.out)
    )


def _watched(action: Callable[[Progress], Any], quiet: bool, folder: Callable[[], Path | None]) -> int:
    """Run an action with a progress display, and say where the run is, also when it is interrupted."""
    progress = progress_for(quiet=quiet)
    try:
        action(progress)
    except KeyboardInterrupt as stopped:
        progress.close()
        print(_interrupted(folder(), str(stopped)), file=sys.stderr)
        return 130
    finally:
        progress.close()
    print(folder())
    return 0


def _interrupted(path: Path | None, kept: str) -> str:
    if path is None:
        return "rookery: interrupted before anything was saved."
    from rookery.training.checkpoint import manifests
    from rookery.training.folder import RunFolder

    saved = "what the last checkpoint has is kept" if manifests(RunFolder(path).checkpoints) else "nothing is saved yet"
    return f"rookery: interrupted; {kept or saved}. Continue: rookery resume {path}"


def _folder_of(config: RunConfig, out: Path) -> Path | None:
    """Where the run with this config is, if it was begun."""
    from rookery.training.folder import RunFolder

    path = RunFolder.locate(out, configs.to_json(config), config.preset, config.task_name).path
    return path if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
