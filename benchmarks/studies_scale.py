"""How studies bear many runs: synthetic run folders of 1,000 evaluations each, then plan, status, report and compare.

    python benchmarks/studies_scale.py --runs 10000 --folder FOLDER [--out FILE]

The folders are made once and used again. Prints one JSON object: seconds of each stage (wall-clock, processor), and
peak memory. "first read" reads the digests in the run folders, later reads find them in shards; "digest one run" is
what a run pays for that when it completes.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from common import add_out, save

from rookery.app.options import load_registries
from rookery.app.study_cli import catalog_scales
from rookery.core.config import to_json
from rookery.studies import plan, read, report, schedule
from rookery.studies.compare import compare
from rookery.training import digest
from rookery.training.folder import KINDS, RunFolder

POINTS, EPISODES = 1000, 4
STUDY = """
tasks = ["matrix/climbing", "matrix/penalty_0", "matrix/penalty_25", "matrix/penalty_50", "matrix/penalty_100"]
seeds = {seeds}
steps = 1_000_000
[[algorithms]]
preset = "qmix"
vary = {{ "optimiser.lr" = [1e-4, 2e-4, 3e-4, 4e-4, 6e-4] }}
[[algorithms]]
preset = "mappo"
vary = {{ "optimiser.lr" = [1e-4, 2e-4, 3e-4, 4e-4, 6e-4] }}
[evaluation]
points = 1000
rows = 1
"""
CELLS = 50  # algorithms x tasks


def make(folder: Path, runs: int) -> Path:
    """A study file and the folders of its runs."""
    file = folder / "scale.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(STUDY.format(seeds=[[seed] for seed in range(max(1, runs // CELLS))]))
    study = plan.load(file)
    rng = np.random.default_rng(0)
    for run in study.runs:
        path = run.folder(folder / "runs").path
        if not path.exists():
            _write_run(path, to_json(run.config), rng)
    return file


def _write_run(path: Path, config: Any, rng: np.random.Generator) -> None:
    """A complete run. Whole columns in one part: what reports read is the digest, whatever the number of parts."""
    steps = np.arange(POINTS) * 1000
    scores = np.clip(np.cumsum(rng.normal(0.01, 0.1, POINTS)), -5, 10)
    identity = {"member": 0, "seed": config["seeds"][0]}
    episodes = pl.DataFrame(
        {
            "chunk": np.repeat(np.arange(POINTS), EPISODES),
            "steps": np.repeat(steps, EPISODES),
            "score": (np.repeat(scores, EPISODES) + rng.normal(0, 0.1, POINTS * EPISODES)).astype(np.float32),
        }
    ).with_columns(**{name: pl.lit(value) for name, value in identity.items()})
    frames = {
        "evaluations": episodes,
        "timing": pl.DataFrame({"chunk": np.arange(1, POINTS), "seconds": rng.random(POINTS - 1), "steps": 1000}),
        "metrics": pl.DataFrame(
            {"chunk": np.arange(1, POINTS), "steps": steps[1:], "loss": rng.random(POINTS - 1)}
        ).with_columns(**{name: pl.lit(value) for name, value in identity.items()}),
        "final": episodes.tail(EPISODES).with_columns(which=pl.lit("best")),
    }
    for kind, frame in frames.items():
        (path / kind).mkdir(parents=True)
        frame.write_parquet(path / kind / "part-00000000.parquet")
    (path / "config.json").write_text(json.dumps(config))
    digest.write(RunFolder(path))
    (path / "status.json").write_text(json.dumps({"state": "complete", "progress": 1.0}))


def _many_parts(source: RunFolder, folder: Path, parts: int = 100) -> RunFolder:
    """A copy of a run with as many parts as training writes."""
    shutil.rmtree(folder, ignore_errors=True)
    for kind in KINDS:
        frame = source.scan(kind).collect()
        (folder / kind).mkdir(parents=True)
        for i, part in enumerate(frame.iter_slices(max(1, -(-frame.height // parts)))):
            part.write_parquet(folder / kind / f"part-{i:08d}.parquet")
    return RunFolder(folder)


def main() -> None:
    """Make the folders, then time every stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--folder", type=Path, required=True)
    add_out(parser)
    given = parser.parse_args()
    load_registries()
    file = make(given.folder, given.runs)
    out, scales, seconds = given.folder / "runs", catalog_scales(), {}

    def timed(name: str, action: Any) -> Any:
        start, used = time.perf_counter(), time.process_time()
        result = action()
        seconds[name] = [round(time.perf_counter() - start, 2), round(time.process_time() - used, 2)]
        return result

    study = timed("plan", lambda: plan.load(file))
    timed("status", lambda: schedule.survey(study, out))
    folders = [run.folder(out) for run in study.runs]
    shutil.rmtree(out / ".digest", ignore_errors=True)
    one = _many_parts(folders[0], given.folder / "one")
    timed("digest one run", lambda: digest.write(one))
    timed("first read", lambda: read.open_runs(folders))
    results = timed("read results", lambda: report.study_results(study, out, scales))
    timed("write report", lambda: report.write(results, "scale", given.folder / "reports"))
    timed("compare 10 runs", lambda: compare(folders[:: max(1, len(folders) // 10)][:10], scales))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"runs": len(folders), "points": POINTS, "seconds": seconds, "peak MiB": peak}, indent=2))
    rows = [{"runs": len(folders), "stage": name, "seconds": wall, "cpu": cpu} for name, (wall, cpu) in seconds.items()]
    save(given.out, "studies", rows)


if __name__ == "__main__":
    main()
