"""A report: one self-contained page, its figures and its tables, in a folder of its own."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rookery
from rookery.core.errors import RunError
from rookery.studies import pictures, plots, summarise, tables
from rookery.studies.plan import Scale, Study
from rookery.studies.read import open_runs
from rookery.studies.results import Results, collect
from rookery.studies.tables import Table
from rookery.training.folder import RunFolder, read_json, writing

_CSS = """
body{font:15px/1.45 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1c1c1c;background:#fff}
h1{margin-bottom:0}h2{margin-top:2em;border-bottom:1px solid #ddd}figure{margin:1.5em 0}
figure svg{max-width:100%;height:auto}figcaption,.note{color:#555;font-size:13px}
table{border-collapse:collapse;margin-top:1.5em;font-size:13px;display:block;overflow-x:auto}
caption{text-align:left;font-weight:600;padding:.3em 0;white-space:nowrap}
th,td{padding:.25em .7em;border-bottom:1px solid #e4e4e4;text-align:left}
th{background:#f4f4f4}td.number{text-align:right;font-variant-numeric:tabular-nums}
.warning{background:#fff1f1;border-left:4px solid #b00020;padding:.5em 1em;margin:.5em 0}
"""
_VIEWS = {
    "ablation": "One task, settings of one algorithm",
    "algorithms": "One task, several algorithms",
    "screening": "Several tasks",
}


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    folder: Path
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]

    @property
    def page(self) -> Path:
        return self.folder / "index.html"


def study_results(study: Study, out: Path, scales: Mapping[str, Scale]) -> Results:
    """The results of a study, of all runs that were begun."""
    folders = [run.folder(out) for run in study.runs]
    begun = [folder for folder in folders if folder.parts("evaluations")]
    if not begun:
        raise RunError(
            f"no run of study {study.name} has an evaluation in {out} yet. Begin with: rookery study run {study.file}"
        )
    missing = len(folders) - len(begun)
    known = {**scales, **{name: _merged(scale, scales.get(name, Scale())) for name, scale in study.scales.items()}}
    runs = open_runs(begun)
    results = collect(runs, study.compare, known, list(dict.fromkeys(runs.members["label"])))
    if not results.cells:
        raise RunError(f"every seed of study {study.name} that has begun in {out} failed: there are no scores.")
    notes = [f"{missing} of {len(folders)} runs have not begun."] if missing else []
    if study.compare.baseline and study.compare.baseline not in results.labels:
        known_labels = ", ".join(results.labels)
        notes.append(f"The baseline '{study.compare.baseline}' is not among the results: {known_labels}.")
    return replace(results, notes=tuple(notes))


def _merged(given: Scale, catalog: Scale) -> Scale:
    """The file's scale; the unit is the catalog's unless the file says another."""
    return Scale(given.random, given.reference, given.unit if given.unit != Scale.unit else catalog.unit)


def write(results: Results, name: str, to: Path) -> Report:
    """Write a report into a new folder below `to`; older ones are never touched."""
    with writing(to):
        folder = _new_folder(to)
        (folder / "figures").mkdir()
        figures = [
            (figure_name, caption, plots.save(figure, folder / "figures", figure_name))
            for figure_name, caption, figure in plots.all_figures(results)
        ]
        drawn, problems = _pictures(results, folder / "figures")
        every = summarise.all_tables(results)
        tables.write(every, folder / "tables")
        warnings = [*summarise.warnings(results), *problems]
        (folder / "index.html").write_text(_page(results, name, figures + drawn, every, warnings))
    return Report(folder, tuple(warnings), tuple(every))


def _pictures(results: Results, folder: Path) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Pictures of what was learned by the first seed of every algorithm on every task, and what kept some away."""
    known = {run.name: run for run in results.runs.folders}
    first = results.runs.alive.unique(["label", "task"], keep="first", maintain_order=True)
    groups = [(row["label"], row["task"], known[row["run"]], row["member"]) for row in first.iter_rows(named=True)]
    drawn: list[tuple[str, str, str]] = []
    problems: list[str] = []
    for name, caption, figure in pictures.of_groups(groups):
        if isinstance(figure, str):
            problems.append(figure)
        else:
            drawn.append((name, caption, plots.save(figure, folder, name)))
    return drawn, problems


def _new_folder(to: Path) -> Path:
    to.mkdir(parents=True, exist_ok=True)
    numbers = [int(match[1]) for path in to.iterdir() if (match := re.fullmatch(r"report-(\d+)", path.name))]
    number = max(numbers, default=0)
    while True:
        number += 1
        try:
            (to / f"report-{number}").mkdir()
        except FileExistsError:
            continue  # another process was faster
        return to / f"report-{number}"


def _page(
    results: Results,
    name: str,
    figures: Sequence[tuple[str, str, str]],
    every: Sequence[Table],
    warnings: Sequence[str],
) -> str:
    title = html.escape(f"Study {name}")
    boxes = "".join(f'<p class="warning">{html.escape(text)}</p>' for text in warnings)
    main = [table for table in every if table.name in ("final", "teams", "aggregate", "improvement")]
    rest = [table for table in every if table not in main]
    drawn = "".join(_figure(*figure) for figure in figures)
    sections = [
        f"<h1>{title}</h1><p>{_facts(results)}</p>{boxes}",
        f"<h2>Scores</h2>{''.join(table.to_html() for table in main)}",
        f"<h2>Figures</h2>{drawn}",
        f"<h2>More tables</h2>{''.join(table.to_html() for table in rest)}",
        f"<h2>Where it was made</h2>{_origins(results.runs.folders)}",
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<link rel="icon" href="data:,"><style>{_CSS}</style></head><body>{"".join(sections)}</body></html>\n'
    )


def _figure(name: str, caption: str, svg: str) -> str:
    links = " ".join(f'<a href="figures/{name}.{kind}">{kind}</a>' for kind in ("svg", "png", "pdf"))
    return f'<figure id="figure-{name}">{svg}<figcaption>{html.escape(caption)} {links}</figcaption></figure>'


def _facts(results: Results) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    seeds = sorted({len(cell.seeds) for cell in results.cells.values()})
    counts = [
        f"{len(results.labels)} algorithms",
        f"{len(results.tasks)} tasks",
        f"{'-'.join(map(str, seeds))} seeds each",
    ]
    return html.escape(
        f"{_VIEWS[results.view]}: {', '.join(counts)}; {len(results.runs.folders)} runs. Made {made} with Rookery "
        f"{rookery.__version__}. Compared with {results.baseline}."
    )


def _origins(folders: Sequence[RunFolder]) -> str:
    """Machines and versions that the runs were made with, each once."""
    found: dict[str, int] = {}
    for folder in folders[:200]:
        file = folder.path / "provenance.json"
        for entry in read_json(file)[-1:] if file.exists() else []:
            found[_origin(entry)] = found.get(_origin(entry), 0) + 1
    items = "".join(f"<li>{html.escape(text)}: {count} runs</li>" for text, count in found.items())
    cut = f"<p>From the first 200 of {len(folders)} runs.</p>" if len(folders) > 200 else ""
    return f"<ul>{items}</ul>{cut}"


def _origin(entry: Mapping[str, Any]) -> str:
    source, packages = entry.get("source") or {}, entry.get("packages", {})
    commit = f"commit {str(source.get('commit'))[:10]}{' (changed)' if source.get('dirty') else ''}" if source else ""
    versions = ", ".join(f"{name} {packages[name]}" for name in ("rookery", "jax", "jaxlib") if packages.get(name))
    machine = f"{entry.get('cpu')} x {entry.get('cores')}, Python {entry.get('python')}"
    return ", ".join(part for part in (versions, commit, machine) if part)
