"""Scores of a run: one for each swept value, over its seeds. Members at different swept values are never pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rookery.core.config import format_value
from rookery.core.stats import Estimate, over_seeds, show


@dataclass(frozen=True)
class Score:
    """A score over the seeds of one swept value."""

    value: str
    """The swept value, for example "optimiser.lr=0.001"; empty if nothing is swept."""
    estimate: Estimate
    seeds: int
    episodes: int = 0

    @property
    def iqm(self) -> float:
        return float(self.estimate.value)


def value_name(values: Mapping[str, float]) -> str:
    """Swept values by path -> "optimiser.lr=0.001 gamma=0.9"."""
    return " ".join(f"{path.removeprefix('algo.')}={format_value(value)}" for path, value in values.items())


def swept_columns(frame: pl.DataFrame) -> list[str]:
    """Columns that say which swept value a row is of."""
    return [name for name in frame.columns if name.startswith("algo.")]


def groups(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each swept value, in the order of the sweep, under the value's name."""
    swept = swept_columns(frame)
    if not swept:
        return [("", frame)]
    parts = frame.group_by(swept, maintain_order=True)
    return [(value_name(dict(zip(swept, map(float, key), strict=True))), part) for key, part in parts]


def by_value(episodes: pl.DataFrame, column: str = "score") -> list[Score]:
    """The score of each swept value: episodes are averaged within a seed, then seeds are aggregated."""
    found = []
    for name, part in groups(episodes):
        means = part.group_by("member", maintain_order=True).agg(pl.col(column).cast(pl.Float64).mean())[column]
        found.append(Score(name, over_seeds(means.to_numpy()), len(means), part.height))
    return found


def best(scores: Sequence[Score]) -> Score:
    """The score with the highest IQM; the first of equals."""
    return max(scores, key=lambda score: score.iqm)


def lines(scores: Sequence[Score]) -> list[str]:
    """One line for each swept value, then which is best; without a sweep, one line."""
    if len(scores) == 1:
        return [show(scores[0].estimate)]
    width = max(len(score.value) for score in scores)
    top = [score.value for score in scores if score.iqm == best(scores).iqm]
    tied = f" ({len(top)} are equal)" if len(top) > 1 else ""
    values = [f"{score.value:<{width}}  {show(score.estimate)}" for score in scores]
    return [*values, f"best: {', '.join(top)}{tied}"]
