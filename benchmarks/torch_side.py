"""EPyMARL's or on-policy's own training script, timed from outside: `torch_peers.py` starts this in an interpreter that
has torch and their requirements. Nothing of rookery is imported.

The script is left as it is; around its learner's `train` the clock is noted, and after `seconds` of learning it is
stopped. The request comes as JSON in the first argument, the answer is the last line of output.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Run one script until its learner has learned for long enough."""
    request = json.loads(sys.argv[1])
    checkout = Path(request["checkout"])
    learner, script = PREPARE[request["code"]](checkout)
    plain, moments = learner.train, []

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = plain(self, *args, **kwargs)
        moments.append(time.perf_counter())
        measured = moments[request["skip"] :]
        if measured and measured[-1] - measured[0] > request["seconds"]:
            _answer(self, measured)
        return done

    learner.train = train
    os.chdir(checkout)
    sys.argv = [str(script), *request["arguments"]]
    runpy.run_path(str(script), run_name="__main__")
    raise SystemExit("the script came to its end before enough was measured.")


def _answer(learner: Any, moments: list[float]) -> None:
    """Print what was measured and end the process, without waiting for what it started."""
    held = learner.policy if hasattr(learner, "policy") else learner.mac
    # Beside the actors: QMIX has a mixer, MADDPG a critic.
    more = (getattr(learner, name, None) for name in ("mixer", "critic"))
    nets = [held.actor, held.critic] if hasattr(held, "actor") else [held, *filter(None, more)]
    answer = {
        "updates_per_second": (len(moments) - 1) / (moments[-1] - moments[0]),
        "parameters": sum(p.numel() for net in nets for p in net.parameters()),
    }
    print(f"\n{json.dumps(answer)}", file=sys.__stdout__, flush=True)
    os._exit(0)


def _epymarl(checkout: Path) -> tuple[type[Any], Path]:
    sys.path.insert(0, str(checkout / "src"))
    # PettingZoo's MPE is a package of its own by now, and nobody plays smaclite here.
    sys.modules["pettingzoo.mpe"] = importlib.import_module("mpe2")
    sys.modules["pettingzoo.mpe.simple_spread_v3"] = importlib.import_module("mpe2.simple_spread_v3")
    sys.modules["smaclite"] = ModuleType("smaclite")
    gymnasium = importlib.import_module("gymnasium")
    gymnasium.register(
        "mpe-spread-v0",
        entry_point="envs.pz_wrapper:PettingZooWrapper",
        kwargs={"lib_name": "mpe", "env_name": "simple_spread_v3"},
    )
    return importlib.import_module("learners.q_learner").QLearner, checkout / "src" / "main.py"


def _maddpg(checkout: Path) -> tuple[type[Any], Path]:
    _, script = _epymarl(checkout)
    return importlib.import_module("learners.maddpg_learner").MADDPGLearner, script


def _onpolicy(checkout: Path) -> tuple[type[Any], Path]:
    sys.path.insert(0, str(checkout))
    sys.modules["gym"] = importlib.import_module("gymnasium")
    sys.modules["gym.spaces"] = importlib.import_module("gymnasium.spaces")
    learner = importlib.import_module("onpolicy.algorithms.r_mappo.r_mappo").R_MAPPO
    return learner, checkout / "onpolicy" / "scripts" / "train" / "train_mpe.py"


PREPARE = {"epymarl": _epymarl, "epymarl_maddpg": _maddpg, "onpolicy": _onpolicy}

if __name__ == "__main__":
    main()
