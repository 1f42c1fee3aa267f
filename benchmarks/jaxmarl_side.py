"""One of JaxMARL's own training scripts, timed from outside: `peers.py` and `time_to_score.py` start this in an
interpreter that has JaxMARL's requirements, with the checkout on the path. Nothing of rookery is imported.

Every update logs through `wandb.log`; a stand-in for it notes the clock, so that the script itself is left as it is.
The request comes as JSON in the first argument; answers are JSON lines.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from omegaconf import OmegaConf


def main() -> None:
    """Compile and run one script; report every update if `stream`, else all of them at the end."""
    request = json.loads(sys.argv[1])
    base = Path(request["checkout"]) / "baselines"
    config: dict[str, Any] = {}
    for file in request["configs"]:
        config |= OmegaConf.to_container(OmegaConf.load(base / file))  # type: ignore[arg-type]
    config |= request["overrides"]
    if "updates" in request:
        config["TOTAL_TIMESTEPS"] = request["updates"] * config["NUM_ENVS"] * config["NUM_STEPS"]
    script = _load(base / request["script"])
    updates: list[dict[str, float]] = []

    def log(metrics: dict[str, Any]) -> None:
        row = {name: float(np.mean(metrics[name])) for name in request["log"] if name in metrics}
        row |= {"wall": time.perf_counter(), "cpu": time.process_time()}
        updates.append(row)
        if request.get("stream"):
            print(json.dumps(row), flush=True)

    script.wandb = SimpleNamespace(log=log)
    start = time.perf_counter()
    # Some scripts build their environment inside make_train, some want it from outside.
    wants_env = hasattr(script, "env_from_config")
    env = (script.env_from_config(dict(config))[0],) if wants_env else ()
    train = jax.jit(script.make_train(config, *env))
    compiled = train.lower(jax.random.PRNGKey(config["SEED"])).compile()
    compile_seconds = time.perf_counter() - start
    ready_seconds = time.time() - float(os.environ.get("STARTED", "nan"))
    if request.get("stream"):
        print(json.dumps({"compiled": compile_seconds, "wall": time.perf_counter()}), flush=True)
    out = jax.block_until_ready(compiled(jax.random.PRNGKey(config["SEED"])))
    jax.effects_barrier()
    answer = {
        "compile_seconds": compile_seconds,
        "ready_seconds": ready_seconds,
        "steps_per_update": config["NUM_ENVS"] * config["NUM_STEPS"],
        "parameters": _parameters(out["runner_state"]),
        "gradient_steps": _gradient_steps(out["runner_state"]),
        "updates": updates,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(answer), flush=True)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _train_states(tree: Any) -> list[Any]:
    """The flax train states in a runner's state."""
    is_state = lambda x: hasattr(x, "opt_state")  # noqa: E731
    return [x for x in jax.tree.leaves(tree, is_leaf=is_state) if is_state(x)]


def _parameters(runner: Any) -> int:
    return sum(x.size for state in _train_states(runner) for x in jax.tree.leaves(state.params))


def _gradient_steps(runner: Any) -> int:
    """Counted by the optimiser, not worked out from the settings."""
    return int(_train_states(runner)[0].step)


if __name__ == "__main__":
    main()
