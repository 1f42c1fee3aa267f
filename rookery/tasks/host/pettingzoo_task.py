"""Any PettingZoo environment: `pettingzoo:mpe2.simple_adversary_v3`.

- `parallel_env` is used if the module has it. Otherwise `env` (AEC) is converted by PettingZoo where that is safe
  (`is_parallelizable`); else it is played turn by turn: one row per move.
- Agents are `possible_agents`, in that order, in every row. An agent that is absent (dead, gone, not yet there) has
  `alive` false, discount 0, reward 0 and observation 0. The row of its last step still has its observation and reward.
- An agent that does not act in a row (absent, or waiting for its turn) has one legal action, option 0, and its action
  is ignored. A waiting player stays `alive`, so that its values are trained.
- The episode ends with the row in which the last present agent ends. There, terminated agents have discount 0 and
  truncated ones 1. An agent that is truncated alone, while others go on, has discount 0 from then on: a return that
  goes on without rows cannot be expressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rookery.core.errors import ConfigError, suggest
from rookery.core.host import Rows
from rookery.core.ranges import Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, family
from rookery.tasks.host import base
from rookery.tasks.host.gymnasium_task import make_spec, split_wrapper, success_of, wrap
from rookery.tasks.host.spaces import Actions, Observations, mask_of, show, violation


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class PettingZoo(base.MadeTask):
    """A PettingZoo environment, parallel or AEC."""

    family: Literal["pettingzoo"] = "pettingzoo"
    module: str = "mpe2.simple_spread_v3"
    """Full path of a module with `parallel_env` or `env`."""
    kwargs: str = "{}"
    """Keyword arguments of the environment, a JSON object such as {"N": 3}."""
    wrappers: tuple[str, ...] = ()
    """Wrappers from the inside out, each package.module:Class or package.module:Class({"argument": 1})."""
    limit: Whole = 0
    """Transitions after which an episode is truncated; 0: the environment's own limit, if it has one. In a turn-based
    game every move is a transition."""
    cooperative: bool = True
    """Whether maximizing the mean reward of all agents is the goal. Names that are known to be competitive set it to
    false."""
    teams: tuple[str, ...] = ()
    """Team of each agent if the goal is not cooperative. (): by the names' prefixes (adversary_0, agent_0), or each
    agent for itself if there is one prefix."""
    state: bool = False
    """Use the environment's `state()` as the global state. False: all observations, joined."""
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
            wrappers=base.canonical_list(self.wrappers, "task.wrappers"),
            teams=base.canonical_list(self.teams, "task.teams"),
            drop=base.canonical_list(self.drop, "task.drop"),
        )
        check_ranges(self, "task")
        for wrapper in self.wrappers:
            split_wrapper(wrapper)

    def make(self) -> ParallelPlayer | TurnPlayer:
        """One environment."""
        name = f"pettingzoo:{self.module}"
        base.import_module("pettingzoo", name)
        module = base.import_module(self.module, name)
        maker = vars(module).get("parallel_env") or vars(module).get("env")
        if maker is None:
            raise ConfigError(f"{name}: the module has neither parallel_env nor env.{_modules_in(module)}")
        return self.adapt(wrap(base.call(maker, base.parse_kwargs(self.kwargs), name), self.wrappers), name)

    def adapt(self, env: Any, name: str) -> ParallelPlayer | TurnPlayer:
        """A given PettingZoo environment, stepped with this config's settings."""
        if not callable(getattr(env, "last", None)):  # AEC alone has it; not every parallel one has PettingZoo's base
            return ParallelPlayer(self, ParticleWorld(env) if ParticleWorld.is_in(env) else env, name)
        if env.metadata.get("is_parallelizable", False):
            conversions = base.import_module("pettingzoo.utils.conversions", name)
            return ParallelPlayer(self, conversions.aec_to_parallel(env), name)
        return TurnPlayer(self, env, name)


