"""The benchmarks run: each says what it needs, one measurement is taken (what it comes to is not tested), and the
tables of docs/performance.md and docs/costs.md are what was measured."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = ["atari", "continuous", "host", "hyper", "maddpg", "maze", "mechanisms", "memory", "originals", "peers"]
SCRIPTS += ["policy_change", "scaling", "scripted", "studies_scale", "tables", "time_to_score", "torch_peers"]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a script in this process, which has imported what most of them need."""
    monkeypatch.syspath_prepend(FOLDER)

    def run(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"benchmarks/{script}.py", *arguments])
        runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_says_how_it_is_used(
    script: str, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        said(script, "--help")
    assert f"benchmarks/{script}.py" in capsys.readouterr().out.partition("usage:")[2].partition("\n\n")[2]


def test_all_benchmarks_are_known_here() -> None:
    sides = {"jaxmarl_side", "sb3_side", "torch_side"}  # started by the others, in interpreters that are not ours
    sides |= {"sb3_atari_side", "random_play"}  # the last is imported by the runs of another
    assert {file.stem for file in FOLDER.glob("*.py")} == {*SCRIPTS, *sides, "common"}


def test_a_rate_is_measured_after_learning_has_begun() -> None:
    request = {"preset": "vdn", "task": "matrix/climbing", "seconds": 0.1, "iterations": 2, "algo.collect.envs": 32}
    # A process of its own: it claims devices and counts its memory.
    command = [sys.executable, str(FOLDER / "scaling.py"), "--work", json.dumps(["rate", request])]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["steps_per_second"] > 0 and found["peak_mib"] > 0


def test_scripted_players_do_better_with_what_they_are_told(said: Callable[..., str]) -> None:
    tasks = ("mpe/simple_spread", "mpe/simple_speaker_listener")
    lines = said("scripted", *tasks, "--episodes", "200").splitlines()
    score = {line.split(": ")[0].split(", ")[1]: float(line.split(": ")[1].split()[0]) for line in lines}
    assert score["each to a landmark"] > -10 and score["to the right landmark"] > -10 > score["to the middle"]


RECORD = {"machine": "a machine", "commit": "abc1234", "command": "python benchmarks/x.py"}
_BESIDE = [{"name": "C", "peer": "them", "ours": 21352, "theirs": 4696, "ratio": 4.55, "rounds": {}}]
_PLAIN = [{"way": "by hand", "ms": 7.5, "share": 0.4}]
_READS = {"tables": 1, "keys": 100_000, "blocks, ms": 4.6, "top_k, ms": 9, "approx, ms": 3, "approx, recall": 0.9}
MEASURED: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("sb3", "epymarl", "atari", "maddpg", "atari_learning"), _BESIDE),
    **dict.fromkeys(("atari_memory", "atari_convolution", "hyper_presets", "hyper_forms"), _PLAIN),
    "memory_reads": [{**_READS, "batch": batch, "Nature CNN, ms": 4.4} for batch in (1, 16)],
    "peers": [
        {
            "case": "A",
            "side": "ours",
            "steps_per_second": 7504.6,
            "compile_cold": 4.0,
            "ready_cold": 5,
            "peak_mib": 100,
        },
        {
            "case": "A",
            "side": "jaxmarl",
            "steps_per_second": 2845,
            "compile_cold": 2.0,
            "ready_cold": 6,
            "peak_mib": 150,
        },
    ],
    "time_to_score": [
        {"task": "smax/3m", "goal": 0.9, "side": "mappo", "seed": 0, "seconds": 24.4, "steps": 9, "score": 0.91},
        {"task": "smax/3m", "goal": 0.9, "side": "jaxmarl", "seed": 0, "seconds": None, "steps": 9, "score": 0.81},
        {"task": "smax/3m", "goal": 0.9, "side": "mappo", "seed": 1, "seconds": 30.0, "steps": 9, "score": 0.93},
        {"task": "mpe/simple", "goal": -13.9, "side": "mappo", "seed": 0, "seconds": None, "steps": 9, "score": -15.06},
    ],
    "torch_peers": [{"case": "B", "theirs": 502, "one shard": 8463, "two shards": 9228}],
    "shards": [
        {"preset": "mappo", "task": "smax/3m", "way": way, "steps_per_second": rate}
        for way, rate in (("1 shard", 54444), ("2 shards", 89499))
    ],
    "mechanisms": [
        {"task": "t", "side": "qmix", "ms per gradient step": 8.204, "against": "qmix", "ratio": 1.0},
        {"task": "t", "side": "qmix, priorities", "ms per gradient step": 8.44, "against": "qmix", "ratio": 1.03},
    ],
}
_BESIDE_TABLE = """\
| setting | peer | Rookery, steps/s | peer, steps/s | ratio |
|---|---|---:|---:|---:|
| C | them | 21,400 | 4,700 | 4.55 |
"""
_PLAIN_TABLE = """\
| way | ms | share |
|---|---:|---:|
| by hand | 7.5 | 0.4 |
"""
WRITTEN = {
    **dict.fromkeys(("sb3", "epymarl", "atari", "maddpg", "atari_learning"), _BESIDE_TABLE),
    **dict.fromkeys(("atari_memory", "atari_convolution", "hyper_presets", "hyper_forms"), _PLAIN_TABLE),
    "memory_reads": """\
| tables | keys in each | exact, in blocks, ms | top_k, ms | approx_max_k, ms | its recall | Nature CNN, ms |
|---|---:|---:|---:|---:|---:|---:|
| 1 | 100,000 | 4.6 | 9 | 3 | 0.9 | 4.4 |
""",
    "peers": """\
| case | Rookery, steps/s | JaxMARL, steps/s | ratio | compiling, cold | start, cold | peak memory |
|---|---:|---:|---:|---:|---:|---:|
| A | 7,505 | 2,845 | 2.64 | 0.50 | 1.20 | 1.50 |
""",
    "time_to_score": """\
| score | seed | `mappo` | JaxMARL |
|---|---:|---:|---:|
| smax/3m, 90% | 0 | 24 | (81%) |
| | 1 | 30 | |
| mpe/simple, -13.9 | 0 | (-15.1) | |
""",
    "torch_peers": """\
| settings | theirs | ours, one shard | ratio | ours, two shards | ratio |
|---|---:|---:|---:|---:|---:|
| B | 502 | 8,460 | 16.9 | 9,230 | 18.4 |
""",
    "shards": """\
| | 1 shard | 2 shards |
|---|---:|---:|
| `mappo`, smax/3m | 54,400 | 89,500 |
""",
    "mechanisms": """\
| | builds on | t, ms | ratio |
|---|---|---:|---:|
| `qmix` | | 8.2 | |
| `qmix`, priorities | `qmix` | 8.44 | 1.03 |
""",
}


