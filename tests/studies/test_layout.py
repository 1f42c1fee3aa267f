"""Seeds together or apart: measured once, kept, and never changed under a run that was begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rookery.app import cli
from rookery.app.study_cli import StudyRun
from rookery.core.config import to_json
from rookery.core.errors import RunError
from rookery.studies import layout, plan
from rookery.studies.layout import Layout
from rookery.training.folder import RunFolder

Write = Callable[[str], Path]
STUDY = """
tasks = ["matrix/climbing"]
algorithms = [{ preset = "vdn", net.width = 8 }, { preset = "iql", net.width = 8 }]
seeds = 2
steps = 20_000
[evaluation]
points = 2
rows = 5
episodes = 4
final = 4
"""


def record(planned: plan.Planned, out: Path, together: float, apart: float) -> None:
    file = out / ".layouts" / f"{planned.folder(out).name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"together": together, "apart": apart, "cores": 2}))


def seeds_of(study: plan.Study) -> list[tuple[str, tuple[int, ...]]]:
    return [(run.label.split()[0], run.config.seeds) for run in study.runs]


def test_a_group_is_split_where_that_is_faster(study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    assert layout.laid_out(study, out) == study
    assert layout.unmeasured(study, out) == list(study.runs)
    vdn, iql = study.runs
    record(vdn, out, 100.0, 200.0)
    record(iql, out, 300.0, 200.0)
    assert seeds_of(layout.laid_out(study, out)) == [
        ("vdn", (0,)),
        ("vdn", (1,)),
        ("iql", (0, 1)),
    ]
    assert layout.unmeasured(study, out) == []


def test_swept_values_are_split_with_the_seeds(study_file: Write, tmp_path: Path) -> None:
    text = STUDY.replace(', { preset = "iql", net.width = 8 }', "").replace(
        'preset = "vdn"', 'preset = "vdn", sweep = { "optimiser.lr" = [1e-3, 2e-3] }'
    )
    study, out = plan.load(study_file(text)), tmp_path / "runs"
    (group,) = study.runs
    assert group.members == 4 and group.config.sweep
    record(group, out, 100.0, 200.0)
    apart = layout.laid_out(study, out).runs
    assert [(run.config.algo.optimiser.lr, run.config.seeds) for run in apart] == [
        (1e-3, (0,)),
        (1e-3, (1,)),
        (2e-3, (0,)),
        (2e-3, (1,)),
    ]
    assert not any(run.config.sweep for run in apart)
    assert len({run.label for run in apart}) == 2, "what was swept is in the labels"
    assert len({run.folder(out).name for run in apart}) == 4


def test_a_group_that_was_begun_together_stays_together(study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    vdn, iql = study.runs
    RunFolder.open_or_create(out, to_json(vdn.config), vdn.config.preset, vdn.config.task_name)
    assert layout.unmeasured(study, out) == [iql]
    record(vdn, out, 100.0, 200.0)
    assert layout.laid_out(study, out) == study


def test_a_layout_that_cannot_be_read_is_an_error(study_file: Write, tmp_path: Path) -> None:
    study, out = plan.load(study_file(STUDY)), tmp_path / "runs"
    record(study.runs[0], out, 1.0, 2.0)
    (file,) = (out / ".layouts").iterdir()
    file.write_text('{"together": 1.0}')
    with pytest.raises(RunError, match="is not a layout"):
        layout.laid_out(study, out)


def test_long_groups_are_measured_without_being_asked_for(
    study_file: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, out = study_file(STUDY.replace("20_000", f"{layout.LONG // 2:_}")), tmp_path / "runs"
    study = plan.load(file)
    assert StudyRun(file, out).to_measure(study) == list(study.runs)
    assert StudyRun(file, out, measure="never").to_measure(study) == []
    assert StudyRun(file, out, executor="slurm").to_measure(study) == [], "this machine may not be like those"
    assert cli.main(["study", "run", str(file), "--out", str(out), "--dry-run"]) == 0
    assert capfd.readouterr().out.count("to measure: ") == 2
    assert not out.exists()


def test_short_groups_are_measured_if_asked_for(study_file: Write, tmp_path: Path) -> None:
    file, out = study_file(STUDY), tmp_path / "runs"
    study = plan.load(file)
    assert StudyRun(file, out).to_measure(study) == []
    assert StudyRun(file, out, measure="always").to_measure(study) == list(study.runs)


def test_what_failed_to_be_measured_is_told(study_file: Write, tmp_path: Path) -> None:
    study = plan.load(study_file(STUDY))
    with pytest.raises(RunError, match=r"could not be measured: .*no such luck"):
        layout.measure(study.runs[0], tmp_path, ("-c", "raise SystemExit('no such luck')"), 1)
    assert not (tmp_path / ".layouts").exists()


def test_measured_for_real_then_trained_so(
    study_file: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, out = study_file(STUDY.replace(', { preset = "iql", net.width = 8 }', "")), tmp_path / "runs"
    (group,) = plan.load(file).runs
    found = layout.measure(group, out, ("-m", "rookery.app.speed"), 1, seconds=0.5)
    assert found.together > 0 and found.apart > 0
    assert layout.known_layout(group, out) == found
    assert cli.main(["study", "run", str(file), "--out", str(out), "--measure", "always"]) == 0
    text = capfd.readouterr().out
    assert found.text() in text
    assert "measuring" not in text, "it was measured before"
    runs = [path for path in out.iterdir() if not path.name.startswith(".")]
    assert len(runs) == (2 if found.is_apart else 1)
    assert cli.main(["study", "status", str(file), "--out", str(out), "--json"]) == 0
    assert {row["state"] for row in json.loads(capfd.readouterr().out)} == {"complete"}


def test_the_faster_way_wins() -> None:
    assert Layout(1.0, 2.0, 2).is_apart
    assert not Layout(2.0, 2.0, 2).is_apart
    assert "a process for each member: 1,000 steps/s together, 2,000 apart on 2 cores" in Layout(1e3, 2e3, 2).text()
