"""An environment that a function of yours returns: `host:package.module:factory`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rookery.core.errors import ConfigError
from rookery.core.ranges import NonNegative, Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, family
from rookery.tasks.host import base
from rookery.tasks.host.gymnasium_task import Gymnasium
from rookery.tasks.host.pettingzoo_task import PettingZoo
from rookery.tasks.host.pymarl_task import METHODS, PyMarl


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Factory(base.MadeTask):
    """A function or class that returns a gymnasium.Env, a PettingZoo environment or a PyMARL MultiAgentEnv."""

    family: Literal["host"] = "host"
    path: str = "gymnasium.envs.classic_control:CartPoleEnv"
    """package.module:factory."""
    kwargs: str = "{}"
    """Keyword arguments of the factory, a JSON object such as {"size": 5}."""
    limit: Whole = 0
    """Transitions after which an episode is truncated; 0: the environment's own limit, if it has one."""
    cooperative: bool = True
    """Whether maximizing the mean reward of all agents is the goal."""
    teams: tuple[str, ...] = ()
    """Team of each agent of a PettingZoo environment whose goal is not cooperative; (): by the names' prefixes."""
    state: bool = False
    """Use `state()` of a PettingZoo environment as the global state. False: all observations, joined."""
    clip_rewards: NonNegative = 0.0
    """Clip rewards of a Gymnasium environment to plus or minus this; 0: no clipping."""
    clip_actions: bool = True
    """Clip a Box action to the bounds of its space before the environment sees it."""
    drop: tuple[str, ...] = ()
    """Entries of a Dict observation that are left out."""
    check_bounds: bool = True
    """Stop if an observation is outside the bounds that the environment declares. NaN and infinity always stop."""

    def __post_init__(self) -> None:
        base.set_canonical(
            self,
            kwargs=base.canonical_kwargs(self.kwargs),
            teams=base.canonical_list(self.teams, "task.teams"),
            drop=base.canonical_list(self.drop, "task.drop"),
        )
        check_ranges(self, "task")

    @property
    def score_unit(self) -> str:
        """What `Step.success` counts: the return, where rewards are clipped."""
        return "return without clipping" if self.clip_rewards else "success"

    def make(self) -> base.SingleEnv:
        """One environment, of whichever interface the factory's has."""
        name = f"host:{self.path}"
        env = base.call(base.load(self.path, name), base.parse_kwargs(self.kwargs), name)
        found = interface(env)
        if found == "gymnasium":
            return Gymnasium(
                limit=self.limit,
                clip_rewards=self.clip_rewards,
                clip_actions=self.clip_actions,
                drop=self.drop,
                cooperative=self.cooperative,
                check_bounds=self.check_bounds,
            ).adapt(env, name)
        if found == "pettingzoo":
            return PettingZoo(
                limit=self.limit,
                cooperative=self.cooperative,
                teams=self.teams,
                state=self.state,
                clip_actions=self.clip_actions,
                drop=self.drop,
                check_bounds=self.check_bounds,
            ).adapt(env, name)
        if found == "pymarl":
            return PyMarl(limit=self.limit, cooperative=self.cooperative).adapt(env, name)
        raise ConfigError(
            f"{name} returned {type(env).__name__}, which is neither a gymnasium.Env, nor a PettingZoo environment, "
            "nor a MultiAgentEnv (get_env_info, get_obs, get_avail_actions, ...)."
        )


def interface(env: Any) -> Literal["gymnasium", "pettingzoo", "pymarl", "unknown"]:
    """Which interface an environment has."""
    gymnasium = base.import_module("gymnasium", "host")
    if isinstance(env, gymnasium.Env):
        return "gymnasium"
    # By their methods: PyMARL's environments share no base class, and PettingZoo's may come without the package.
    if all(callable(getattr(env, method, None)) for method in METHODS):
        return "pymarl"
    if all(callable(getattr(env, method, None)) for method in ("action_space", "observation_space", "step", "reset")):
        return "pettingzoo"
    return "unknown"
