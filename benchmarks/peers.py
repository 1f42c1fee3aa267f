"""The same work as JaxMARL's own scripts: speed after compiling, compile time, peak memory, as ratios.

    python benchmarks/peers.py --jaxmarl CHECKOUT --peer-python PYTHON [--only CASE ...] [--rounds 3] [--out FILE]

CHECKOUT is a clone of github.com/FLAIROx/JaxMARL; PYTHON is an interpreter with its requirements. Every measurement is
a process of its own, and the two sides take turns, so that what else the machine does hits both. A rate is the
best of its rounds; ratios above 1 are in Rookery's favor.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from common import Row, add_out, answer, save

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Case:
    """One script of JaxMARL's and the run of ours that does the same work."""

    preset: str
    task: str
    script: str
    configs: tuple[str, ...]
    """Its own defaults, as files of the checkout; later ones win."""
    updates: int
    """Updates (collect, learn) of one measurement, on both sides."""
    ours: dict[str, Any] = field(default_factory=dict)
    """What our preset needs to match a script that was written for another task."""
    theirs: dict[str, Any] = field(default_factory=dict)
    skip: int = 2
    """Updates at the start that do not count (warming up; filling a replay buffer, without learning)."""


SPREAD = "mpe/simple_spread"
SHARDS = 2
"""Parts of our runs, a core for each: where the work is done, not what work. JaxMARL leaves that to XLA's threads."""
CASES = {
    "MAPPO-RNN, simple_spread": Case(
        "mappo_jaxmarl",
        SPREAD,
        "MAPPO/mappo_rnn_mpe.py",
        ("MAPPO/config/mappo_homogenous_rnn_mpe.yaml",),
        updates=16,
    ),
    "MAPPO-RNN, SMAX 2s3z": Case(
        "mappo_jaxmarl",
        "smax/2s3z",
        "MAPPO/mappo_rnn_smax.py",
        ("MAPPO/config/mappo_homogenous_rnn_smax.yaml",),
        updates=5,
        skip=1,
        ours={
            "algo.collect.envs": 128,
            "algo.entropy": 0.0,
            "algo.optimiser.clip": 0.25,
            "algo.value.sees": "state_id",
        },
    ),
    "IPPO-FF, simple_spread": Case(
        "ippo_jaxmarl", SPREAD, "IPPO/ippo_ff_mpe.py", ("IPPO/config/ippo_ff_mpe.yaml",), updates=200
    ),
    "QMIX-RNN, simple_spread": Case(
        "qmix_jaxmarl",
        SPREAD,
        "QLearning/qmix_rnn.py",
        ("QLearning/config/config.yaml", "QLearning/config/alg/ql_rnn_mpe.yaml"),
        updates=650,
        skip=60,
        # It logs only if wandb is on; its greedy tests are not part of training.
        theirs={"WANDB_MODE": "offline", "TEST_DURING_TRAINING": False},
    ),
}


def main() -> None:
    """Measure the chosen cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jaxmarl", type=Path, help="a checkout of JaxMARL")
    parser.add_argument("--peer-python", type=Path, help="an interpreter with JaxMARL's requirements")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side; the first compiles cold")
    add_out(parser)
    parser.add_argument("--ours", help=argparse.SUPPRESS)  # measure our side in this process: a case's name
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(measure_ours(CASES[given.ours])))
        return
    if not (given.jaxmarl and given.peer_python):
        parser.error("--jaxmarl and --peer-python are needed.")
    rows: list[Row] = []
    for name in given.only:
        sides = compare(name, given.jaxmarl.resolve(), given.peer_python, given.rounds)
        rows += [{"case": name, "side": side, **figures} for side, figures in sides.items()]
        save(given.out, "peers", rows)
        print_case(name, sides)


def compare(name: str, checkout: Path, peer_python: Path, rounds: int) -> dict[str, Any]:
    """Both sides in turn, `rounds` times; the first round fills each side's compilation cache."""
    case = CASES[name]
    request = {
        "checkout": str(checkout),
        "script": case.script,
        "configs": case.configs,
        "overrides": case.theirs,
        "updates": case.updates,  # their program holds the number of updates; ours is a chunk that is called again
        "log": ["grad_steps"],
    }
    theirs = [str(peer_python), str(HERE / "jaxmarl_side.py"), json.dumps(request)]
    ours = [sys.executable, str(HERE / "peers.py"), "--ours", name]
    sides: dict[str, list[dict[str, Any]]] = {"ours": [], "jaxmarl": []}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(rounds):
            sides["ours"].append(_run(ours, f"{cache}/ours"))
            said = _run(theirs, f"{cache}/jaxmarl", {"PYTHONPATH": str(checkout)})
            sides["jaxmarl"].append(_peer_rates(case, said))
    return {side: _summary(answers) for side, answers in sides.items()}


