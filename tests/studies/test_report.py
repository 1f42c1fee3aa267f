"""Reports: what they say, what they warn of, and that a browser shows them."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from rookery.app.study_cli import catalog_scales
from rookery.core.registry import PRESETS
from rookery.studies import export, plots, report, results, summarise
from rookery.studies.plan import Compare, Scale
from rookery.studies.read import open_runs
from rookery.studies.tables import Table
from rookery.training.folder import RunFolder

Make = Callable[..., RunFolder]
RNG = np.random.default_rng(3)
FIVE = (0, 1, 2, 3, 4)
TEN = tuple(range(10))


def climb(to: float, seeds: int = 5) -> np.ndarray:
    """Curves from the random score to about `to`."""
    return np.linspace(-3.4, to, 6) + RNG.normal(0, 0.5, size=(seeds, 6))


def gather(*folders: RunFolder, **compare: Any) -> results.Results:
    return results.collect(open_runs(folders), Compare(resamples=200, **compare), catalog_scales())


@pytest.fixture
def two(make_run: Make) -> list[RunFolder]:
    return [make_run(climb(9), "qmix", seeds=FIVE), make_run(climb(5), "vdn", seeds=FIVE)]


def table(found: results.Results, name: str) -> list[dict[str, Any]]:
    (one,) = (table for table in summarise.all_tables(found) if table.name == name)
    return [dict(zip(one.columns, row, strict=True)) for row in one.rows]


def test_tables_hold_the_numbers_of_the_folders(two: list[RunFolder]) -> None:
    found = gather(*two)
    finals = two[0].final()
    mean = finals.filter(finals["which"] == "best")["score"].mean()
    row = table(found, "final")[0]
    assert row["algorithm"] == "qmix"
    assert row["mean"] == pytest.approx(mean)
    assert row["low"] <= row["IQM"] <= row["high"]
    assert row["unit"] == "return of an episode, mean over agents"
    assert [r["steps"] for r in table(found, "steps")] == [250, 500, 1000] * 2
    assert table(found, "improvement")[0]["P(X > Y)"] == 0
    assert table(found, "compute")[0]["seconds"] == 5
    assert table(found, "aggregate")[0]["tasks"] == 1
    efficient = table(found, "efficiency")
    assert efficient[0]["median steps"] < efficient[1]["median steps"]
    assert efficient[0]["score to reach"] == pytest.approx((-31 / 9 + 11) / 2)


def test_updates_of_reconstruction_are_part_of_what_was_spent(make_run: Make, two: list[RunFolder]) -> None:
    assert "reconstruction updates" not in table(gather(*two), "compute")[0]
    memory = make_run(climb(9), "gbmr", seeds=FIVE, metrics={"reconstruction_updates": 7.0})
    rows = table(gather(*two, memory), "compute")
    assert {row["algorithm"]: row["reconstruction updates"] for row in rows} == {"qmix": 0, "vdn": 0, "gbmr": 35}


def test_curves_are_straight_between_evaluations(make_run: Make) -> None:
    found = gather(make_run([[0.0, 10.0], [2.0, 4.0]]), at=(500,))
    assert table(found, "steps")[0]["IQM"] == pytest.approx((5 + 3) / 2)


@pytest.mark.parametrize(("threshold", "median"), [(0.9, float("inf")), (0.0, 0.0)])
def test_a_seed_that_never_gets_there_counts_as_never(make_run: Make, threshold: float, median: float) -> None:
    found = gather(make_run([[0.0, 1.0], [0.0, 1.0]]), threshold=threshold)
    assert table(found, "efficiency")[0]["median steps"] == median


def test_a_task_without_reference_is_not_normalised(make_run: Make) -> None:
    runs = open_runs([make_run(climb(3), seeds=FIVE)])
    found = results.collect(runs, Compare(resamples=10), {"matrix/climbing": Scale(0.0, float("nan"), "points")})
    names = [table.name for table in summarise.all_tables(found)]
    assert "final" in names
    assert "aggregate" not in names
    assert "efficiency" not in names


def test_a_mechanism_that_never_ran_is_flagged(make_run: Make) -> None:
    scores = climb(5)
    off, on = make_run(scores, seeds=FIVE), make_run(scores, seeds=FIVE, algo=replace(PRESETS["vdn"], gamma=0.5))
    found = gather(off, on)
    assert len(found.twins) == 5
    assert all(twins.training for twins in found.twins)
    assert "What differs never ran" in summarise.warnings(found)[0]
    assert "gamma=0.5" in summarise.warnings(found)[0]


def test_equal_scores_of_different_training_are_flagged_as_such(make_run: Make) -> None:
    scores = climb(5)
    other = make_run(scores, "qmix", seeds=FIVE, metrics={"loss": 3.0})
    found = gather(make_run(scores, seeds=FIVE), other)
    assert len(found.twins) == 5
    assert not any(twins.training for twins in found.twins)


def test_flat_curves_and_different_runs_are_not_flagged(make_run: Make, two: list[RunFolder]) -> None:
    assert not gather(*two).twins
    flat = np.zeros((5, 4))
    found = gather(make_run(flat, "iql", seeds=FIVE), make_run(flat, "mappo", seeds=FIVE, metrics={"loss": 1.0}))
    assert not [twins for twins in found.twins if len({label for label, _ in twins.members}) > 1]


def test_a_seed_that_was_ignored_is_flagged(make_run: Make) -> None:
    found = gather(make_run(np.repeat(climb(5, 1), 5, axis=0), seeds=FIVE))
    assert found.twins[0].members == tuple(("vdn", seed) for seed in FIVE)


def test_a_quantity_that_is_always_zero_is_flagged(make_run: Make) -> None:
    found = gather(make_run(climb(5), seeds=FIVE, metrics={"share/received": 0.0}))
    assert "Always 0: share/received of vdn on matrix/climbing." in summarise.warnings(found)


def test_a_check_that_is_always_zero_is_as_it_should_be(make_run: Make) -> None:
    found = gather(make_run(climb(5), seeds=FIVE, metrics={"check/ratio": 0.0}))
    assert not [x for x in summarise.warnings(found) if x.startswith("Always 0")]


def test_few_seeds_are_written_into_every_figure(make_run: Make) -> None:
    few = gather(make_run(climb(5, 2)), make_run(climb(5, 2), "qmix"))
    assert any("fewer than 10" in warning for warning in summarise.warnings(few))
    nine, ten = (gather(make_run(climb(5, n), "iql", seeds=TEN[:n])) for n in (9, 10))
    assert any("Only 9 seeds" in warning for warning in summarise.warnings(nine))
    assert not any("seeds" in warning for warning in summarise.warnings(ten))
    drawn = {name: figure for name, _, figure in plots.all_figures(few)}
    assert {"curves", "clock", "final", "improvement", "aggregate", "profile"} <= set(drawn)
    assert all("fewer than 10" in figure.get_suptitle() for figure in drawn.values())
    assert not any(figure.get_suptitle() for _, _, figure in plots.all_figures(ten))


def test_every_axis_has_a_unit(two: list[RunFolder]) -> None:
    for name, _, figure in plots.all_figures(gather(*two)):
        words = [axis.get_xlabel() for axis in figure.axes] + [figure.get_supxlabel()]
        assert any(words), name
        if name in ("curves", "clock"):
            assert "mean over agents" in figure.axes[0].get_ylabel()


def test_atari_scores_stand_beside_their_protocol(make_run: Make, two: list[RunFolder], tmp_path: Path) -> None:
    """Sticky actions, life loss and clipping change scores, and budgets are counted in frames: 1,000 steps here."""
    pytest.importorskip("ale_py")
    ids = ["atari:Pong", "atari:ALE/Pong-v5", "atari:PongNoFrameskip-v4"]
    games = [make_run(climb(5), "dqn_atari", task=name, seeds=FIVE) for name in ids]
    found = gather(*games, two[0])
    rows = {row["task"]: row for row in table(found, "final")}
    assert [rows[name]["frames"] for name in ids] == [4000, 4000, 1000]
    assert [rows[name]["sticky actions"] for name in ids] == [0.0, 0.25, 0.0]
    assert {(rows[name]["life loss"], rows[name]["clipped rewards"]) for name in ids} == {("no", "yes")}
    other = rows["matrix/climbing"]
    assert all(other[name] is None for name in ("frames", "sticky actions", "life loss", "clipped rewards"))
    at = [row for row in table(found, "steps") if row["task"] == ids[0]]
    assert [row["frames"] for row in at] == [4 * row["steps"] for row in at] == [1000, 2000, 4000]
    drawn = {name: figure for name, _, figure in plots.all_figures(found)}
    # Tasks on which a step is one frame have no curve of their own there.
    assert [axis.get_title() for axis in drawn["frames"].axes] == ids[:2]
    assert drawn["frames"].axes[0].lines[0].get_xdata()[-1] == 4000
    # Where no task has a protocol, tables and figures are as they were.
    plain = gather(*two)
    assert "frames" not in table(plain, "final")[0] and "frames" not in [name for name, *_ in plots.all_figures(plain)]
    export.export(games[:2], "csv", tmp_path / "csv")
    finals = pl.read_csv(tmp_path / "csv" / "final.csv")
    assert set(finals["sticky actions"]) == {0.0, 0.25} and set(finals["clipped rewards"]) == {True}


@pytest.mark.parametrize("view", ["auto", "ablation", "algorithms", "screening"])
def test_views(make_run: Make, view: Any) -> None:
    varied = make_run(climb(7), seeds=FIVE, algo=replace(PRESETS["vdn"], gamma=0.5))
    found = gather(make_run(climb(5), seeds=FIVE), varied, view=view)
    assert found.view == ("ablation" if view == "auto" else view)
    first = next(iter(plots.all_figures(found)))[0]
    assert first == ("aggregate" if view == "screening" else "curves")


def test_many_tasks_are_a_screening(make_run: Make) -> None:
    folders = [make_run(climb(5), task=task, seeds=FIVE) for task in ("matrix/climbing", "matrix/penalty_0")]
    assert gather(*folders).view == "screening"
    assert "heatmap" in [name for name, _, _ in plots.all_figures(gather(*folders))]


def test_incomplete_runs_are_shown_and_named(make_run: Make, two: list[RunFolder]) -> None:
    half = make_run(climb(5), "iql", seeds=FIVE, state="running")
    warnings = summarise.warnings(gather(*two, half))
    assert any("Not complete" in warning and "iql" in warning for warning in warnings)


def test_reports_never_overwrite_each_other(two: list[RunFolder], tmp_path: Path) -> None:
    found = gather(*two)
    first, second = (report.write(found, "pair", tmp_path / "reports") for _ in range(2))
    assert (first.folder.name, second.folder.name) == ("report-1", "report-2")
    names = {path.relative_to(first.folder).as_posix() for path in first.folder.rglob("*") if path.is_file()}
    for figure in ("curves", "clock", "final", "improvement", "profile", "aggregate"):
        assert {f"figures/{figure}.{kind}" for kind in ("svg", "png", "pdf")} <= names
    assert {f"tables/final.{kind}" for kind in ("csv", "md", "tex")} | {"tables/tables.xlsx", "index.html"} <= names
    with (first.folder / "tables" / "final.csv").open() as file:
        assert float(next(csv.DictReader(file))["IQM"]) == pytest.approx(table(found, "final")[0]["IQM"])
    with zipfile.ZipFile(first.folder / "tables" / "tables.xlsx") as book:
        assert "final" in book.read("xl/workbook.xml").decode()


def test_labels_are_escaped_where_they_would_be_markup() -> None:
    one = Table("t", "T", "n", ("a_b", "c"), (("x<y|z_1", 1.5), ("never", float("inf")), ("?", float("nan"))))
    assert "x&lt;y|z_1" in one.to_html()
    assert r"x<y\|z_1" in one.to_markdown()
    assert r"a\_b" in one.to_latex()
    assert one.to_csv().splitlines()[3] == "?,"
    assert "| never | never |" in one.to_markdown()


class Page(HTMLParser):
    """What a page holds, and whether its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "link") else [tag]
        if tag != "a":
            links = ("src", "href", "xlink:href")
            self.loaded += [value or "" for name, value in attrs if name in links]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            if self.open and self.open[-1] != "p":
                raise AssertionError(f"</{tag}> closes nothing")


