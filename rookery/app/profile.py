"""The table that `rookery train --profile` prints."""

from __future__ import annotations

from rookery.training.config import RunConfig
from rookery.training.engine import LONGEST_LOOK, Timing
from rookery.training.state import member_infos, steps_per_iteration


def lines(config: RunConfig, timings: list[Timing]) -> list[str]:
    """The pieces of one iteration with their shares of the whole."""
    members, collect = len(member_infos(config)), config.algo.collect
    whole, seconds = timings[0], {t.name: t.wall for t in timings[1:]}
    every = max(1, round(config.steps / config.evaluation.points / steps_per_iteration(config)))
    cut = seconds["evaluation"] > LONGEST_LOOK
    seconds["evaluation"] /= every
    seconds["rest"] = whole.wall - sum(seconds[name] for name in ("environment", "policy", "update"))
    rows = collect.envs // collect.shards * collect.transitions(config.task.spec) * members
    shard = f"This is one of {collect.shards} shards of the run, timed alone; the others do as much beside it."
    return [
        f"one iteration of {members} member(s): {1e3 * whole.wall:.2f} ms, {rows / whole.wall:,.0f} rows/s, "
        f"{whole.cpu / whole.wall:.1f} cores busy",
        *(f"  {name:12} {1e3 * wall:9.2f} ms {wall / whole.wall:7.1%}" for name, wall in seconds.items()),
        "rest: the whole minus environment, policy and update. evaluation comes on top, once in",
        f"{every} iterations. Pieces are timed alone: they need not add up.",
        *(
            [f"The episodes of an evaluation were cut after {LONGEST_LOOK:g} s: it takes longer than this."]
            if cut
            else []
        ),
        *([shard] if collect.shards > 1 else []),
    ]
