"""Data frames of what engines report."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from rookery.training.config import RunConfig
from rookery.training.state import ChunkReport, Episodes, member_infos, score


def _identity(config: RunConfig) -> pl.DataFrame:
    """Columns that say which member a row is of."""
    infos = member_infos(config)
    columns: dict[str, Any] = {"member": range(len(infos)), "seed": [i.seed for i in infos]}
    columns |= {s.path: [i.values[s.path] for i in infos] for s in config.sweep}
    return pl.DataFrame(columns)


def metrics(config: RunConfig, chunk: int, report: ChunkReport, means: dict[str, np.ndarray]) -> pl.DataFrame:
    columns = {"chunk": chunk, "steps": np.asarray(report.steps, np.int64), **means}
    return _identity(config).with_columns(
        pl.lit(x).alias(name) if np.isscalar(x) else pl.Series(name, x) for name, x in columns.items()
    )


def timing(chunk: int, seconds: float, steps: int) -> pl.DataFrame:
    return pl.DataFrame({"chunk": [chunk], "seconds": [seconds], "steps": [steps]})


def episodes(config: RunConfig, played: Episodes, steps: list[int], first: int = 0) -> pl.DataFrame:
    """One row per member and episode."""
    returns = np.asarray(played["returns"])
    members, count, agents = returns.shape
    flat = {
        "member": np.repeat(np.arange(members), count),
        "steps": np.repeat(np.asarray(steps, np.int64), count),
        "episode": np.tile(np.arange(first, first + count), members),
        "score": np.asarray(score(config.task.spec, played)).reshape(-1),
        "return_mean": returns.mean(axis=-1).reshape(-1),
        "return_sum": returns.sum(axis=-1).reshape(-1),
        "length": np.asarray(played["length"]).reshape(-1),
        "success": np.asarray(played["success"]).reshape(-1),
        "returns": returns.reshape(-1, agents),
    }
    return _identity(config).join(pl.DataFrame(flat), on="member", maintain_order="right")
