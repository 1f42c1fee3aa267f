"""Stable-Baselines3, timed, in an interpreter that has it; nothing of rookery is imported.

`host.py` and `continuous.py` start this. The request comes as JSON in the first argument, the answer is the last line
of output. What is timed is `learn`, after a first call of it that warms everything up. With `episodes` the policy
then plays so many of them greedily.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def main() -> None:
    """Steps per second, learning included."""
    request = json.loads(sys.argv[1])
    torch = importlib.import_module("torch")
    if request["threads"]:
        torch.set_num_threads(request["threads"])
    library = importlib.import_module("stable_baselines3")
    make = importlib.import_module("stable_baselines3.common.env_util").make_vec_env
    envs, settings, seed = make(request["task"], request["envs"]), request["settings"], request.get("seed", 0)
    if request.get("noise"):
        settings["action_noise"] = _noise(envs.action_space.shape, request["noise"])
    learner = getattr(library, request["algorithm"])("MlpPolicy", envs, device="cpu", seed=seed, **settings)
    learner.learn(request["warm_up"])
    steps, start = learner.num_timesteps, time.perf_counter()
    learner.learn(request["steps"], reset_num_timesteps=False)
    taken = learner.num_timesteps - steps
    answer = {
        "steps_per_second": round(taken / (time.perf_counter() - start)),
        "parameters": sum(p.numel() for p in learner.policy.parameters() if p.requires_grad),
    }
    if request.get("episodes"):
        play = importlib.import_module("stable_baselines3.common.evaluation").evaluate_policy
        fresh = make(request["task"], request["envs"], seed=10_000 + seed)
        answer["score"] = float(play(learner, fresh, n_eval_episodes=request["episodes"])[0])
    print(json.dumps(answer))


def _noise(shape: tuple[int, ...], scale: float) -> Any:
    """What TD3 adds to actions while it collects."""
    numpy, noise = importlib.import_module("numpy"), importlib.import_module("stable_baselines3.common.noise")
    return noise.NormalActionNoise(numpy.zeros(shape), numpy.full(shape, scale))


if __name__ == "__main__":
    main()
