"""The settings of two torch code bases, run by them and by us in turn: environment steps per second, as ratios.

    python benchmarks/torch_peers.py --epymarl CHECKOUT --onpolicy CHECKOUT --torch-python PYTHON [--rounds 2] [--out F]

CHECKOUTs are clones of github.com/uoe-agents/epymarl and github.com/marlbenchmark/on-policy; PYTHON is an interpreter
with torch and their requirements (and mpe2). They play simple_spread in Python, we the compiled one; both learn. Every
measurement is a process of its own, and a rate is the best of its rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Row, add_out, save
from scaling import answer, apart

HERE = Path(__file__).resolve().parent
SECONDS = 15.0
"""Of learning that are measured, on both sides."""


@dataclass(frozen=True)
class Case:
    """What one of them is told, and the run of ours that does the same work."""

    code: str
    arguments: tuple[str, ...]
    steps: int
    """Environment steps of one call of its learner."""
    preset: str
    ours: dict[str, Any] = field(default_factory=dict)
    skip: int = 8
    """Calls at the start that do not count."""


_EPYMARL = (
    *("--config=qmix", "--env-config=gymma", "with", "use_cuda=False", "t_max=100000000"),
    *("env_args.time_limit=25", "env_args.key=mpe-spread-v0", "test_interval=100000000"),
)
_FEED_FORWARD = {"algo.net.kind": "mlp", "algo.net.layers": 2, "algo.last_action": False}
CASES = {
    "EPyMARL QMIX, 1 environment": Case("epymarl", _EPYMARL, 25, "qmix_pymarl", _FEED_FORWARD),
    "EPyMARL QMIX, 1 environment, GRU": Case(
        "epymarl", (*_EPYMARL, "use_rnn=True", "obs_last_action=True"), 25, "qmix_pymarl"
    ),
    "EPyMARL QMIX, 8 environments": Case(
        "epymarl",
        (*_EPYMARL, "runner=parallel", "batch_size_run=8"),
        200,
        "qmix_pymarl",
        {**_FEED_FORWARD, "algo.collect.envs": 8, "algo.replay.steps_per_sequence": 0.125},
    ),
    "on-policy MAPPO, 128 environments": Case(
        "onpolicy",
        (
            *("--env_name", "MPE", "--algorithm_name", "mappo", "--experiment_name", "speed", "--use_wandb"),
            *("--scenario_name", "simple_spread", "--num_agents", "3", "--num_landmarks", "3", "--seed", "1"),
            *("--n_training_threads", "1", "--n_rollout_threads", "128", "--num_mini_batch", "1"),
            *("--episode_length", "25", "--num_env_steps", "20000000", "--ppo_epoch", "10", "--use_ReLU"),
            *("--gain", "0.01", "--lr", "7e-4", "--critic_lr", "7e-4"),
        ),
        3200,
        "mappo_onpolicy",
        {"iterations": 4},
        skip=2,
    ),
}


def main() -> None:
    """Measure the chosen cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epymarl", type=Path, help="a checkout of EPyMARL")
    parser.add_argument("--onpolicy", type=Path, help="a checkout of on-policy")
    parser.add_argument("--torch-python", type=Path, required=True, help="an interpreter with their requirements")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=2)
    add_out(parser)
    given = parser.parse_args()
    checkouts = {"epymarl": given.epymarl, "onpolicy": given.onpolicy}
    for name in given.only:
        if checkouts[CASES[name].code] is None:
            parser.error(f"'{name}' needs --{CASES[name].code}.")
    rows: list[Row] = []
    for name in given.only:
        checkout = checkouts[CASES[name].code].resolve()
        rows.append({"case": name, **compare(CASES[name], checkout, given.torch_python, given.rounds)})
        print(json.dumps(rows[-1]), flush=True)
        save(given.out, "torch_peers", rows)


def compare(case: Case, checkout: Path, python: Path, rounds: int) -> dict[str, Any]:
    """Both sides in turn; ours with one shard and with a shard for each of two cores."""
    found: dict[str, list[int]] = {"theirs": [], "one shard": [], "two shards": []}
    for _ in range(rounds):
        theirs = of_torch(case, checkout, python, SECONDS)
        found["theirs"].append(round(case.steps * theirs["updates_per_second"]))
        for shards, name in ((1, "one shard"), (2, "two shards")):
            request = {"iterations": 40, **case.ours, "algo.collect.shards": shards}
            rate = answer(apart("rate", preset=case.preset, seconds=SECONDS, **request))
            found[name].append(rate["steps_per_second"])
    best = {name: max(rates) for name, rates in found.items()}
    return {**best, "steps/s of each round": found}


def of_torch(case: Case, checkout: Path, python: Path, seconds: float) -> dict[str, Any]:
    """Their side, in a process of its own; what it leaves behind is stopped."""
    request = {"checkout": str(checkout), "seconds": seconds, "code": case.code, "skip": case.skip}
    request["arguments"] = case.arguments
    command = [str(python), str(HERE / "torch_side.py"), json.dumps(request)]
    # A session of its own, so that the environments' processes can be stopped with it.
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    assert process.stdout
    try:
        for line in process.stdout:
            if line.startswith('{"updates_per_second"'):
                return json.loads(line)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    raise SystemExit(f"{' '.join(command)} failed; run it to see why.")


if __name__ == "__main__":
    main()