@pytest.fixture
def page(two: list[RunFolder], tmp_path: Path) -> Path:
    return report.write(gather(*two), "pair", tmp_path / "reports").page


def test_the_page_asks_for_nothing_outside_itself(page: Path) -> None:
    parsed = Page()
    parsed.feed(page.read_text())
    assert not parsed.open
    assert parsed.tags.count("svg") == 6
    assert all(link.startswith(("#", "data:")) for link in parsed.loaded)
    ids = [part.split('"')[0] for part in page.read_text().split(' id="')[1:]]
    assert len(ids) == len(set(ids))


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",  # where the console's messages go
    "--virtual-time-budget=5000",
]
# Runs in the page's frame: which figures have a size, what tables say.
PROBE = """<script>addEventListener("load", () => {
  const frame = document.createElement("iframe");
  frame.width = 1200; frame.height = 4000; frame.srcdoc = PAGE;
  frame.onload = () => {
    const inside = frame.contentDocument;
    const size = (svg) => [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height];
    const drawn = (svg) => svg.querySelectorAll("path").length;
    const found = {
      figures: [...inside.querySelectorAll("figure svg")].map((svg) => [...size(svg), drawn(svg)]),
      final: [...inside.querySelectorAll("#table-final tbody tr")].map((tr) => tr.innerText.split("\\t")),
    };
    document.body.innerText = "FOUND" + JSON.stringify(found) + "END";
  };
  document.body.appendChild(frame);
})</script>"""


def test_a_browser_shows_the_page(page: Path, tmp_path: Path) -> None:
    if CHROMIUM is None:
        print("no chromium is installed: the page was checked by a parser only")
        return
    probe = tmp_path / "probe.html"
    text = json.dumps(page.read_text()).replace("</", "<\\/")
    probe.write_text(f"<!doctype html><html><head>{PROBE.replace('PAGE', text)}</head><body></body></html>")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    for target in (page, probe):
        ran = subprocess.run(
            [CHROMIUM, *FLAGS, profile, "--dump-dom", target.as_uri()], capture_output=True, text=True, timeout=120
        )
        assert "CONSOLE" not in ran.stderr, ran.stderr
        assert "<html" in ran.stdout, ran.stderr
    found = json.loads(ran.stdout.rpartition("FOUND")[2].partition("END")[0].replace("&gt;", ">").replace("&lt;", "<"))
    assert len(found["figures"]) == 6
    assert all(width > 100 and height > 50 and paths > 5 for width, height, paths in found["figures"])
    assert [row[1] for row in found["final"]] == ["qmix", "vdn"]
