"""MADDPG with EPyMARL's settings, by EPyMARL and by us in turn: environment steps per second with learning, as ratios.

    python benchmarks/maddpg.py --epymarl CHECKOUT --torch-python PYTHON [--rounds 2] [--seconds 15] [--out FILE]
    python benchmarks/maddpg.py --memory

CHECKOUT is a clone of github.com/uoe-agents/epymarl; PYTHON is an interpreter with torch and its requirements (and
mpe2). Both learn from 32 episodes of 25 steps (or as many single transitions) once for every episode that is collected.
They play mpe2's simple_spread with one environment; we play the compiled one, with one and with 32 environments at the
same number of gradient steps per step, and mpe2's own. Every measurement is a process of its own, and a rate is the
best of its rounds. --memory prints what a million transitions of simple_spread take.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import Row, add_out, beside, markdown, save
from scaling import answer, apart
from torch_peers import Case, of_torch

COMPILED, HOST = "mpe/simple_spread", "pettingzoo:mpe2.simple_spread_v3"
_THEIRS = (
    *("--config=maddpg", "--env-config=gymma", "with", "use_cuda=False", "t_max=100000000"),
    *("env_args.time_limit=25", "env_args.key=mpe-spread-v0", "test_interval=100000000"),
)
_SAME = {
    "algo.actor.width": 128,
    "algo.critic.net.width": 128,
    "algo.collect.length": 0,
    "algo.collect.restart": True,
    "algo.replay.capacity": 4096,
    "algo.replay.steps_per_sequence": 1.0,
    "algo.replay.start": 64,
}
_GRU = {"algo.actor.kind": "gru", "algo.actor.layers": 1, "algo.replay.unit": "sequence", "algo.replay.batch": 32}
CASES = {
    "recurrent actors": (Case("epymarl_maddpg", _THEIRS, 25, "maddpg", skip=40), {**_SAME, **_GRU}),
    "feed-forward actors": (
        Case("epymarl_maddpg", (*_THEIRS, "use_rnn=False"), 25, "maddpg", skip=40),
        {**_SAME, "algo.replay.batch": 800},
    ),
}
OURS: dict[str, dict[str, Any]] = {
    "compiled, 1 environment": {"task": COMPILED, "algo.collect.envs": 1, "iterations": 40},
    "compiled, 32 environments": {"task": COMPILED, "algo.collect.envs": 32, "iterations": 2},
    "mpe2, 1 environment": {"task": HOST, "algo.collect.envs": 1, "iterations": 10},
    "mpe2, 32 environments": {"task": HOST, "algo.collect.envs": 32, "iterations": 1},
}


def main() -> None:
    """Measure the chosen cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epymarl", type=Path, help="a checkout of EPyMARL")
    parser.add_argument("--torch-python", type=Path, help="an interpreter with its requirements")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15.0, help="of learning, on both sides")
    parser.add_argument("--memory", action="store_true", help="only print what a million transitions take")
    add_out(parser)
    given = parser.parse_args()
    if given.memory:
        print(json.dumps(memory()))
        return
    if given.epymarl is None or given.torch_python is None:
        parser.error("--epymarl and --torch-python are needed (or --memory).")
    rows: list[Row] = []
    for name in given.only:
        rows += compare(name, given.epymarl.resolve(), given)
        print(markdown(rows), flush=True)
        save(given.out, "maddpg", rows)


def compare(name: str, checkout: Path, given: argparse.Namespace) -> list[Row]:
    """Both sides in turn; a row for each way that we play."""
    case, settings = CASES[name]
    theirs, ours = [], {way: [] for way in OURS}
    for _ in range(given.rounds):
        found = of_torch(case, checkout, given.torch_python, given.seconds)
        theirs.append(round(case.steps * found["updates_per_second"]))
        for way, more in OURS.items():
            work = apart("rate", preset=case.preset, seconds=given.seconds, **{**settings, **more})
            ours[way].append(answer(work)["steps_per_second"])
    return [beside(f"MADDPG, {name}, {way}", rates, "EPyMARL", theirs) for way, rates in ours.items()]


def memory() -> dict[str, Any]:
    """The replay store of a million transitions of simple_spread, as the preset keeps them."""
    import jax

    import rookery
    from rookery.training.engine import open_engine

    length = rookery.config("maddpg", COMPILED).algo.collect.length
    envs = rookery.config("maddpg", COMPILED).algo.collect.envs
    sequences = -(-1_000_000 // (length * envs)) * envs
    config = rookery.config("maddpg", COMPILED, **{"algo.replay.capacity": sequences})
    store = config.algo.stores(open_engine(config).shapes.members.algo)
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(store))
    return {"transitions": sequences * length, "mib": round(total / 2**20), "bytes each": total // (sequences * length)}


if __name__ == "__main__":
    main()
