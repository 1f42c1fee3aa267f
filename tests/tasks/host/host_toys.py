"""Small environments of our own for tests: each is one peculiarity."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

OBS = Box(-1.0, 1.0, (3,), np.float32)


class Script(gymnasium.Env):
    """Plays back what it was given: (obs, reward, terminated, truncated, info) for each step."""

    def __init__(self, steps: list[Any] | None = None, observation_space: Any = OBS, action_space: Any = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or Discrete(3)
        self.steps, self.t, self.taken, self.seeds = steps or [], 0, [], []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        self.seeds.append(seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.taken.append(action)
        self.t += 1
        return self.steps[self.t - 1]


def ok(obs: Any = (0.1, 0.2, 0.3), reward: Any = 1.0, *, over: bool = False, cut: bool = False, **info: Any) -> Any:
    """One step of a script."""
    return (np.asarray(obs, np.float32) if isinstance(obs, tuple) else obs), reward, over, cut, info


class Comers:
    """A parallel PettingZoo environment whose agents leave and join by a script of (present, terminated, truncated)."""

    metadata: dict[str, Any] = {}  # noqa: RUF012  (PettingZoo's own convention)
    possible_agents = ("red_0", "red_1", "blue_0")

    def __init__(self, script: list[tuple[str, str, str]], start: str = "red_0 red_1 blue_0") -> None:
        self.script, self.start, self.t = script, start, 0
        self.agents: list[str] = []
        self.unwrapped = self
        self.asked: list[set[str]] = []

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (2 if agent == "blue_0" else 4,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2 if agent == "blue_0" else 5)

    def _see(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {a: np.full(2 if a == "blue_0" else 4, self.t + 1, np.float32) for a in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, self.start.split()
        return self._see(self.agents), {a: {} for a in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.asked.append(set(actions))
        present, terminated, truncated = (part.split() for part in self.script[self.t])
        self.t += 1
        seen = self._see(sorted({*present, *terminated, *truncated}))
        self.agents = list(present)
        flags = [{a: a in names for a in seen} for names in (terminated, truncated)]
        return seen, {a: float(self.t) for a in seen}, *flags, {a: {} for a in seen}

    def close(self) -> None: ...


class Corridor:
    """PyMARL's MultiAgentEnv: two agents walk to the end of a corridor; action 0 is a no-op for those who arrived."""

    def __init__(self, length: int = 3, episode_limit: int = 6) -> None:
        self.length, self.episode_limit, self.seed_ = length, episode_limit, 0

    def seed(self, seed: int) -> None:
        self.seed_ = seed

    def reset(self) -> Any:
        rng = np.random.default_rng(self.seed_)
        self.place, self.t = rng.integers(0, 2, 2), 0
        return self.get_obs(), self.get_state()

    def step(self, actions: list[int]) -> Any:
        for i, action in enumerate(actions):
            assert self.get_avail_actions()[i][action], "an action that is not available"
            self.place[i] += action == 2
        self.t += 1
        won = bool((self.place >= self.length).all())
        info: dict[str, Any] = {"battle_won": won}
        if not won and self.t >= self.episode_limit:
            info["episode_limit"] = True
        return float(won), won or self.t >= self.episode_limit, info

    def get_obs(self) -> list[np.ndarray]:
        return [np.array([p, self.t], np.float32) for p in self.place]

    def get_state(self) -> np.ndarray:
        return np.array([*self.place, self.t], np.float32)

    def get_avail_actions(self) -> list[list[int]]:
        return [[1, 0, 0] if p >= self.length else [0, 1, 1] for p in self.place]

    def get_env_info(self) -> dict[str, int]:
        sizes = {"n_agents": 2, "n_actions": 3, "obs_shape": 2, "state_shape": 3}
        return sizes | {"episode_limit": self.episode_limit}

    def close(self) -> None: ...


class Foragers:
    """lbforaging behind PyMARL's interface, as EPyMARL wraps it: rewards are summed, five values per step."""

    def __init__(self, name: str = "Foraging-5x5-2p-1f-v3", limit: int = 50) -> None:
        import lbforaging  # noqa: F401  (registers the environment)

        self.env = gymnasium.make(name, disable_env_checker=True)
        self.episode_limit, self.seen = limit, None

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seen, info = self.env.reset(seed=seed)
        return self.seen, info

    def step(self, actions: list[int]) -> Any:
        self.seen, rewards, over, cut, info = self.env.step(tuple(actions))
        return self.seen, float(sum(rewards)), over, cut, info

    def get_obs(self) -> Any:
        return self.seen

    def get_state(self) -> np.ndarray:
        return np.concatenate(self.seen)

    def get_avail_actions(self) -> Any:
        return [[1] * 6] * 2

    def get_env_info(self) -> dict[str, int]:
        size = int(self.env.observation_space[0].shape[0])
        sizes = {"n_agents": 2, "n_actions": 6, "obs_shape": size, "state_shape": 2 * size}
        return sizes | {"episode_limit": self.episode_limit}

    def close(self) -> None:
        self.env.close()


def cart_pole(gravity: float = 9.8) -> Any:
    """A factory of a Gymnasium environment."""
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.gravity = gravity  # pyright: ignore[reportAttributeAccessIssue]  (CartPole has it)
    return env


def tic_tac_toe() -> Any:
    """A factory of an AEC environment."""
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


def nothing() -> int:
    """Not a factory."""
    return 3


def broken() -> int:
    """A factory that fails."""
    return {}["nothing"]


def menu() -> Script:
    """A factory of an environment with a Dict observation, a mask in it, and a Discrete that begins at 5."""
    return Script([], Dict({"dish": Discrete(3), "action_mask": MultiBinary(2)}), Discrete(2, start=5))


def two_menus() -> Script:
    """A factory of an environment of two agents whose branches differ in size."""
    seen = Tuple((Box(0, 1, (2,), np.float32), Discrete(3)))
    return Script([], seen, Tuple((MultiDiscrete([2, 3]), MultiDiscrete([3, 2]))))
