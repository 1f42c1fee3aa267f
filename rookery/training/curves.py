"""Learning curves of a run: any metric against the steps of a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from rookery.core.errors import ConfigError, RunError, suggest
from rookery.core.stats import aggregate, iqm
from rookery.training.digest import is_metric
from rookery.training.failures import failed
from rookery.training.folder import RunFolder
from rookery.training.scores import swept_columns

_NOT_MEASURED = ("episode", "returns")


def per_seed(folder: RunFolder, metric: str) -> pl.DataFrame:
    """Columns: swept values, member, seed, steps, `metric`. Of an evaluation, the mean over its episodes."""
    evaluations, metrics = folder.evaluations(), folder.metrics()
    known = [n for frame in (evaluations, metrics) for n in frame.columns if is_metric(n) and n not in _NOT_MEASURED]
    if metric not in known:
        raise ConfigError(f"the run has no metric '{metric}'.{suggest(metric, set(known))}")
    frame = evaluations if metric in evaluations.columns else metrics
    identity = [*swept_columns(frame), "member", "seed"]
    value = pl.col(metric).cast(pl.Float64)
    rows = frame.group_by([*identity, "chunk"], maintain_order=True).agg(pl.col("steps").first(), value.mean())
    return rows.filter(pl.col(metric).is_not_nan()).select(*identity, "steps", metric).sort("member", "steps")


def over_seeds(folder: RunFolder, metric: str) -> pl.DataFrame:
    """Columns: swept values, steps, iqm, low, high, seeds. Seeds are interpolated linearly on a common grid.

    Failed seeds are left out: the others' curve would end where the first of them failed.
    """
    every = per_seed(folder, metric)
    rows = every.filter(~pl.col("member").is_in(list(failed(folder))))
    if rows.is_empty():
        raise RunError(f"every seed of {folder.path} failed. Each one's curve as far as it goes: per_seed=True.")
    swept = swept_columns(rows)
    parts = rows.group_by(swept, maintain_order=True) if swept else [((), rows)]
    frames = []
    for key, part in parts:
        members = [(m["steps"].to_numpy(), m[metric].to_numpy()) for _, m in part.group_by("member")]
        grid = _grid([steps for steps, _ in members])
        found, points = aggregate([np.stack([np.interp(grid, *member) for member in members])], iqm), len(grid)
        values: dict[str, Any] = {name: [value] * points for name, value in zip(swept, key, strict=True)}
        values |= {"steps": grid, "iqm": found.value, "low": found.low, "high": found.high}
        frames.append(pl.DataFrame(values | {"seeds": [len(members)] * points}))
    return pl.concat(frames)


def _grid(steps: list[np.ndarray]) -> np.ndarray:
    """The steps of the seeds if they are the same; else evenly spaced ones, as far as all seeds have come.

    Seeds take slightly different numbers of steps where episodes end early.
    """
    if all(np.array_equal(steps[0], other) for other in steps):
        return steps[0].astype(float)
    return np.linspace(max(s[0] for s in steps), min(s[-1] for s in steps), max(map(len, steps)))