class Table:
    """What both kinds of PettingZoo environment share: agents, spaces, and writing of one agent's row."""

    def __init__(self, config: PettingZoo, env: Any, name: str, *, turns: bool) -> None:
        self.env, self.name = env, name
        # Some environments know their agents, and the size of their state, only after a reset.
        env.reset(seed=0)
        self.agents = tuple(getattr(env, "possible_agents", None) or env.agents)
        self.index = {agent: i for i, agent in enumerate(self.agents)}
        names = tuple(str(agent) for agent in self.agents)
        self.actions = Actions(name, names, [env.action_space(a) for a in self.agents], clip=config.clip_actions)
        seen = [env.observation_space(a) for a in self.agents]
        self.observations = Observations(name, names, seen, config.drop, check=config.check_bounds)
        # A turn-based environment counts cycles, not moves: only a limit from the config is known there.
        self.limit = config.limit or (0 if turns else _own_limit(env.unwrapped))
        self.uses_state = config.state
        self.spec = make_spec(
            name,
            names,
            self.actions,
            self.observations,
            limit=self.limit,
            cooperative=config.cooperative,
            teams=() if config.cooperative or len(names) == 1 else _teams(config.teams, names, name),
            state_shape=_state_of(env, name).shape if config.state else (),
        )

    def position(self, agent: Any) -> int:
        """Index of an agent that the environment named."""
        if agent not in self.index:
            raise violation(self.name, str(agent), "agent", f"is not in possible_agents {show(self.agents)}")
        return self.index[agent]

    def see(self, i: int, obs: Any, info: Any, row: Rows) -> None:
        """Write what an acting agent observes, and its mask."""
        writer = self.observations.each[i]
        writer.write(obs, row.obs[i])
        mask = mask_of(obs, info, in_obs=writer.masked)
        if mask is None:
            row.legal[i] = self.actions.legal[i]
        else:
            self.actions.mask(self.name, i, writer.agent, mask, row.legal[i])

    def earn(self, i: int, reward: Any, row: Rows) -> None:
        """Write an agent's reward."""
        try:
            row.reward[i] = float(reward)
        except (TypeError, ValueError):
            raise violation(self.name, self.spec.agents[i], "reward", f"must be a number: {show(reward)}") from None

    def absent(self, i: int, row: Rows) -> None:
        """The agent does not act from this row on."""
        row.alive[i] = False
        row.discount[i] = 0
        self.idle(i, row)

    def idle(self, i: int, row: Rows) -> None:
        """The agent's action is ignored in this row."""
        row.legal[i] = self.actions.idle & self.actions.legal[i]

    def write_state(self, row: Rows) -> None:
        """Write the environment's own state, if it is used."""
        if self.uses_state:
            state = _state_of(self.env, self.name)
            if state.shape != row.state.shape:
                problem = f"has shape {state.shape}, not {row.state.shape}: {show(state)}"
                raise violation(self.name, "all", "state", problem)
            row.state[...] = state


