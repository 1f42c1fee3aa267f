"""The `rookery study` commands, `rookery compare` and `rookery export`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rookery.app.options import NUMBERS, Imports, LogNames, load_registries, parse_log
from rookery.app.text import Row, print_rows
from rookery.core.config import format_value
from rookery.core.errors import ConfigError
from rookery.core.imports import IMPORTED

StudyFile = tyro.conf.Positional[Path]


@dataclass(frozen=True)
class StudyRun(Imports):
    """Train the runs of a study that are not complete, side by side; the same command again continues."""

    file: StudyFile
    """The study file (TOML)."""
    out: Path = Path("runs")
    """Folder of the runs."""
    jobs: int = 0
    """Runs side by side; 0: one for each core, as far as memory allows."""
    threads: int = 0
    """Threads of each run; 0: this machine's cores divided among the runs, on a cluster 1."""
    executor: Literal["process", "ray", "slurm"] = "process"
    """Where runs are trained: here, on a Ray cluster, or by Slurm (extras; all machines must see OUT)."""
    address: str = ""
    """Of the Ray cluster; empty: RAY_ADDRESS, one that runs here, or a new one on this machine ("local": always)."""
    slurm: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """What submitit tells Slurm: timeout_min=240, slurm_partition=long, ...; cluster=local does without Slurm."""
    measure: Literal["auto", "always", "never"] = "auto"
    """Time new groups of seeds, as one program and as a process for each, and train each group the faster way from then
    on. auto: groups that are to take 20 million steps or more, all seeds together, on this machine."""
    retry_failed: bool = False
    """Also train the runs that failed before."""
    dry_run: bool = False
    """Print the plan and stop."""
    report: bool = False
    """Write a report at the end."""
    to: Path = Path("reports")
    """Where reports go: TO/<study>/report-<n>."""
    quiet: bool = False
    """Show no progress."""
    log: LogNames = ""
    """Logs for other programs, live in the runs' folders: tensorboard, wandb (extras; wandb is offline by default)."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.studies import plan, schedule
        from rookery.studies.layout import laid_out

        for name, value in (("jobs", self.jobs), ("threads", self.threads)):
            if value < 0:
                raise ConfigError(f"--{name} must be at least 0, got {value}.")
        load_registries()
        planned = plan.load(self.file, self.out)
        self._measure(planned)
        study = laid_out(planned, self.out)
        entries = schedule.survey(study, self.out)
        plan.refuse_unread(entry.planned for entry in entries if entry.state == "new")
        wanted = [e for e in entries if e.state != "complete" and (self.retry_failed or e.state != "failed")]
        print("\n".join([*_plan_lines(study, entries), *_layout_lines(planned, self.out)]))
        if wanted:
            with closing(self._open_executor(len(wanted))) as executor:
                print(f"{_counts(entries)}; {_outlook(wanted, executor, self.out)}")
                if not self.dry_run:
                    entries = self._run(study, executor)
        else:
            print(f"{_counts(entries)}; nothing to do.")
        return 0 if self.dry_run else _conclude(study, entries, self)

    def to_measure(self, study: Any) -> list[Any]:
        """The study's new groups of seeds of which to find out how they are trained fastest."""
        from rookery.studies import layout

        if self.measure == "never" or (self.measure == "auto" and self.executor != "process"):
            return []
        return layout.unmeasured(study, self.out, 0 if self.measure == "always" else layout.LONG)

    def _measure(self, study: Any) -> None:
        from rookery.studies import layout, plan

        groups = self.to_measure(study)
        plan.refuse_unread(groups)
        for group in groups:
            print(f"{'to measure' if self.dry_run else 'measuring'}: {layout.title(group)}", flush=True)
            if not self.dry_run:
                program = ("-m", "rookery.app.speed", *map(str, IMPORTED))
                layout.measure(group, self.out, program, len(study.runs))

    def _open_executor(self, pending: int) -> Any:
        """Where the runs will be trained."""
        from rookery.studies import executors

        program = ("-m", "rookery.app.worker", *parse_log(self.log))
        if self.executor == "ray":
            return executors.Ray(program, self.jobs, self.threads, pending, self.address)
        if self.executor == "slurm":
            options = parse_options(self.slurm, "--slurm")
            return executors.Slurm(program, self.jobs, self.threads, pending, self.out, options)
        return executors.processes(program, self.jobs, self.threads, pending)

    def _run(self, study: Any, executor: Any) -> list[Any]:
        """Train, with a display."""
        from rookery.app.study_progress import watcher_for
        from rookery.studies import schedule

        watcher = watcher_for(quiet=self.quiet)
        try:
            return schedule.run(study, self.out, executor, watcher, self.retry_failed)
        except KeyboardInterrupt:
            watcher.close()
            print(f"stopped. Continue with: rookery study run {self.file} --out {self.out}", file=sys.stderr)
            raise
        finally:
            watcher.close()