def test_tables_are_written_from_what_was_measured(tmp_path: Path) -> None:
    """Every table of the pages, and nothing else of them, is what the rows say; twice is once."""
    tables = runpy.run_path(str(FOLDER / "tables.py"))
    assert set(MEASURED) == set(WRITTEN) == set(tables["LAYOUTS"])
    found = {name: RECORD | {"rows": rows} for name, rows in MEASURED.items()}
    source = "a machine; commit `abc1234`; `python benchmarks/x.py`\n"
    between = re.compile(r"(<!-- table \w+ -->\n).*?(?=<!-- end -->)", re.DOTALL)
    placed = []
    for path in tables["PAGES"]:
        page = path.read_text()
        now, homeless = tables["rewrite"](page, found | {"growth": RECORD | {"rows": []}})
        here = [name for name in found if name not in homeless]
        for name in here:
            assert f"<!-- table {name} -->\n{WRITTEN[name]}\n{source}<!-- end -->\n" in now
        assert between.sub(r"\1", now) == between.sub(r"\1", page) and tables["rewrite"](now, found)[0] == now
        placed += here
    assert sorted(placed) == sorted(MEASURED)  # every table has one place


def test_a_file_keeps_its_other_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/benchmarks/peers.py", "--jaxmarl", "/home/me/JaxMARL"])
    common, out = runpy.run_path(str(FOLDER / "common.py")), tmp_path / "new" / "found.json"
    for name, count in (("a", 1), ("b", 2), ("a", 3)):
        common["save"](out, name, [{"count": count}])
    found = json.loads(out.read_text())
    assert [found[name]["rows"] for name in ("a", "b")] == [[{"count": 3}], [{"count": 2}]]
    assert found["a"]["command"] == "python benchmarks/peers.py --jaxmarl JaxMARL"
    assert found["a"]["commit"] and "jax" in found["a"]["machine"]
