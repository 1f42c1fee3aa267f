"""Study files, and run folders that no training made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from rookery.app.options import load_registries
from rookery.core.config import to_json
from rookery.core.registry import PRESETS, find_task
from rookery.training.config import RunConfig, Sweep
from rookery.training.folder import RunFolder, write_json

Make = Callable[..., RunFolder]


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    load_registries()


@pytest.fixture(autouse=True)
def threads_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who start processes decide about threads, not who runs the tests."""
    monkeypatch.delenv("NPROC", raising=False)


@pytest.fixture
def study_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a study file."""

    def write(text: str) -> Path:
        file = tmp_path / "study.toml"
        file.write_text(text)
        return file

    return write


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """Writes the folder of a run with given scores [member, point]."""

    def make(
        scores: Any,
        preset: str = "vdn",
        task: str = "matrix/climbing",
        seeds: Sequence[int] = (0, 1),
        algo: Any = None,
        metrics: Mapping[str, Any] | None = None,
        sweep: tuple[Sweep, ...] = (),
        state: Any = "complete",
        out: Path | None = None,
        failed: Mapping[int, int] | None = None,
        **changes: Any,
    ) -> RunFolder:
        config = RunConfig(
            preset, task, algo or PRESETS[preset], find_task(task), steps=1000, seeds=tuple(seeds), sweep=sweep
        )
        config = replace(config, **changes)
        folder = RunFolder.open_or_create(out or tmp_path / "runs", to_json(config), preset, task)
        fill(folder, np.asarray(scores, float), seeds, metrics or {}, state, failed or {})
        return folder

    return make


def fill(
    folder: RunFolder,
    scores: np.ndarray,
    seeds: Sequence[int],
    metrics: Mapping[str, Any],
    state: Any,
    failed: Mapping[int, int],
) -> None:
    """Evaluations at even steps, a second and a chunk apart, two episodes each; `failed` members end at a chunk."""
    members, points = scores.shape
    if failed:
        found = [{"member": m, "step": 100 * chunk, "metric": "loss"} for m, chunk in failed.items()]
        write_json(folder.path / "failures.json", found)
    steps = np.linspace(0, 1000, points).astype(int)
    for chunk in range(points):
        rows = [
            {
                "member": m,
                "seed": seeds[m % len(seeds)],
                "chunk": chunk,
                "steps": steps[chunk],
                "episode": episode,
                "score": scores[m, chunk] + wobble,
                "return_mean": scores[m, chunk] + wobble,
                "return_sum": 2 * (scores[m, chunk] + wobble),
                "length": 1,
                "success": 0.0,
            }
            for m in range(members)
            if chunk < failed.get(m, points)
            for episode, wobble in enumerate((-0.5, 0.5))
        ]
        folder.write_part("evaluations", chunk, pl.DataFrame(rows))
        if chunk:
            folder.write_part("timing", chunk, pl.DataFrame({"chunk": [chunk], "seconds": [1.0], "steps": [100]}))
            measured = {"loss": scores[:, chunk] ** 2, **metrics}
            identity = {"member": range(members), "seed": [seeds[m % len(seeds)] for m in range(members)]}
            frame = pl.DataFrame({**identity, "chunk": [chunk] * members, "steps": [int(steps[chunk])] * members})
            frame = frame.with_columns(**{k: _column(v) for k, v in measured.items()})
            gone = [m for m, end in failed.items() if chunk >= end]
            folder.write_part("metrics", chunk, frame.filter(~pl.col("member").is_in(gone)))
    if state == "complete":
        last = folder.evaluations().filter(pl.col("chunk") == points - 1).drop("chunk")
        final = pl.concat([last.with_columns(which=pl.lit(which)) for which in ("best", "last")])
        folder.write_part("final", 0, final)
    folder.set_status(state, progress=1.0 if state == "complete" else 0.5)


def _column(values: Any) -> Any:
    return pl.lit(values) if np.isscalar(values) else pl.Series(np.asarray(values, float))
