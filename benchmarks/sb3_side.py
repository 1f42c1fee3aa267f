"""Stable-Baselines3, timed: `host.py` starts this in an interpreter that has it. Nothing of rookery is imported.

The request comes as JSON in the first argument, the answer is the last line of output. What is timed is `learn`, after
a first call of it that warms everything up.
"""

from __future__ import annotations

import importlib
import json
import sys
import time


def main() -> None:
    """Steps per second, learning included."""
    request = json.loads(sys.argv[1])
    torch = importlib.import_module("torch")
    if request["threads"]:
        torch.set_num_threads(request["threads"])
    library = importlib.import_module("stable_baselines3")
    envs = importlib.import_module("stable_baselines3.common.env_util").make_vec_env(request["task"], request["envs"])
    learner = getattr(library, request["algorithm"])("MlpPolicy", envs, device="cpu", seed=0, **request["settings"])
    learner.learn(request["warm_up"])
    steps, start = learner.num_timesteps, time.perf_counter()
    learner.learn(request["steps"], reset_num_timesteps=False)
    taken = learner.num_timesteps - steps
    answer = {
        "steps_per_second": round(taken / (time.perf_counter() - start)),
        "parameters": sum(p.numel() for p in learner.policy.parameters() if p.requires_grad),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
