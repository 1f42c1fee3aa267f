"""Teams: an algorithm made of one algorithm per team, each with its own agents, weights and store.

A team learns as its own algorithm says, on a task that consists of its own agents. Or it is played by a saved policy
and stands still: a fixed opponent, which makes scores of the other teams comparable.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from safetensors.numpy import load_file

from rookery.core.config import OfFamily, label
from rookery.core.errors import ConfigError, suggest
from rookery.core.keys import stream
from rookery.core.ranges import Whole
from rookery.core.registry import ALGORITHMS, family
from rookery.core.types import Action, Algorithm, Arrays, Carry, Clock, Collect, Extra, Metrics, Rollout, Spec, Step

ByTeam = dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A policy on disk."""

    path: str = ""
    """File of a run's policies; empty: none, the team learns."""
    sha256: str = ""
    """Of the file: equal configs are the same run."""
    member: Whole = 0
    """Which of the run's members."""

    def load(self, like: Any) -> Arrays:
        """The member's best policy, laid out as `like` (shapes)."""
        try:
            data = Path(self.path).read_bytes()
        except OSError as error:
            raise ConfigError(f"the saved policy {self.path} cannot be read: {error.strerror}.") from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ConfigError(f"the saved policy {self.path} is not the one that this run was configured with.")
        arrays = load_file(self.path)

        def leaf(path: Any, shape: Any) -> Array:
            name = f".best{jax.tree_util.keystr(path)}"
            if name not in arrays or arrays[name].shape[1:] != shape.shape:
                raise ConfigError(f"the saved policy {self.path} is of another task or algorithm: {name} does not fit.")
            return jnp.asarray(arrays[name][self.member])

        return jax.tree_util.tree_map_with_path(leaf, like)


@dataclass(frozen=True)
class Team:
    """The agents of one team, and what moves them."""

    name: str
    """The task's name for the team."""
    preset: str
    """The preset that `algo` began from."""
    algo: Annotated[Algorithm[Any], OfFamily]
    """What the team learns by; of a saved policy, what it was trained by, on all agents."""
    saved: Saved = field(default_factory=Saved)

    @property
    def frozen(self) -> bool:
        """Whether a saved policy plays."""
        return bool(self.saved.path)

    def __str__(self) -> str:
        """Its name, and what moves it: the preset and what is changed of it, or whose policy."""
        return (
            f"{self.name}={self.preset}@{self.saved.sha256[:8]}"
            if self.frozen
            else (f"{self.name}={label(self.preset, self.algo)}")
        )


