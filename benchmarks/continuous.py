"""Scores of Stable-Baselines3's TD3 and SAC at the settings, budgets and number of seeds of studies/continuous.toml.

    python benchmarks/continuous.py --torch-python PYTHON [--seeds 5] [--tasks Pendulum-v1] [--out FILE]

Each seed's last policy plays 100 greedy episodes; the study's table has the last policies of ours.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, add_out, answer, markdown, save

STUDY = tomllib.loads((Path(__file__).parents[1] / "studies" / "continuous.toml").read_text())
BUDGETS = {task["name"].removeprefix("gymnasium:"): task["steps"] for task in STUDY["tasks"]}
OURS = STUDY["algorithms"][0]
# One gradient step for every four environment steps: with four environments, four steps after 16 transitions.
COMMON: dict[str, Any] = {
    "learning_rate": OURS["optimiser"]["lr"],
    "buffer_size": OURS["replay"]["capacity"] * OURS["collect"]["length"],  # transitions; ours are sequences
    "learning_starts": 1000,
    "batch_size": OURS["replay"]["batch"],
    "tau": OURS["target"]["tau"],
    "gamma": 0.99,
    "train_freq": OURS["collect"]["length"],
    "gradient_steps": 4 * OURS["replay"]["steps_per_sequence"],
    "policy_kwargs": {"net_arch": [64, 64]},
}
NOISE = {"TD3": 0.1, "SAC": 0.0}


def learn(python: str, algorithm: str, task: str, seed: int) -> dict[str, Any]:
    """Score and rate of one seed, in a process of its own."""
    request = {
        "algorithm": algorithm,
        "task": task,
        "seed": seed,
        "envs": OURS["collect"]["envs"],
        "threads": 1,
        "warm_up": 0,
    }
    request |= {"steps": BUDGETS[task], "episodes": 100, "noise": NOISE[algorithm], "settings": COMMON}
    return answer([python, str(Path(__file__).parent / "sb3_side.py"), json.dumps(request)])


def main() -> None:
    """One row for each task and algorithm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", required=True, help="an interpreter with stable-baselines3")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    add_out(parser)
    args = parser.parse_args()
    rows: list[Row] = []
    for task in args.tasks:
        for algorithm in NOISE:
            runs = [learn(args.torch_python, algorithm, task, seed) for seed in range(args.seeds)]
            scores = [round(run["score"], 1) for run in runs]
            rate = round(float(np.median([run["steps_per_second"] for run in runs])))
            rows.append({"task": task, "algorithm": algorithm, "scores": scores, "steps_per_second": rate})
            print(markdown(rows[-1:]), flush=True)
            save(args.out, "continuous", rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
