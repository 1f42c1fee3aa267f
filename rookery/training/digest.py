"""What reports need of a run, small: digested once when the run is complete, and kept in its folder.

    RUN/digest/
        runs.parquet      seconds and steps of training
        curves.parquet    the mean score of each evaluation
        finals.parquet    the absolute metric
        metrics.parquet   every training metric over the run: mean, range, last value

A run has a part for each chunk: reading the parts of thousands of runs takes minutes, reading their digests seconds.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from rookery.training.disk import make_folder, write_atomic
from rookery.training.folder import RunFolder, writing

_IDENTITY = ("member", "seed", "chunk", "steps")
SCHEMAS: dict[str, dict[str, Any]] = {
    "runs": {"seconds": pl.Float64, "steps": pl.Int64},
    "curves": {
        "member": pl.Int64,
        "steps": pl.Int64,
        "seconds": pl.Float64,
        "score": pl.Float64,
        "episodes": pl.UInt32,
    },
    "finals": {"member": pl.Int64, "which": pl.String, "score": pl.Float64, "episodes": pl.UInt32},
    "metrics": {
        "member": pl.Int64,
        "metric": pl.String,
        "mean": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "last": pl.Float64,
    },
}
TABLES = tuple(SCHEMAS)
Digest = Mapping[str, pl.DataFrame]


def file_of(run: RunFolder, table: str) -> Path:
    """Where a table of a run's digest is, or would be."""
    return run.path / "digest" / f"{table}.parquet"


def write(run: RunFolder) -> None:
    """Digest a run whose parts are all there; a digest that is there already is replaced."""
    with writing(run.path / "digest"):
        make_folder(run.path / "digest")
        for table, frame in make(run).items():
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            write_atomic(file_of(run, table), buffer.getvalue())


def make(run: RunFolder) -> Digest:
    """Digest a run as far as it is."""
    timing, evaluations, final, metrics = run.timing(), run.evaluations(), run.final(), run.metrics()
    clock = _clock(timing)
    spent = {"seconds": clock["seconds"].max() or 0.0, "steps": timing["steps"].sum() if timing.height else 0}
    tables = {
        "runs": pl.DataFrame([spent]),
        "curves": _curves(evaluations, clock),
        "finals": _finals(final),
        "metrics": _metrics(metrics),
    }
    return {name: _fit(frame, name) for name, frame in tables.items()}


def _fit(frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """The table's columns in its order and types."""
    schema = SCHEMAS[table]
    if frame.is_empty():
        return pl.DataFrame(schema=schema)
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _clock(timing: pl.DataFrame) -> pl.DataFrame:
    """Seconds of training up to the end of each chunk."""
    if timing.is_empty():
        return pl.DataFrame(schema={"chunk": pl.Int64, "seconds": pl.Float64})
    return timing.sort("chunk").select(pl.col("chunk").cast(pl.Int64), pl.col("seconds").cum_sum())


def _curves(evaluations: pl.DataFrame, clock: pl.DataFrame) -> pl.DataFrame:
    if evaluations.is_empty():
        return evaluations
    points = evaluations.group_by("member", "chunk", maintain_order=True).agg(
        pl.col("steps").first(), pl.col("score").cast(pl.Float64).mean(), pl.len().alias("episodes")
    )
    timed = points.with_columns(pl.col("chunk").cast(pl.Int64)).join(clock, on="chunk", how="left")
    return timed.with_columns(pl.col("seconds").fill_null(0.0)).sort("member", "steps")


def _finals(final: pl.DataFrame) -> pl.DataFrame:
    if final.is_empty():
        return final
    return final.group_by("member", "which", maintain_order=True).agg(
        pl.col("score").cast(pl.Float64).mean(), pl.len().alias("episodes")
    )


def is_metric(name: str) -> bool:
    """Whether a column is no name of a member: those are its seed and the paths of swept entries."""
    return name not in _IDENTITY and not name.startswith("algo.")


def _metrics(metrics: pl.DataFrame) -> pl.DataFrame:
    """Long form: one row per member and metric; what was never measured is left out."""
    names = [n for n, kind in metrics.schema.items() if kind.is_numeric() and is_metric(n)]
    if metrics.is_empty() or not names:
        return pl.DataFrame()
    rows = metrics.unpivot(names, index=["member", "chunk"], variable_name="metric")
    rows = rows.filter(pl.col("value").is_not_nan())
    value = pl.col("value").cast(pl.Float64)
    return rows.group_by("member", "metric", maintain_order=True).agg(
        value.mean().alias("mean"), value.min().alias("low"), value.max().alias("high"), value.last().alias("last")
    )
