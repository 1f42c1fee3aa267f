"""Host environments: what the engine costs by itself, and what a checkpoint of a large store costs.

    python benchmarks/host.py [--only overhead store] [--envs 32] [--seconds 3] [--out FILE]

overhead: environment steps per second with an environment that does nothing, acting included, learning apart.
store: seconds and bytes of the first and of later checkpoints of 100,000 frames of 84x84.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import add_out, save

from rookery.core.host import HostEnvs, HostTask, Rows
from rookery.core.types import ActionSpec, Collect, Spec


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


def store(envs: int, seconds: float) -> dict[str, Any]:
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


QUESTIONS = {"overhead": overhead, "store": store}


def main() -> None:
    """Answer the chosen questions, one JSON line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    add_out(parser)
    given = parser.parse_args()
    for question in given.only:
        rows = [{"name": name, **row} for name, row in QUESTIONS[question](given.envs, given.seconds).items()]
        print("\n".join(json.dumps(row) for row in rows), flush=True)
        save(given.out, question, rows)


if __name__ == "__main__":
    main()