@dataclass(frozen=True)
class StudyStatus(Imports):
    """Where every run of a study stands."""

    file: StudyFile
    """The study file (TOML)."""
    out: Path = Path("runs")
    """Folder of the runs."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.studies import plan, schedule
        from rookery.studies.layout import laid_out

        load_registries()
        entries = schedule.survey(laid_out(plan.load(self.file, self.out), self.out), self.out)
        print_rows([_entry_row(entry) for entry in entries], self.json)
        return 0


@dataclass(frozen=True)
class StudyAddSeeds(Imports):
    """Add a group of new seeds to a study file; the runs that are there stay what they are."""

    file: StudyFile
    """The study file (TOML)."""
    count: tyro.conf.Positional[int]
    """How many seeds."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.studies import plan

        load_registries()
        study = plan.add_seeds(self.file, self.count)
        seeds = format_value(study.groups[-1])
        print(f"{self.file}: seeds {seeds} added, as {len(study.runs) // len(study.groups)} more runs")
        return 0


@dataclass(frozen=True)
class StudyReport(Imports):
    """Write a report (a page, figures, tables) into a new folder."""

    file: StudyFile
    """The study file (TOML)."""
    out: Path = Path("runs")
    """Folder of the runs."""
    to: Path = Path("reports")
    """Where reports go: TO/<study>/report-<n>."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.studies import plan
        from rookery.studies.layout import laid_out

        load_registries()
        _write_report(laid_out(plan.load(self.file, self.out), self.out), self.out, self.to)
        return 0


@dataclass(frozen=True)
class CompareRuns(Imports):
    """Hold runs against each other: what differs in their configs, scores with intervals, learning curves."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Paths, names or unique beginnings of names; runs that differ in their seeds only are pooled, and on each task
    the first one is what the others are compared with."""
    policy: Literal["best", "last"] = "best"
    """Which policy of each seed is scored."""
    out: Path = Path("runs")
    """Folder of the runs."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.studies.compare import compare

        load_registries()
        found = compare(_resolved(self.runs, self.out), catalog_scales(), self.policy)
        for table in (found.legend, found.differences, found.scores, found.improvement):
            if table.rows:
                print("\n".join(["", table.title, *_table_lines(table), *([table.note] if table.note else [])]))
        for text in (*found.plots, *(f"warning: {warning}" for warning in found.warnings)):
            print(f"\n{text}")
        return 0


@dataclass(frozen=True)
class Export(Imports):
    """Write runs in another program's format; nothing that exists is overwritten."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Paths, names or unique beginnings of names."""
    to: Literal["csv", "xlsx", "marl-eval", "tensorboard"] = "csv"
    """The format."""
    to_path: Path = Path()
    """The file or folder to make; named after the format unless given."""
    out: Path = Path("runs")
    """Folder of the runs."""

    def __call__(self) -> int:
        """Run the command."""
        from rookery.studies.export import default_path, export

        load_registries()
        to = self.to_path if self.to_path != Path() else default_path(self.to)
        print(export(_resolved(self.runs, self.out), self.to, to))
        return 0


def _resolved(names: Sequence[str], out: Path) -> list[Any]:
    from rookery.training.folder import resolve

    if not names:
        raise ConfigError("name at least one run (`rookery ls` lists them).")
    return [resolve(name, out) for name in names]


def _table_lines(table: Any) -> list[str]:
    from rookery.app.text import table as lines

    return lines([dict(zip(table.columns, row, strict=True)) for row in table.rows])


STUDY_COMMANDS: dict[str, type] = {
    "run": StudyRun,
    "status": StudyStatus,
    "add-seeds": StudyAddSeeds,
    "report": StudyReport,
}


@dataclass(frozen=True)
class Study:
    """Plan, train and report a grid of runs: `rookery study --help`."""


def study_command(argv: Sequence[str]) -> int:
    """`rookery study`."""
    description = "A study is one TOML file: algorithms, tasks, seeds, budget and what to compare."
    return tyro.extras.subcommand_cli_from_dict(
        STUDY_COMMANDS, prog="rookery study", description=description, args=argv or ["--help"], registry=NUMBERS
    )()


