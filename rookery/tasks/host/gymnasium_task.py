"""Any Gymnasium environment: `gymnasium:CartPole-v1`.

An environment whose action and observation spaces are Tuples of one length (lbforaging, rware) has that many agents;
its rewards are a list. Any other environment has one agent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from rookery.core.errors import ConfigError
from rookery.core.host import Rows
from rookery.core.ranges import BelowOne, Count, NonNegative, Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, family
from rookery.core.types import Spec
from rookery.tasks.host import base
from rookery.tasks.host.spaces import Actions, Observations, mask_of, show, violation

PLUGINS = {
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "Foraging": "lbforaging",
    "rware": "rware",
    "ALE/": "ale_py",
    "Vizdoom": "vizdoom.gymnasium_wrapper",
}
"""Beginning of an id -> the package that registers it when it is imported."""
NEEDS = {"box2d": "box2d", "swig": "box2d", "mujoco": "mujoco"}
"""Word in Gymnasium's complaint about a package that is missing -> the extra that brings it."""
LIMITS = ("max_steps", "_max_episode_steps")
"""Attributes in which environments without a TimeLimit keep their own (minigrid, rware, lbforaging)."""


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Gymnasium(base.MadeTask):
    """A registered Gymnasium environment."""

    family: Literal["gymnasium"] = "gymnasium"
    id: str = "CartPole-v1"
    """Registered id; package:Id-v0 imports the package first."""
    kwargs: str = "{}"
    """Keyword arguments of the environment, a JSON object such as {"continuous": true}."""
    wrappers: tuple[str, ...] = ()
    """Wrappers from the inside out, each package.module:Class or package.module:Class({"argument": 1})."""
    limit: Whole = 0
    """Transitions after which an episode is truncated; 0: the environment's own limit, if it has one."""
    limit_is_truncation: bool = False
    """Treat a termination at the limit as a truncation, for environments that report their time limit as terminated
    (lbforaging, rware)."""
    frame_skip: Count = 1
    """Environment steps per action; their rewards are summed."""
    sticky: BelowOne = 0.0
    """Probability that an environment step repeats the previous action instead of the chosen one."""
    clip_rewards: NonNegative = 0.0
    """Clip rewards to plus or minus this; 0: no clipping. `success` then holds the return without clipping, which is
    the score."""
    clip_actions: bool = True
    """Clip a Box action to the bounds of its space before the environment sees it."""
    drop: tuple[str, ...] = ()
    """Entries of a Dict observation that are left out, for example mission."""
    cooperative: bool = True
    """Whether maximizing the mean reward of all agents is the goal (only for environments with several agents)."""
    check_bounds: bool = True
    """Stop if an observation is outside the bounds that the environment declares. NaN and infinity always stop."""

    def __post_init__(self) -> None:
        base.set_canonical(
            self,
            kwargs=base.canonical_kwargs(self.kwargs),
            wrappers=base.canonical_list(self.wrappers, "task.wrappers"),
            drop=base.canonical_list(self.drop, "task.drop"),
        )
        check_ranges(self, "task")
        for wrapper in self.wrappers:
            split_wrapper(wrapper)

    @property
    def score_unit(self) -> str:
        """What `Step.success` counts: the return, where rewards are clipped."""
        return "return without clipping" if self.clip_rewards else "success"

    def make(self) -> GymnasiumEnv:
        """One environment."""
        name = f"gymnasium:{self.id}"
        env = make_registered(self.id, base.parse_kwargs(self.kwargs), self.limit * self.frame_skip, name)
        return self.adapt(wrap(env, self.wrappers), name)

    def adapt(self, env: Any, name: str) -> GymnasiumEnv:
        """A given Gymnasium environment, stepped with this config's settings."""
        return GymnasiumEnv(self, env, name)


