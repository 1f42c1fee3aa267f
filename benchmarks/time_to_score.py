"""Wall-clock from the start of a process until a score is reached: our plain presets, and JaxMARL's MAPPO as it comes.

    python benchmarks/time_to_score.py --jaxmarl CHECKOUT --peer-python PYTHON --out FILE [--only TASK ...]
        [--sides mappo ippo jaxmarl ...] [--seeds 0 1 2] [--limit 900] [--shards 2]

One process at a time. The clock starts when the process does: importing and compiling are part of it (no compilation
cache is used). Ours is scored by its greedy evaluations, every 2% of the budget, 64 episodes each, whose time counts;
JaxMARL's scripts have none, so theirs is what they log: the mean score of the episodes that ended in an update, played
by the sampling policy. That costs them nothing, is a little below what the greedy policy would score, and as noisy as
the episodes are few; so their score counts as reached only as a mean of three updates.
FILE is written after every process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Row, add_out, save

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Goal:
    """A score on a task, in our unit, and how to read JaxMARL's logs in that unit."""

    task: str
    score: float
    steps: int
    """Our budget: the learning rate falls to 0 at its end."""
    script: str
    config: str
    log: str
    scale: float = 1.0
    """Their logged number times this is in our unit."""
    theirs: dict[str, Any] = field(default_factory=dict)


_MPE = ("MAPPO/mappo_rnn_mpe.py", "MAPPO/config/mappo_homogenous_rnn_mpe.yaml", "returns")
_SMAX = ("MAPPO/mappo_rnn_smax.py", "MAPPO/config/mappo_homogenous_rnn_smax.yaml", "win_rate")
GOALS = {
    # JaxMARL logs the sum over three agents, we score the mean; its episodes have 26 transitions, ours 25.
    "spread": Goal("mpe/simple_spread", -13.9, 1_000_000, *_MPE, scale=25 / 26 / 3, theirs={"TOTAL_TIMESTEPS": 2e6}),
    "3m": Goal("smax/3m", 0.9, 1_000_000, *_SMAX, theirs={"MAP_NAME": "3m"}),
    "2s3z": Goal("smax/2s3z", 0.9, 500_000, *_SMAX, theirs={"MAP_NAME": "2s3z"}),
}


def main() -> None:
    """Every chosen side on every chosen goal, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jaxmarl", type=Path)
    parser.add_argument("--peer-python", type=Path)
    add_out(parser)
    parser.add_argument("--only", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--sides", nargs="+", default=["mappo", "ippo", "vdn", "qmix", "jaxmarl"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a process is stopped")
    parser.add_argument("--shards", type=int, default=2, help="shards of our runs, a core for each")
    parser.add_argument("--ours", nargs=3, help=argparse.SUPPRESS)  # goal, preset, seed: run in this process
    given = parser.parse_args()
    if given.ours:
        goal, preset, seed = given.ours
        run_ours(GOALS[goal], preset, int(seed), given.shards)
        return
    if not given.out:
        parser.error("--out is needed.")
    if "jaxmarl" in given.sides and not (given.jaxmarl and given.peer_python):
        parser.error("--jaxmarl and --peer-python are needed for the side jaxmarl.")
    rows: list[Row] = []
    for name in given.only:
        for seed in given.seeds:
            for side in given.sides:
                command, env = command_of(given, name, side, seed)
                goal = GOALS[name]
                row = {"task": goal.task, "goal": goal.score, "side": side, "seed": seed}
                rows.append(row | race(goal, side, command, env, given.limit))
                print(json.dumps(rows[-1]), flush=True)
                save(given.out, "time_to_score", rows)


def command_of(given: argparse.Namespace, name: str, side: str, seed: int) -> tuple[list[str], dict[str, str]]:
    """How to start one side, and its environment."""
    goal = GOALS[name]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))} | {"ROOKERY_CACHE": "off"}
    if side != "jaxmarl":
        shards = ["--shards", str(given.shards)]
        return [sys.executable, __file__, "--ours", name, side, str(seed), *shards], plain
    request = {
        "checkout": str(given.jaxmarl.resolve()),
        "script": goal.script,
        "configs": [goal.config],
        "overrides": {**goal.theirs, "SEED": seed},
        "log": [goal.log, "env_step"],
        "stream": True,
    }
    command = [str(given.peer_python), str(HERE / "jaxmarl_side.py"), json.dumps(request)]
    return command, plain | {"PYTHONPATH": str(given.jaxmarl.resolve())}


def race(goal: Goal, side: str, command: list[str], env: dict[str, str], limit: float) -> dict[str, Any]:
    """Seconds and steps until the score is reached; the best score and no seconds if it is not."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    best, steps = float("-inf"), 0
    recent: list[float] = []
    try:
        for row in _rows(process):
            seconds = time.perf_counter() - start
            if side != "jaxmarl" and "score" in row:
                score, steps = row["score"], row["steps"]
            elif goal.log in row and row[goal.log] == row[goal.log]:  # an update in which no episode ended logs NaN
                recent = [*recent[-2:], row[goal.log] * goal.scale]
                score, steps = sum(recent) / len(recent), row["env_step"]
                if len(recent) < 3:
                    continue
            else:
                continue
            best = max(best, score)
            if score >= goal.score:
                return {"seconds": round(seconds, 1), "steps": int(steps), "score": round(score, 4)}
            if seconds > limit:
                return {"seconds": None, "steps": int(steps), "score": round(best, 4)}
        if process.wait():
            raise SystemExit(f"{' '.join(command)[:300]} failed with code {process.returncode}.")
    finally:
        process.terminate()
        process.wait()
    return {"seconds": None, "steps": int(steps), "score": round(best, 4)}


def _rows(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The JSON lines that a process prints."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def run_ours(goal: Goal, preset: str, seed: int, shards: int) -> None:
    """Train as `rookery train` does, and print every evaluation."""
    import tempfile

    import rookery
    from rookery.training.progress import Silent

    class Print(Silent):
        def evaluation(self, steps: int, score: float, unit: str, interval: tuple[float, float]) -> None:
            print(json.dumps({"steps": steps, "score": score}), flush=True)

    values = {"evaluation.points": 50, "evaluation.rows": 1, "evaluation.episodes": 64}
    values["algo.collect.shards"] = shards
    config = rookery.config(preset, goal.task, steps=goal.steps, seeds=[seed], **values)
    with tempfile.TemporaryDirectory() as folder:
        rookery.train(config, out=folder, progress=Print())


if __name__ == "__main__":
    main()