def _plan_lines(study: Any, entries: Sequence[Any]) -> list[str]:
    """What a study is, run by run (a long list is cut)."""
    from rookery.app.text import table

    labels = {run.label for run in study.runs}
    members = sum(run.members for run in study.runs)
    seeds = sum(map(len, study.groups))
    heading = f"study {study.name}: {len(labels)} algorithms x {len(study.tasks)} tasks x {seeds} seeds"
    shown = entries[:40]
    rest = [f"... and {len(entries) - len(shown)} more"] if len(entries) > len(shown) else []
    vectorised = f"{len(study.runs)} runs, {members} members: seeds and swept values of a run are one program"
    return [heading, vectorised, *table([_entry_row(entry) for entry in shown]), *rest]


def _layout_lines(study: Any, out: Path) -> list[str]:
    """What was measured of the groups of seeds."""
    from rookery.studies.layout import layouts

    return [f"{title}: {layout.text()}" for title, layout in layouts(study, out).items()]


def _entry_row(entry: Any) -> Row:
    config = entry.planned.config
    return {
        "algorithm": entry.planned.label,
        "task": entry.planned.task,
        "seeds": format_value(config.seeds),
        "steps": config.steps,
        "state": entry.state,
        "progress": f"{1 if entry.state == 'complete' else entry.progress:.0%}",
        "run": entry.folder.name,
        "message": entry.message if entry.state in ("failed", "broken") else "",
    }


def _counts(entries: Sequence[Any]) -> str:
    """How many runs stand where."""
    counts = Counter(entry.state for entry in entries)
    states = ("complete", "interrupted", "new", "failed", "running", "broken")
    return ", ".join(f"{counts[state]} {state}" for state in states if counts[state])


def _outlook(wanted: Sequence[Any], executor: Any, out: Path) -> str:
    """How what is left will be trained, and how long it should take."""
    from rookery.app.progress import time_left
    from rookery.studies import schedule

    seconds, unknown = schedule.estimate(wanted, out, executor.slots)
    time = f"about {time_left(0, round(seconds), 1)} of training" if unknown < len(wanted) else "time unknown"
    left_out = f" (without {unknown} runs, of which nothing alike was timed yet)" if 0 < unknown < len(wanted) else ""
    return f"{executor.slots} at a time with {executor.threads} threads each; {time}{left_out}, and compiling."


def parse_options(given: Sequence[str], option: str) -> dict[str, int | str]:
    """["timeout_min=240"] -> {"timeout_min": 240}."""
    pairs = [text.partition("=") for text in given]
    for name, sign, value in pairs:
        if not (name and sign and value):
            raise ConfigError(f"{option}: expected KEY=VALUE such as timeout_min=240, got '{name}{sign}{value}'.")
    return {name: int(value) if value.isdigit() else value for name, _, value in pairs}


def _conclude(study: Any, entries: Sequence[Any], given: StudyRun) -> int:
    """Say how it went; the exit code."""
    failed = [entry for entry in entries if entry.state == "failed"]
    if given.report and any(entry.state == "complete" for entry in entries):
        _write_report(study, given.out, given.to)
    elif not failed:
        print(f"all complete. Compare them: rookery study report {given.file} --out {given.out}")
    for entry in failed:
        print(f"failed: {entry.planned.label} on {entry.planned.task}: {entry.message}", file=sys.stderr)
    if failed:
        print(f"try them again: rookery study run {given.file} --out {given.out} --retry-failed", file=sys.stderr)
    return 1 if failed else 0


def _write_report(study: Any, out: Path, to: Path) -> None:
    """Write a report, and print its warnings, its main table and where it is."""
    from rookery.studies import report

    name = re.sub(r"[^A-Za-z0-9._-]+", "-", study.name)
    written = report.write(report.study_results(study, out, catalog_scales()), study.name, to / name)
    for table in written.tables:
        if table.name == "final":
            print("\n".join([*_table_lines(table), table.note]))
    for warning in written.warnings:
        print(f"warning: {warning}")
    print(f"report: {written.page}")


def catalog_scales() -> dict[str, Any]:
    """What the catalog knows of the scores of every task."""
    from rookery.studies.plan import Scale
    from rookery.tasks.catalog import FACTS

    return {name: Scale(facts.random, facts.reference, facts.score) for name, facts in FACTS.items()}
