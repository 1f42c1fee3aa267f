"""Environments with PyMARL's `MultiAgentEnv` interface (SMAC, SMACv2, SMAClite, Google Research Football).

`pymarl:package.module:Class`. What is used: get_env_info (n_agents, n_actions, obs_shape, state_shape, episode_limit),
reset, step, get_obs, get_state, get_avail_actions and close. `step` returns (reward, terminated, info), or EPyMARL's
(obs, reward, terminated, truncated, info). A scalar reward is given to every agent.

Seeds: `reset(seed=...)` if it takes one, else `seed(seed)` if that takes one; else episodes are not reproducible.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rookery.core.errors import ConfigError
from rookery.core.host import Rows
from rookery.core.ranges import Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, family
from rookery.tasks.host import base
from rookery.tasks.host.gymnasium_task import make_spec
from rookery.tasks.host.spaces import Actions, Observations, show, violation

METHODS = ("get_env_info", "get_obs", "get_state", "get_avail_actions", "reset", "step")
WINS = ("battle_won", "score_reward", "is_success", "success")
"""Entries of `info` that say at the end whether the episode was won: SMAC's, football's, and common ones."""


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class PyMarl(base.MadeTask):
    """An environment with PyMARL's MultiAgentEnv interface."""

    family: Literal["pymarl"] = "pymarl"
    path: str = "smac.env:StarCraft2Env"
    """package.module:Class."""
    kwargs: str = "{}"
    """Keyword arguments of the class, a JSON object such as {"map_name": "3m"}."""
    limit: Whole = 0
    """Transitions after which an episode is truncated; 0: the environment's own episode_limit."""
    noop_is_dead: bool = False
    """An agent whose only available action is 0 is dead, as in SMAC. The interface itself does not say who lives."""
    score: Literal["return", "success"] = "return"
    """What an episode is scored by: the return, or the environment's own word on who won (battle_won)."""
    cooperative: bool = True
    """Whether maximizing the mean reward of all agents is the goal."""

    def __post_init__(self) -> None:
        base.set_canonical(self, kwargs=base.canonical_kwargs(self.kwargs))
        check_ranges(self, "task")

    def make(self) -> PyMarlEnv:
        """One environment."""
        name = f"pymarl:{self.path}"
        env = base.call(base.load(self.path, name), base.parse_kwargs(self.kwargs), name)
        return self.adapt(env, name)

    def adapt(self, env: Any, name: str) -> PyMarlEnv:
        """A given environment, stepped with this config's settings."""
        absent = [method for method in METHODS if not callable(getattr(env, method, None))]
        if absent:
            raise ConfigError(f"{name} has no MultiAgentEnv interface: {', '.join(absent)} missing.")
        return PyMarlEnv(self, env, name)


class PyMarlEnv:
    """One MultiAgentEnv that writes rows."""

    def __init__(self, config: PyMarl, env: Any, name: str) -> None:
        from gymnasium.spaces import Box, Discrete

        self._env, self._name, self._t = env, name, 0
        self._config = config = replace(config)
        self._seeded = _seeding(env)
        try:
            info = env.get_env_info()
            n, width, obs, state = (info[key] for key in ("n_agents", "n_actions", "obs_shape", "state_shape"))
        except (KeyError, TypeError, AttributeError):
            # Several environments know their sizes only after a reset.
            self._seeded(0)
            info = env.get_env_info()
            n, width, obs, state = (info[key] for key in ("n_agents", "n_actions", "obs_shape", "state_shape"))
        agents = tuple(f"agent_{i}" for i in range(int(n)))
        space = Box(-np.inf, np.inf, _shape(obs), np.float32)
        self.actions = Actions(name, agents, [Discrete(int(width))] * len(agents))
        self.observations = Observations(name, agents, [space] * len(agents))
        self._limit = config.limit or int(info.get("episode_limit") or 0)
        self.spec = make_spec(
            name,
            agents,
            self.actions,
            self.observations,
            limit=self._limit,
            cooperative=config.cooperative,
            state_shape=_shape(state),
            score=config.score,
        )

    def reset(self, seed: int, row: Rows) -> None:
        """Begin an episode."""
        self._seeded(seed)
        self._t = 0
        self._see(row)

    def step(self, action: Any, row: Rows) -> None:
        """All agents take an action."""
        result = self._env.step(list(action))
        if len(result) == 5:
            _, reward, terminated, truncated, info = result
        else:
            (reward, terminated, info), truncated = result, False
        self._t += 1
        self._see(row)
        try:
            row.reward[...] = reward
        except (TypeError, ValueError):
            problem = f"must be a number, or one for each agent: {show(reward)}"
            raise violation(self._name, "all", "reward", problem) from None
        done = bool(np.all(terminated))
        cut = bool(np.all(truncated)) or (isinstance(info, Mapping) and bool(info.get("episode_limit", False)))
        if not (done or cut or self._t == self._limit):
            return
        if done and not cut:
            row.discount[...] = 0
        row.last[...] = True
        row.success[...] = _won(info)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _see(self, row: Rows) -> None:
        seen, legal = self._env.get_obs(), np.asarray(self._env.get_avail_actions())
        if len(seen) != self.spec.n_agents:
            raise violation(self._name, "all", "observation", f"has {len(seen)} entries: {show(seen)}")
        for writer, obs, out in zip(self.observations.each, seen, row.obs, strict=True):
            writer.write(np.asarray(obs), out)
        if legal.shape != row.legal.shape:
            raise violation(self._name, "all", "avail_actions", f"have shape {legal.shape}, not {row.legal.shape}")
        row.legal[...] = legal
        state = np.asarray(self._env.get_state())
        if state.shape != row.state.shape:
            problem = f"has shape {state.shape}, not {row.state.shape}: {show(state)}"
            raise violation(self._name, "all", "state", problem)
        row.state[...] = state
        if self._config.noop_is_dead:
            row.alive[...] = row.legal[:, 1:].any(axis=1)
            row.discount[...] = row.alive


def _shape(size: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in size) if isinstance(size, (tuple, list)) else (int(size),)


def _won(info: Any) -> float:
    """The environment's own word on whether the episode was won; 0 if it has none."""
    found = [info[key] for key in WINS if key in info] if isinstance(info, Mapping) else []
    return float(found[0]) if found else 0.0


def _seeding(env: Any) -> Callable[[int], Any]:
    """How an episode is begun from a seed."""
    if "seed" in inspect.signature(env.reset).parameters:
        return lambda seed: env.reset(seed=seed)
    setter = getattr(env, "seed", None)
    if callable(setter) and inspect.signature(setter).parameters:
        return lambda seed: (setter(seed), env.reset())
    return lambda seed: env.reset()