def _run(command: list[str], cache: str, extra: dict[str, str] | None = None) -> dict[str, Any]:
    """One measuring process; its last line of output is its answer."""
    env = dict(os.environ, JAX_COMPILATION_CACHE_DIR=cache, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
    env["STARTED"] = str(time.time())
    return answer(command, env | (extra or {}))


def measure_ours(case: Case) -> dict[str, Any]:
    """Our side in this process: compile a chunk, then run it again and again, as training does."""
    import rookery
    from rookery.training.engine import claim, open_engine

    config = rookery.config(case.preset, case.task, **{"algo.collect.shards": SHARDS, **case.ours})
    claim(config)
    assert config.task.spec.agents  # imports the environments, as JaxMARL's scripts do before their clock starts
    start = time.perf_counter()
    engine = open_engine(config)
    at_once = max(1, case.updates // 20)
    step = partial(engine.chunk, iterations=at_once)
    engine.prepare(fresh=True, iterations=at_once)
    state = engine.init()
    compile_seconds = time.perf_counter() - start
    ready_seconds = time.time() - float(os.environ.get("STARTED", "nan"))
    rows: list[tuple[float, float, int]] = []
    gradient_steps = 0.0
    for _ in range(case.updates // at_once + 1):
        rows.append((time.perf_counter(), time.process_time(), int(state.members.steps[0])))
        state, report = step(state)
        counted = report.means.get("gradient_steps")
        of_each = float(counted.value[0]) if counted else config.algo.epochs * config.algo.minibatches
        gradient_steps += of_each * at_once
    skipped = -(-case.skip // at_once)
    (wall, cpu, steps), (wall_end, cpu_end, steps_end) = rows[skipped], rows[-1]
    updates = (len(rows) - 1 - skipped) * at_once
    return {
        "steps_per_second": (steps_end - steps) / (wall_end - wall),
        "cpu_per_update": (cpu_end - cpu) / updates,
        "updates_per_second": updates / (wall_end - wall),
        "compile_seconds": compile_seconds,
        "ready_seconds": ready_seconds,
        "gradient_steps": gradient_steps * (len(rows) - 1) / len(rows),
        "parameters": _parameters(case, state) // SHARDS,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _parameters(case: Case, state: Any) -> int:
    """Trained weights of one member, actor's and critic's (or agent's and mixer's) together, in all its shards."""
    import jax

    algo = state.members.algo
    trained = algo.learner.online if case.preset.startswith("qmix") else algo.nets
    return sum(x[0].size for x in jax.tree.leaves(trained))


def _peer_rates(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """Rates from the moments at which the script logged its updates."""
    rows = answer.pop("updates")
    first, last = rows[case.skip - 1], rows[-1]
    updates = len(rows) - case.skip
    seconds = last["wall"] - first["wall"]
    return answer | {
        "steps_per_second": updates * answer["steps_per_update"] / seconds,
        "cpu_per_update": (last["cpu"] - first["cpu"]) / updates,
        "updates_per_second": updates / seconds,
    }


def _summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Best rates, cold and cached compile time, and what was counted."""
    last = answers[-1]
    return {
        "steps_per_second": max(a["steps_per_second"] for a in answers),
        "updates_per_second": max(a["updates_per_second"] for a in answers),
        "cpu_per_update": min(a["cpu_per_update"] for a in answers),
        "spread": [round(a["steps_per_second"]) for a in answers],
        "compile_cold": answers[0]["compile_seconds"],
        "compile_cached": statistics.median(a["compile_seconds"] for a in answers[1:] or answers),
        "ready_cold": answers[0]["ready_seconds"],
        "ready_cached": statistics.median(a["ready_seconds"] for a in answers[1:] or answers),
        "peak_mib": max(a["peak_mib"] for a in answers),
        "gradient_steps": last["gradient_steps"],
        "parameters": last["parameters"],
    }


ROWS = {  # name -> whether more is better
    "steps_per_second": True,
    "updates_per_second": True,
    "cpu_per_update": False,
    "compile_cold": False,
    "compile_cached": False,
    "ready_cold": False,
    "ready_cached": False,
    "peak_mib": False,
}


def print_case(name: str, sides: dict[str, Any]) -> None:
    """One case as lines of text."""
    ours, theirs = sides["ours"], sides["jaxmarl"]
    print(f"\n{name:28} {'rookery':>12} {'jaxmarl':>12} {'ratio':>7}")
    for row, more in ROWS.items():
        ratio = ours[row] / theirs[row] if more else theirs[row] / ours[row]
        print(f"  {row:26} {ours[row]:12,.4g} {theirs[row]:12,.4g} {ratio:7.2f}")
    for row in ("gradient_steps", "parameters"):
        print(f"  {row:26} {ours[row]:12,.0f} {theirs[row]:12,.0f}")
    print(f"  {'steps/s of each round':26} {ours['spread']} {theirs['spread']}", flush=True)


if __name__ == "__main__":
    main()