class ParallelPlayer:
    """One parallel environment that writes rows."""

    def __init__(self, config: PettingZoo, env: Any, name: str) -> None:
        self._table, self._env, self._t = Table(config, env, name, turns=False), env, 0
        self.spec, self.actions, self.observations = self._table.spec, self._table.actions, self._table.observations
        self._alive: list[bool] = []

    def reset(self, seed: int, row: Rows) -> None:
        """Begin an episode."""
        table, self._t = self._table, 0
        observations, infos = self._env.reset(seed=seed)
        present = {table.position(agent) for agent in self._env.agents}
        self._alive = [i in present for i in range(len(table.agents))]
        for i, agent in enumerate(table.agents):
            if i in present:
                table.see(i, observations[agent], _of(infos, agent), row)
            else:
                table.absent(i, row)
        table.write_state(row)

    def step(self, action: Any, row: Rows) -> None:
        """Everybody present takes an action."""
        table, index, native = self._table, self._table.index, self.actions.native
        chosen = {agent: native[i := index[agent]](action[i]) for agent in self._env.agents}
        observations, rewards, terminated, truncated, infos = self._env.step(chosen)
        self._t += 1
        agents = self._env.agents
        going = {a for a in agents if not (terminated.get(a, False) or truncated.get(a, False))}
        for stranger in going.difference(index):
            table.position(stranger)
        cut = self._t == table.limit
        row.reward[...] = 0
        for i, agent in enumerate(table.agents):
            if agent in going:
                self._go_on(i, observations[agent], _of(infos, agent), row)
            elif self._alive[i]:
                self._end(i, agent, observations, infos, row)
                if terminated.get(agent, False) or (going and not cut):
                    table.absent(i, row)
            else:
                row.obs[i] = 0
            if agent in rewards and (self._alive[i] or agent in going):
                table.earn(i, rewards[agent], row)
        table.write_state(row)
        if not going or cut:
            self._close(row, infos)
        else:
            self._alive = [agent in going for agent in table.agents]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _go_on(self, i: int, obs: Any, info: Any, row: Rows) -> None:
        if not self._alive[i]:  # it has just joined
            row.alive[i] = True
            row.discount[i] = 1
        self._table.see(i, obs, info, row)

    def _end(self, i: int, agent: Any, observations: Any, infos: Any, row: Rows) -> None:
        """The last observation of an agent; some environments leave it out, then it is 0."""
        if agent in observations:
            self._table.see(i, observations[agent], _of(infos, agent), row)
        else:
            row.obs[i] = 0

    def _close(self, row: Rows, infos: Any) -> None:
        row.alive[...] = self._alive
        row.last[...] = True
        row.success[...] = max((success_of(info) for info in _values(infos)), default=0.0)


