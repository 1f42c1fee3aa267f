"""Host environments: what the engine costs by itself, what a checkpoint costs, and speed beside other code bases.

    python benchmarks/host.py [--only overhead store] [--envs 32] [--seconds 3] [--out FILE]
    python benchmarks/host.py --only sb3 epymarl atari --torch-python PYTHON --epymarl CHECKOUT [--rounds 3]
        [--budget 1.0] [--out FILE]

overhead: environment steps per second with an environment that does nothing, acting included, learning apart.
store: seconds and bytes of the first and of later checkpoints of 100,000 frames of 84x84.
sb3: Stable-Baselines3's PPO and DQN on CartPole and LunarLander, with the same environments, networks, rollouts,
batches and gradient steps. Their rounds alternate between one thread and torch's own number of threads.
epymarl: EPyMARL's QMIX on mpe2's simple_spread; the settings are those of torch_peers.py.
atari: random actions through the engine beside ale-py's own vector environment.
Where environments take most of the time, ours are stepped by a worker per core, as a run of a million steps would
choose by itself; the runs here are too short to pay for starting workers.

PYTHON is an interpreter with stable-baselines3 and torch (and with EPyMARL's requirements, mpe2 and Box2D), CHECKOUT a
clone of github.com/uoe-agents/epymarl. Every measurement of the last three is a process of its own, ours is
`rookery train` as a user would type it. Sides take turns. A rate is environment steps per second of chunks after the
first, learning included, and the best of its rounds; the rows in which our environments reset do not count as steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch_peers
from common import Row, add_out, answer, beside, save

from rookery.core.host import HostEnvs, HostTask, Rows
from rookery.core.types import ActionSpec, Collect, Spec
from rookery.training.provenance import usable_cores


class Idlers:
    """Environments whose rows never change."""

    def reset(self, seeds: np.ndarray, rows: Rows) -> None:
        """The only row there is."""
        rows.legal[:], rows.alive[:], rows.discount[:], rows.first[:] = True, True, 1.0, True

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        """Nothing."""
        rows.first[:] = False

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Idle(HostTask):
    """A task that does nothing, with the shapes of CartPole."""

    @property
    def spec(self) -> Spec:
        """Its facts."""
        return Spec("idle", ("agent",), (4,), ActionSpec("discrete", (2,)), limit=500)

    def open(self, envs: int) -> HostEnvs:
        """So many of them."""
        return Idlers()


def overhead(envs: int, seconds: float) -> dict[str, Any]:
    """Steps per second in this process, without learning and with it, and where the time goes."""
    import rookery.algorithms  # noqa: F401  (fills the registry)
    from rookery.core.registry import PRESETS
    from rookery.training.compiled.compiler import use_compilation_cache
    from rookery.training.config import RunConfig, Workers
    from rookery.training.host.engine import HostEngine

    use_compilation_cache()
    found = {}
    for preset, length in {"ippo": 128, "iql": 32}.items():
        algo = replace(PRESETS[preset], collect=Collect(envs=envs, length=length))
        engine = HostEngine(RunConfig(preset, "idle", algo, Idle(), workers=Workers(count=0)))
        engine.prepare(fresh=True)
        times: dict[str, float] = {}
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            now = {timing.name: timing.wall for timing in engine.profile()}
            times = {name: min(wall, times.get(name, wall)) for name, wall in now.items()}
        steps = envs * length
        found[preset] = {
            "envs": envs,
            "acting": round(steps / (times["whole"] - times["update"])),
            "learning_included": round(steps / times["whole"]),
            "us_of_a_row": {name: round(times[name] / length * 1e6) for name in ("whole", "environment", "policy")},
        }
        engine.close()
    return found


def store() -> dict[str, Any]:
    """Checkpoints of a store of 706 MB of which 5,000 frames change."""
    import jax
    import jax.numpy as jnp

    from rookery.training import checkpoint

    rng = np.random.default_rng(0)

    def frames(count: int) -> Any:
        return jnp.asarray(rng.integers(0, 256, (count, 84, 84), dtype=np.uint8))

    write = jax.jit(lambda store, new, at: jax.lax.dynamic_update_slice(store, new, (at, 0, 0)), donate_argnums=0)
    folder = Path(tempfile.mkdtemp(dir="."))
    kept, found = frames(100_000), {}
    try:
        for chunk, name in enumerate(("first", "second", "third")):
            known = {path for path in folder.rglob("*") if path.is_file()}
            start = time.perf_counter()
            # All are kept, so that what is written can be counted.
            checkpoint.save(folder, kept, chunk=chunk, steps=[0], score=0.0, keep=9, stores=(kept,))
            took = time.perf_counter() - start
            new = [path.stat().st_size for path in folder.rglob("*") if path.is_file() and path not in known]
            found[name] = {"seconds": round(took, 2), "megabytes": round(sum(new) / 1e6, 1)}
            kept = write(kept, frames(5_000), chunk * 5_000)
        start = time.perf_counter()
        checkpoint.load(folder, jax.eval_shape(lambda: kept))
        found["load"] = {"seconds": round(time.perf_counter() - start, 2)}
    finally:
        shutil.rmtree(folder)
    return found


def named(found: dict[str, Any]) -> list[Row]:
    """A row for each name."""
    return [{"name": name, **row} for name, row in found.items()]


# --- beside others

HERE = Path(__file__).resolve().parent
ROOKERY = Path(sys.executable).with_name("rookery")


@dataclass(frozen=True)
class Peer:
    """What Stable-Baselines3 is told, and the run of ours that does the same work."""

    task: str
    algorithm: str
    envs: int
    settings: dict[str, Any]
    steps: int
    """Of one measurement: some ten seconds of ours."""
    preset: str
    ours: dict[str, Any] = field(default_factory=dict)

    @property
    def rollout(self) -> int:
        """Environment steps of one iteration."""
        return self.envs * self.settings.get("n_steps", self.settings.get("train_freq", 1))


_PPO = {"algo.optimiser.clip": 0.5, "algo.value.clip": 0.0, "algo.advantages": "minibatch"}
PEERS = {
    "PPO, CartPole-v1": Peer(
        "CartPole-v1",
        "PPO",
        8,
        {"n_steps": 32, "batch_size": 256, "n_epochs": 20},
        200_000,
        "ppo",
        {**_PPO, "algo.collect.envs": 8, "algo.collect.length": 32, "algo.epochs": 20, "algo.minibatches": 1},
    ),
    "PPO, LunarLander-v3": Peer(
        "LunarLander-v3",
        "PPO",
        16,
        {"n_steps": 1024, "batch_size": 64, "n_epochs": 4},
        200_000,
        "ppo",
        {**_PPO, "algo.collect.envs": 16, "algo.collect.length": 1024, "algo.epochs": 4, "algo.minibatches": 256},
    ),
    "DQN, CartPole-v1": Peer(
        "CartPole-v1",
        "DQN",
        1,
        {"train_freq": 256, "gradient_steps": 128, "batch_size": 64, "buffer_size": 102_400, "learning_starts": 256},
        60_000,
        "dqn",
        {
            "algo.collect.envs": 1,
            "algo.collect.length": 256,
            "algo.replay.unit": "transition",
            "algo.replay.batch": 64,
            "algo.replay.capacity": 400,
            "algo.replay.start": 1,
            "algo.replay.steps_per_sequence": 128.0,
            "algo.last_action": False,
            "algo.double": False,
        },
    ),
}


def flags(values: dict[str, Any]) -> list[str]:
    """Settings as a user types them."""
    typed: list[str] = []
    for path, value in values.items():
        *parents, name = path.replace("_", "-").split(".")
        if isinstance(value, bool):
            typed.append("--" + ".".join([*parents, name if value else f"no-{name}"]))
        else:
            typed += ["--" + ".".join([*parents, name]), str(value)]
    return typed


def ours(preset: str, task: str, steps: int, values: dict[str, Any], files: tuple[Path, ...] = ()) -> int:
    """Steps per second of `rookery train`, of all chunks but the first."""
    from rookery.training.folder import RunFolder

    with tempfile.TemporaryDirectory() as folder:
        command = [str(ROOKERY), "train", preset, "--task", task, "--steps", str(steps), "--out", folder, "--quiet"]
        command += ["--evaluation.points", "1", "--evaluation.episodes", "1", "--evaluation.final", "1"]
        command += [*flags(values), *(word for file in files for word in ("--import", str(file)))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        timing = RunFolder(run).timing().sort("chunk")[1:]
    return round(float(timing["steps"].sum()) / float(timing["seconds"].sum()))


Side = Callable[[int], float]
"""Steps per second in a round, by its number."""


def in_turn(name: str, ours: Side, peer: str, theirs: Side, rounds: int) -> Row:
    """Both sides in turn, and their ratio."""
    pairs = [(ours(turn), theirs(turn)) for turn in range(rounds)]
    return beside(name, [mine for mine, _ in pairs], peer, [other for _, other in pairs])


def sb3(given: argparse.Namespace) -> list[Row]:
    """Stable-Baselines3, in the interpreter that has it."""

    def theirs(peer: Peer, turn: int) -> int:
        request = {"task": peer.task, "algorithm": peer.algorithm, "envs": peer.envs, "settings": peer.settings}
        request |= {"warm_up": 2 * peer.rollout, "steps": budget(peer), "threads": 1 - turn % 2}
        return answer([str(given.torch_python), str(HERE / "sb3_side.py"), json.dumps(request)])["steps_per_second"]

    def budget(peer: Peer) -> int:
        return max(round(peer.steps * given.budget), 4 * peer.rollout)

    def mine(peer: Peer, turn: int) -> int:
        return ours(peer.preset, f"gymnasium:{peer.task}", budget(peer), peer.ours)

    return [
        in_turn(name, partial(mine, peer), "Stable-Baselines3", partial(theirs, peer), given.rounds)
        for name, peer in PEERS.items()
    ]


_QMIX = (("1 environment", 20_000), ("8 environments", 60_000))
"""Cases of torch_peers.py, and the steps of one measurement."""


def epymarl(given: argparse.Namespace) -> list[Row]:
    """EPyMARL's script, in the same interpreter; both sides step mpe2's environment."""

    def theirs(case: torch_peers.Case, turn: int) -> int:
        rate = torch_peers.of_torch(case, given.epymarl.resolve(), given.torch_python, 15 * given.budget)
        return round(case.steps * rate["updates_per_second"])

    def mine(case: torch_peers.Case, steps: int, turn: int) -> int:
        several = case.ours.get("algo.collect.envs", 1) > 1
        values = {**case.ours, "workers.count": usable_cores() if several else 0}
        return ours(case.preset, "pettingzoo:mpe2.simple_spread_v3", max(round(steps * given.budget), 2000), values)

    cases = [
        (torch_peers.CASES[f"EPyMARL QMIX, {envs}"], f"QMIX, mpe2 simple_spread, {envs}", steps)
        for envs, steps in _QMIX
    ]
    return [
        in_turn(name, partial(mine, case, steps), "EPyMARL", partial(theirs, case), given.rounds)
        for case, name, steps in cases
    ]


ALE = """
import sys, time
import numpy as np
from ale_py.vector_env import AtariVectorEnv
envs, steps = int(sys.argv[1]), int(sys.argv[2])
games = AtariVectorEnv("ms_pacman", envs)
rng = np.random.default_rng(0)
games.reset(seed=np.arange(envs))
start = time.perf_counter()
for _ in range(steps // envs):
    games.step(rng.integers(0, 9, envs).astype(np.int32))
print(round(steps // envs * envs / (time.perf_counter() - start)))
"""


def atari(given: argparse.Namespace) -> list[Row]:
    """MsPacman by ale-py's vector environment, and through the engine, which chooses where games are stepped."""
    steps = max(round(60_000 * given.budget), 2000)

    def alone(envs: int, turn: int) -> int:
        command = [sys.executable, "-c", ALE, str(envs), str(steps)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def through(envs: int, turn: int) -> int:
        values = {"algo.collect.envs": envs, "algo.collect.length": 64, "workers.count": usable_cores()}
        return ours("random", "atari:MsPacman", steps, values, (HERE / "random_play.py",))

    return [
        in_turn(
            f"random play, MsPacman, {n} environments", partial(through, n), "ale-py", partial(alone, n), given.rounds
        )
        for n in (16, 64)
    ]


QUESTIONS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "overhead": lambda given: named(overhead(given.envs, given.seconds)),
    "store": lambda given: named(store()),
    "sb3": sb3,
    "epymarl": epymarl,
    "atari": atari,
}


def main() -> None:
    """Answer the chosen questions, one JSON line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=["overhead", "store"])
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--torch-python", type=Path, help="an interpreter with stable-baselines3 or EPyMARL's needs")
    parser.add_argument("--epymarl", type=Path, help="a checkout of EPyMARL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=1.0, help="share of the steps of a full measurement")
    add_out(parser)
    given = parser.parse_args()
    if {"sb3", "epymarl"} & {*given.only} and not given.torch_python:
        parser.error("sb3 and epymarl need --torch-python.")
    if "epymarl" in given.only and not given.epymarl:
        parser.error("epymarl needs --epymarl.")
    for question in given.only:
        rows = QUESTIONS[question](given)
        print("\n".join(json.dumps(row) for row in rows), flush=True)
        save(given.out, question, rows)


if __name__ == "__main__":
    main()
