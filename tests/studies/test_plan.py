"""Study files: what grid they mean, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rookery.core.errors import ConfigError
from rookery.studies import plan

Write = Callable[[str], Path]
SMALL = 'tasks = ["matrix/climbing"]\nalgorithms = ["vdn"]\n'


def test_grid_is_algorithms_times_tasks_times_seed_groups(study_file: Write) -> None:
    study = plan.load(
        study_file(
            """
            tasks = ["matrix/climbing", { name = "maze/static", height = 5, steps = 100 }]
            algorithms = ["vdn", { preset = "qmix", mixer.embed = 16 }]
            seeds = [[0, 1], [2]]
            steps = 2e3
            [evaluation]
            points = 4
            """
        )
    )
    shown = [(run.label, run.task, run.config.seeds, run.config.steps) for run in study.runs]
    assert shown[:2] == [("vdn", "matrix/climbing", (0, 1), 2000), ("vdn", "matrix/climbing", (2,), 2000)]
    assert shown[-1] == ("qmix mixer.embed=16", "maze/static height=5", (2,), 100)
    assert len(study.runs) == 8
    assert study.name == "study"
    assert {run.config.evaluation.points for run in study.runs} == {4}
    assert len({run.folder(Path("runs")).name for run in study.runs}) == 8


def test_vary_makes_a_run_of_each_combination(study_file: Write) -> None:
    text = 'tasks = ["matrix/climbing"]\n[[algorithms]]\npreset = "vdn"\n'
    study = plan.load(study_file(text + "vary.optimiser.lr = [1e-3, 1e-4]\nvary.double = [true, false]"))
    assert len({run.label for run in study.runs}) == 4
    assert {run.config.algo.optimiser.lr for run in study.runs} == {1e-3, 1e-4}


def test_sweep_stays_one_run_with_more_members(study_file: Write) -> None:
    text = 'tasks = ["matrix/climbing"]\nseeds = 3\n[[algorithms]]\npreset = "vdn"\nsweep.optimiser.lr = [1e-3, 1e-4]'
    (run,) = plan.load(study_file(text)).runs
    assert run.members == 6
    assert run.label == "vdn optimiser.lr=*"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + "sedes = 3", "no such entry as 'sedes'. Did you mean 'seeds'"),
        ('algorithms = ["vdn"]', "tasks: expected a list"),
        (SMALL.replace("vdn", "vnd"), "unknown preset in algorithms[0]: 'vnd'. Did you mean 'vdn'"),
        (SMALL.replace("climbing", "climing"), "Did you mean 'matrix/climbing'"),
        (SMALL.replace('"vdn"', '{ preset = "vdn", gama = 0.5 }'), "algorithms[0]: gama: there is no such entry"),
        (SMALL.replace('"vdn"', '{ preset = "vdn", gamma = "high" }'), "gamma: expected a number"),
        (SMALL.replace('"vdn"', '"vdn", "vdn"'), "is the same run as"),
        (SMALL.replace('"vdn"', '{ preset = "vdn", vary = { gamma = 1 } }'), "expected a list of values"),
        (SMALL.replace('"vdn"', '{ preset = "vdn", sweep = { batch = [1] } }'), "algo.batch"),
        (SMALL + "seeds = 0", "seeds: expected a count"),
        (SMALL + "seeds = [[0, 1], [1]]", "every seed may be named once"),
        (SMALL + 'steps = "many"', "steps: expected an integer"),
        (SMALL + "[evaluation]\npoint = 3", "evaluation.point: there is no such entry. Did you mean 'points'?"),
        (SMALL + '[compare]\nview = "ablations"', "compare.view: expected one of"),
        (SMALL + '[compare]\nbaseline = "qmix"', "compare.baseline: no algorithm 'qmix'"),
        (SMALL + '[scale."matrix/penalty_0"]\nrandom = 0', "scale: there is no such entry"),
        (SMALL.replace("matrix/climbing", "mpe/simple_tag"), "vdn on mpe/simple_tag:"),
        ("tasks = [", "is not TOML"),
    ],
)
def test_mistakes_are_config_errors(study_file: Write, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan.load(study_file(text))
    assert message in str(error.value)


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        plan.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("entry", "groups"),
    [
        ("seeds = 2  # few\n", ((0, 1), (2, 3, 4))),
        ("seeds = [\n  3,\n  7,\n]  # few\n", ((3, 7), (8, 9, 10))),
        ("", ((0, 1, 2, 3, 4), (5, 6, 7))),
    ],
)
def test_add_seeds_adds_a_group_and_leaves_the_rest(study_file: Write, entry: str, groups: object) -> None:
    rest = '# a comment\ntasks = ["matrix/climbing"]\nalgorithms = ["vdn"]\n'
    file = study_file(rest + entry + "[evaluation]\npoints = 3\n")
    before = plan.load(file)
    after = plan.add_seeds(file, 3)
    assert after.groups == groups
    assert set(before.runs) < set(after.runs)
    text = file.read_text()
    assert rest in text
    assert ("# few" in text) == ("# few" in entry)
    assert text.endswith("[evaluation]\npoints = 3\n")


def test_add_seeds_refuses_nothing_to_add(study_file: Write) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        plan.add_seeds(study_file(SMALL), 0)