class ParticleWorld:
    """A discrete particle world of mpe2, played without PettingZoo's wrappers around it: the same rows in less time.

    Converted from turns, a step asks every agent for an observation that is thrown away, and finds all attributes
    through two wrappers that look for misuse (no reset, actions out of bounds), which cannot happen here.
    """

    def __init__(self, env: Any) -> None:
        self.unwrapped = self._world = world = env.unwrapped
        self.possible_agents, self.agents = env.possible_agents, list[Any]()
        self.action_space, self.observation_space = world.action_space, world.observation_space
        self.state, self.close = world.state, world.close

    @staticmethod
    def is_in(env: Any) -> bool:
        """Whether this is what mpe2's `parallel_env` makes, and nothing else is around the world."""
        found = []
        while env is not getattr(env, "unwrapped", env):
            found.append(type(env).__name__)
            env = getattr(env, "aec_env", None) or getattr(env, "env", None)
        known = ["aec_to_parallel_wrapper", "OrderEnforcingWrapper", "AssertOutOfBoundsWrapper"]
        return found == known and any(base.__module__ == "mpe2._mpe_utils.simple_env" for base in type(env).__mro__)

    def reset(self, seed: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin an episode."""
        self._world.reset(seed=seed)
        self.agents = self._world.agents
        return self._observe(), self._world.infos

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Everybody takes an action; the world moves with the last one."""
        world = self._world
        for agent in world.agents:
            world.step(actions[agent])
        terminated, truncated = world.terminations, world.truncations
        # Everybody's episode ends in the same step. What AEC wants of dead agents then, a reset makes up for.
        self.agents = [a for a in world.agents if not (terminated[a] or truncated[a])]
        # The sum over the turns of a step, all but the last of which are 0: no reward is -0.0.
        rewards = {agent: 0 + reward for agent, reward in world.rewards.items()}
        return self._observe(), rewards, terminated, truncated, world.infos

    def _observe(self) -> dict[Any, Any]:
        return {agent: self._world.observe(agent) for agent in self._world.agents}


class TurnPlayer:
    """One turn-based AEC environment: every move is a row, and all players observe every row."""

    def __init__(self, config: PettingZoo, env: Any, name: str) -> None:
        self._table, self._env, self._t = Table(config, env, name, turns=True), env, 0
        self.spec, self.actions, self.observations = self._table.spec, self._table.actions, self._table.observations

    def reset(self, seed: int, row: Rows) -> None:
        """Begin a game."""
        self._env.reset(seed=seed)
        self._t = 0
        self._observe(row, present=set(self._env.agents))

    def step(self, action: Any, row: Rows) -> None:
        """The player whose turn it is moves."""
        env, table = self._env, self._table
        mover = table.position(env.agent_selection)
        before = set(env.agents)
        env.step(self.actions.native[mover](action[mover]))
        self._t += 1
        rewards, terminated, truncated = dict(env.rewards), dict(env.terminations), dict(env.truncations)
        over = {a for a in env.agents if terminated[a] or truncated[a]}
        going = set(env.agents) - over
        row.reward[...] = 0
        for agent in before:
            table.earn(table.position(agent), rewards.get(agent, 0.0), row)
        infos = dict(env.infos)
        # The observations of this moment; then the dead are taken off the table, as AEC demands.
        self._observe(row, present=before if not going else going | over)
        for agent in before - going:
            i = table.position(agent)
            if going:
                table.absent(i, row)
            elif terminated.get(agent, True):
                row.discount[i] = 0
        if not going or self._t == table.limit:
            row.last[...] = True
            row.success[...] = max((success_of(info) for info in infos.values()), default=0.0)
        elif over:
            self._bury(row)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _observe(self, row: Rows, present: set[Any]) -> None:
        env, table = self._env, self._table
        for i, agent in enumerate(table.agents):
            if agent not in present:
                row.obs[i] = 0
                table.absent(i, row)
                continue
            obs = env.observe(agent)
            if agent == env.agent_selection:
                table.see(i, obs, _of(env.infos, agent), row)
            else:
                table.observations.each[i].write(obs, row.obs[i])
                table.idle(i, row)
        table.write_state(row)

    def _bury(self, row: Rows) -> None:
        """AEC wants an empty move of every dead agent; then it is somebody's turn."""
        env = self._env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        if env.agents:
            i = self._table.position(env.agent_selection)
            self._table.see(i, env.observe(env.agent_selection), _of(env.infos, env.agent_selection), row)


def _of(infos: Any, agent: Any) -> Any:
    return infos.get(agent) if isinstance(infos, Mapping) else None


def _values(infos: Any) -> Sequence[Mapping[str, Any]]:
    return [info for info in infos.values() if isinstance(info, Mapping)] if isinstance(infos, Mapping) else []


def _own_limit(env: Any) -> int:
    """`max_cycles`; sisl environments keep the game, and its limit, one object further in. 0 if there is none."""
    return base.limit_of(env, ("max_cycles",)) or base.limit_of(getattr(env, "env", None), ("max_cycles",))


def _state_of(env: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(env.state(), np.float32)
    except (NotImplementedError, AttributeError, TypeError) as error:
        raise ConfigError(f"{name} has no state() of its own ({error}): set --task.no-state.") from error


def _teams(given: tuple[str, ...], agents: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Teams as given, or by the part of the names before the last underscore, or each agent for itself."""
    if given and len(given) != len(agents):
        raise ConfigError(f"{name}: task.teams must name the team of each of {', '.join(agents)}; got {given}.")
    prefixes = tuple(agent.rpartition("_")[0] or agent for agent in agents)
    found = given or (prefixes if len(set(prefixes)) > 1 else agents)
    if len(set(found)) == 1:
        raise ConfigError(f"{name}: one team only, '{found[0]}': set --task.cooperative instead.")
    return found


def _modules_in(module: Any) -> str:
    """The environments that a package has, for messages."""
    import pkgutil

    found = [m.name for m in pkgutil.iter_modules(getattr(module, "__path__", [])) if "_v" in m.name]
    return suggest(module.__name__, [f"{module.__name__}.{name}" for name in found]) if found else ""
