"""Stable-Baselines3's DQN on an Atari game, timed while it learns: `atari.py` starts this in an interpreter that has
torch, stable_baselines3, ale_py and cv2. Nothing of rookery is imported.

The request comes as JSON in the first argument, the answer is the last line of output.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Learn for some seconds after the first gradient steps."""
    import ale_py
    import gymnasium
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    request: dict[str, Any] = json.loads(sys.argv[1])
    gymnasium.register_envs(ale_py)
    torch.set_num_threads(request["threads"])

    class Clock(BaseCallback):
        """Notes when measured steps begin and end."""

        begun, since = 0.0, 0

        def _on_step(self) -> bool:
            if not self.begun and self.num_timesteps > request["start"] + 40:
                self.begun, self.since = time.perf_counter(), self.num_timesteps
            return not self.begun or time.perf_counter() - self.begun < request["seconds"]

    # Not a life, but a game is an episode, as on our side.
    wrapper = {"terminal_on_life_loss": False}
    env = VecFrameStack(make_atari_env(f"{request['game']}NoFrameskip-v4", 1, seed=0, wrapper_kwargs=wrapper), 4)
    model = DQN(
        "CnnPolicy",
        env,
        buffer_size=request["capacity"],
        learning_starts=request["start"],
        batch_size=32,
        train_freq=4,
        gradient_steps=1,
        optimize_memory_usage=False,
        verbose=0,
    )
    clock = Clock()
    model.learn(10**9, callback=clock, log_interval=10**9)
    rate = (model.num_timesteps - clock.since) / (time.perf_counter() - clock.begun)
    print(f"\n{json.dumps({'steps_per_second': rate})}", flush=True)


if __name__ == "__main__":
    main()