@family(ALGORITHMS)
@dataclass(frozen=True)
class Teams:
    """One algorithm per team."""

    family: Literal["teams"] = "teams"
    teams: tuple[Team, ...] = ()
    """What moves each team."""
    collect: Collect = field(default_factory=Collect)
    """How all of them gather experience: they play together."""

    def __post_init__(self) -> None:
        together = tuple(
            t if t.frozen or t.algo.collect == self.collect else replace(t, algo=_with_collect(t.algo, self.collect))
            for t in self.teams
        )
        object.__setattr__(self, "teams", together)

    # -- requirements -------------------------------------------------------------------------------------------
    def check(self, spec: Spec) -> None:
        """Refuse teams that the task does not have, and what each team's own algorithm refuses."""
        known, given = set(spec.teams), [t.name for t in self.teams]
        if not known:
            raise ConfigError(f"{spec.name} has no teams: leave out --team.")
        for name in given:
            if name not in known:
                raise ConfigError(f"{spec.name} has no team '{name}'.{suggest(name, known)}")
        if sorted(given) != sorted(known):
            raise ConfigError(
                f"every team needs one algorithm: {spec.name} has {', '.join(sorted(known))}; got {given}."
            )
        for team in self.teams:
            if not team.frozen:
                team.algo.check(team_spec(spec, team.name))
            elif team.algo.collect.shards > 1:
                raise ConfigError(f"team '{team.name}': a policy that was trained in shards cannot be played yet.")

    def shard(self) -> Teams:
        """The algorithms of one shard."""
        learn = tuple(t if t.frozen else replace(t, algo=t.algo.shard()) for t in self.teams)
        return Teams(teams=learn, collect=self.collect.shard())

    def warmup(self) -> int:
        """Iterations until every team learns."""
        return max((t.algo.warmup() for t in self.teams if not t.frozen), default=0)

    def small(self) -> Teams:
        """The same teams with little of everything."""
        small = tuple(t if t.frozen else replace(t, algo=t.algo.small()) for t in self.teams)
        return Teams(teams=small, collect=Collect(envs=2, length=8))

    def carry_interval(self, spec: Spec) -> int:
        """The longest stretch of rows that every team's own interval is a multiple of."""
        return math.gcd(*(self._interval(t, spec) for t in self.teams if not t.frozen))

    def _interval(self, team: Team, spec: Spec) -> int:
        return team.algo.carry_interval(team_spec(spec, team.name)) or self.collect.transitions(spec)

    # -- state --------------------------------------------------------------------------------------------------
    def init(self, spec: Spec, key: Array) -> ByTeam:
        """The state of each team; of a frozen one, its policy."""
        states: ByTeam = {}
        for team in self.teams:
            if team.frozen:
                algo = team.algo
                states[team.name] = team.saved.load(jax.eval_shape(lambda a=algo: a.snapshot(a.init(spec, key))))
            else:
                states[team.name] = team.algo.init(team_spec(spec, team.name), stream(key, team.name))
        return states

    def policy(self, state: ByTeam) -> ByTeam:
        """The live policy of each team."""
        return {t.name: state[t.name] if t.frozen else t.algo.policy(state[t.name]) for t in self.teams}

    def snapshot(self, state: ByTeam) -> ByTeam:
        """The policy of each team."""
        return {t.name: state[t.name] if t.frozen else t.algo.snapshot(state[t.name]) for t in self.teams}

    def stores(self, state: ByTeam) -> ByTeam:
        """The stores of each team that learns."""
        return {t.name: t.algo.stores(state[t.name]) for t in self.teams if not t.frozen}

    def carry(self, spec: Spec, envs: int) -> ByTeam:
        """The carry of each team."""
        return {t.name: t.algo.carry(_played(t, spec), envs) for t in self.teams}

    # -- acting and learning ------------------------------------------------------------------------------------
    def act(
        self, spec: Spec, policy: ByTeam, carry: ByTeam, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[ByTeam, Action, Extra]:
        """The actions of all agents. A saved policy is greedy and sees the whole task, as where it was trained."""
        envs, after, extra = step.first.shape[0], dict(carry), {}
        action = jnp.zeros((envs, spec.n_agents, *spec.action.shape), spec.action.dtype)
        for team in self.teams:
            mine, own = members(spec, team.name), stream(key, team.name)
            seen = step if team.frozen else of_agents(step, mine)
            after[team.name], chosen, more = team.algo.act(
                _played(team, spec), policy[team.name], carry[team.name], seen, clock, own, greedy=greedy or team.frozen
            )
            action = action.at[:, mine].set(chosen[:, mine] if team.frozen else chosen)
            if not team.frozen:
                extra |= {f"{team.name}/{name}": value for name, value in more.items()}
        return after, action, extra

    def update(self, spec: Spec, state: ByTeam, rollout: Rollout, clock: Clock, key: Array) -> tuple[ByTeam, Metrics]:
        """Every team learns from what its own agents saw, did and got."""
        after, metrics = dict(state), {}
        for team in self.teams:
            if team.frozen:
                continue
            own = team_spec(spec, team.name)
            every = self._interval(team, spec) // self.carry_interval(spec)
            seen = team_rollout(spec, rollout, team.name, every)
            after[team.name], found = team.algo.update(own, state[team.name], seen, clock, stream(key, team.name))
            metrics |= {f"{team.name}/{name}": value for name, value in found.items()}
        return after, metrics


def members(spec: Spec, team: str) -> tuple[int, ...]:
    """Indices of a team's agents."""
    return tuple(i for i, name in enumerate(spec.teams) if name == team)


def team_spec(spec: Spec, team: str) -> Spec:
    """The task as a team knows it: its own agents, who want the same. Sizes stay padded as in the whole task."""
    mine = members(spec, team)
    pick = lambda values: tuple(values[i] for i in mine) if len(values) > 1 else values  # noqa: E731
    action = replace(spec.action, low=pick(spec.action.low), high=pick(spec.action.high))
    return replace(
        spec,
        name=f"{spec.name}/{team}",
        agents=pick(spec.agents),
        action=action,
        obs_sizes=pick(spec.obs_sizes),
        action_sizes=pick(spec.action_sizes),
        teams=(),
        cooperative=True,
    )


def of_agents(step: Step, mine: tuple[int, ...]) -> Step:
    """What these agents see and get."""
    index = np.array(mine)
    pick = lambda x: jnp.take(x, index, axis=step.first.ndim)  # noqa: E731
    return replace(
        step,
        obs=pick(step.obs),
        legal=pick(step.legal),
        alive=pick(step.alive),
        reward=pick(step.reward),
        discount=pick(step.discount),
    )


def team_rollout(spec: Spec, rollout: Rollout, team: str, every: int) -> Rollout:
    """A team's share of a rollout; of the carries, every so many."""
    mine = members(spec, team)
    carry: Carry = jax.tree.map(lambda x: x[::every], rollout.carry[team])
    extra = {name.removeprefix(f"{team}/"): x for name, x in rollout.extra.items() if name.startswith(f"{team}/")}
    action = jnp.take(rollout.action, np.array(mine), axis=2)
    return Rollout(of_agents(rollout.step, mine), action, extra, carry, rollout.filled)


def _played(team: Team, spec: Spec) -> Spec:
    """The task as the team's algorithm knows it."""
    return spec if team.frozen else team_spec(spec, team.name)


def _with_collect(algo: Any, collect: Collect) -> Any:
    return replace(algo, collect=collect)