class GymnasiumEnv:
    """One Gymnasium environment that writes rows."""

    def __init__(self, config: Gymnasium, env: Any, name: str) -> None:
        self._env, self._name = env, name
        self._config = config = replace(config)
        self._several = is_multi_agent(env)
        action, seen = env.action_space, env.observation_space
        acts, sees = (tuple(action.spaces), tuple(seen.spaces)) if self._several else ((action,), (seen,))
        agents = tuple(f"agent_{i}" for i in range(len(acts))) if self._several else ("agent",)
        self.actions = Actions(name, agents, acts, clip=config.clip_actions)
        self.observations = Observations(name, agents, sees, config.drop, check=config.check_bounds)
        limit = config.limit or math.ceil(own_limit(env) / config.frame_skip)
        self.spec = make_spec(
            name,
            agents,
            self.actions,
            self.observations,
            limit=limit,
            cooperative=config.cooperative,
            score="success" if config.clip_rewards else "return",
        )
        self._limit, self._t, self._score = limit, 0, 0.0
        self._native, self._write = self.actions.native[0], self.observations.each[0].write
        self._masked = self.observations.each[0].masked
        self._plain = config.frame_skip == 1 and not config.sticky
        self._rng, self._previous = np.random.default_rng(0), None

    def reset(self, seed: int, row: Rows) -> None:
        """Begin an episode."""
        obs, info = self._env.reset(seed=seed)
        self._t, self._score, self._previous = 0, 0.0, None
        if self._config.sticky:
            self._rng = np.random.default_rng(seed)
        self._see(obs, info, row)

    def step(self, action: Any, row: Rows) -> None:
        """Take one action."""
        if self._several:
            native: Any = tuple(f(a) for f, a in zip(self.actions.native, action, strict=True))
        else:
            native = self._native(action[0])
        obs, reward, terminated, truncated, info = self._env.step(native) if self._plain else self._repeat(native)
        self._t += 1
        if self._several or info or self._masked:
            self._see(obs, info, row)
        else:
            self._write(obs, row.obs[0])
        self._earn(reward, row)
        if self._several:
            self._leave(np.asarray(terminated, bool), np.asarray(truncated, bool), info, row)
        elif terminated or truncated or self._t == self._limit:
            self._end(bool(terminated), info, row)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _see(self, obs: Any, info: Any, row: Rows) -> None:
        each = self.observations.each
        if self._several and len(obs) != len(each):
            raise violation(self._name, "all", "observation", f"has {len(obs)} entries, not {len(each)}: {show(obs)}")
        for i, writer in enumerate(each):
            part = obs[i] if self._several else obs
            writer.write(part, row.obs[i])
            mask = mask_of(part, info, in_obs=writer.masked)
            if mask is not None:
                self._masked = True
                mask = mask[i] if self._several and not writer.masked else mask
                self.actions.mask(self._name, i, writer.agent, mask, row.legal[i])
            elif self._masked:
                row.legal[i] = self.actions.legal[i]

    def _earn(self, reward: Any, row: Rows) -> None:
        try:
            row.reward[...] = reward if self._several else float(reward)
        except (TypeError, ValueError):
            wanted = f"{self.spec.n_agents} numbers" if self._several else "a number"
            raise violation(self._name, "all", "reward", f"must be {wanted}: {show(reward)}") from None
        clip = self._config.clip_rewards
        if clip:
            self._score += float(row.reward.mean())
            np.clip(row.reward, -clip, clip, out=row.reward)

    def _leave(self, terminated: np.ndarray, truncated: np.ndarray, info: Any, row: Rows) -> None:
        """Endings of several agents: one word for all, or one for each. The episode ends with the last agent."""
        gone = terminated | truncated | ~row.alive
        if gone.all() or self._t == self._limit:
            self._end(terminated, info, row)
        elif gone.any():
            row.alive[gone] = False
            row.discount[gone] = 0
            row.legal[gone] = (self.actions.idle & self.actions.legal)[gone]

    def _end(self, terminated: bool | np.ndarray, info: Any, row: Rows) -> None:
        """The row closes the episode. A time limit keeps the discount."""
        if not (self._config.limit_is_truncation and self._t == self._limit):
            row.discount[terminated] = 0
        row.last[...] = True
        row.success[...] = self._score if self._config.clip_rewards else success_of(info)

    def _repeat(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Frame skip and sticky actions: one action for several environment steps."""
        total: Any = 0.0
        obs, terminated, truncated, info = None, False, False, {}
        for _ in range(self._config.frame_skip):
            if self._previous is None or self._rng.random() >= self._config.sticky:
                self._previous = action
            obs, reward, terminated, truncated, info = self._env.step(self._previous)
            total = total + (np.asarray(reward) if self._several else reward)
            if np.all(np.logical_or(terminated, truncated)):
                break
        return obs, total, terminated, truncated, info


def make_spec(
    name: str,
    agents: Sequence[str],
    actions: Actions,
    observations: Observations,
    *,
    limit: int,
    cooperative: bool = True,
    teams: tuple[str, ...] = (),
    state_shape: tuple[int, ...] = (),
    score: Literal["return", "success"] = "return",
    frames: int = 1,
) -> Spec:
    """The spec of a task with these spaces."""
    return Spec(
        name=name,
        agents=tuple(agents),
        obs_shape=observations.shape,
        action=actions.spec,
        limit=limit,
        state_shape=state_shape,
        obs_sizes=observations.sizes,
        action_sizes=actions.padded_sizes,
        teams=teams,
        cooperative=cooperative,
        score=score,
        obs_dtype=observations.dtype,
        frames=frames,
    )


def success_of(info: Any) -> float:
    """The environment's own word on success at the end of an episode; 0 if it has none."""
    if not info:
        return 0.0
    return float(info.get("is_success", info.get("success", 0.0)) or 0.0)


def is_multi_agent(env: Any) -> bool:
    """Whether both spaces are Tuples of one length: one entry per agent."""
    from gymnasium.spaces import Tuple

    action, seen = env.action_space, env.observation_space
    return isinstance(action, Tuple) and isinstance(seen, Tuple) and len(action.spaces) == len(seen.spaces)


def own_limit(env: Any) -> int:
    """Steps after which the environment ends an episode by itself; 0 if it does not say."""
    declared = env.spec.max_episode_steps if env.spec is not None else None
    return declared or base.limit_of(env.unwrapped, LIMITS)


def make_registered(name: str, kwargs: dict[str, Any], limit: int, what: str) -> Any:
    """`gymnasium.make`, without its checker; plugins are imported by the beginning of the id."""
    gymnasium = base.import_module("gymnasium", what)
    for beginning, package in PLUGINS.items():
        if name.startswith(beginning):
            base.import_module(package, what)
    if ":" in name:
        base.import_module(name.partition(":")[0], what)
    options = {"max_episode_steps": limit} if limit else {}

    def make(**kwargs: Any) -> Any:
        try:
            return gymnasium.make(name, disable_env_checker=True, **options, **kwargs)
        except gymnasium.error.DependencyNotInstalled as error:
            extra = next((extra for word, extra in NEEDS.items() if word in str(error).lower()), "gymnasium")
            raise ConfigError(f"{what}: {str(error).rstrip('.')}. Run: pip install 'rookery[{extra}]'") from error
        except gymnasium.error.Error as error:
            known = [key for key in gymnasium.registry if key[:3].lower() == name.rpartition(":")[2][:3].lower()]
            close = base.suggest(name, known) if known else ""
            raise ConfigError(f"{what}: {str(error).rstrip('.')}.{close}") from error

    return base.call(make, kwargs, what)


def split_wrapper(text: str) -> tuple[str, dict[str, Any]]:
    """ "module:Class({...})" -> path and keyword arguments."""
    path, _, rest = text.partition("(")
    if rest and not rest.endswith(")"):
        raise ConfigError(f'task.wrappers: expected module:Class or module:Class({{"n": 1}}), got {text!r}.')
    return path, base.parse_kwargs(rest[:-1] or "{}", f"task.wrappers, {path}") if rest else {}


def wrap(env: Any, wrappers: Sequence[str]) -> Any:
    """The environment inside its wrappers."""
    for text in wrappers:
        path, kwargs = split_wrapper(text)
        env = base.call(partial(base.load(path, "task.wrappers"), env), kwargs, f"task.wrappers: {path}", "arguments")
    return env
