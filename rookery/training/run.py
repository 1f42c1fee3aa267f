"""A trained (or partly trained) run: its frames, its policies, its learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array

from rookery.core.codec import Codec, Padded
from rookery.core.config import with_values
from rookery.core.errors import ConfigError, RunError
from rookery.core.host import HostTask, empty_rows
from rookery.core.types import Action, Clock, Spec, Step
from rookery.training import checkpoint, curves
from rookery.training.compiled.compiler import jit
from rookery.training.compiled.rollout import within_bounds
from rookery.training.config import RunConfig
from rookery.training.engine import Engine, open_engine
from rookery.training.folder import RunFolder
from rookery.training.imports import open_config
from rookery.training.state import Policies, member_infos


@dataclass(frozen=True)
class Run:
    """A run and what it left behind."""

    folder: RunFolder

    @cached_property
    def config(self) -> RunConfig:
        """The resolved config."""
        return open_config(self.folder)

    @cached_property
    def engine(self) -> Engine:
        """An engine to evaluate with."""
        return open_engine(self.config)

    def metrics(self) -> pl.DataFrame:
        """Training metrics: one row per chunk and member."""
        return self.folder.metrics()

    def evaluations(self) -> pl.DataFrame:
        """Evaluations: one row per episode."""
        return self.folder.evaluations()

    def final(self) -> pl.DataFrame:
        """The absolute evaluation: one row per episode, of each member's last and best policy."""
        return self.folder.final()

    def timing(self) -> pl.DataFrame:
        """Seconds and steps (of all members together) of each chunk."""
        return self.folder.timing()

    def curve(self, metric: str = "score", *, per_seed: bool = False) -> pl.DataFrame:
        """Any metric of evaluations or of training against the steps of a seed, for each swept value.

        IQM over seeds with its 95% bootstrap interval on a common grid of steps; or every seed by itself.
        """
        return curves.per_seed(self.folder, metric) if per_seed else curves.over_seeds(self.folder, metric)

    @cached_property
    def policies(self) -> Policies:
        """The last and the best policy of every member."""
        if self.folder.policies.exists():
            found = checkpoint.load(self.folder.policies, policy_shapes(self.engine))
            return _present(found, self.folder)
        # The shards of an unfinished run are joined by the engine that reads them.
        return self.engine.policies(_present(checkpoint.load(self.folder.checkpoints, self.engine.shapes), self.folder))

    def policy(self, which: str = "best", member: int = 0) -> Policy:
        """One member's policy, to act with."""
        if which not in ("best", "last"):
            raise ConfigError(f"a run has a 'best' and a 'last' policy, not '{which}'.")
        infos = member_infos(self.config)
        if not 0 <= member < len(infos):
            raise ConfigError(f"member {member} does not exist; the run has members 0 to {len(infos) - 1}.")
        p = self.policies
        params, swept = jax.tree.map(lambda x: x[member], (p.best if which == "best" else p.last, p.swept))
        return Policy(self.config, params, swept, Clock(p.iteration, p.steps[member], p.budget))


def load(path: Path | str) -> Run:
    """The run in a folder."""
    folder = RunFolder(Path(path))
    folder.config()  # raises if there is none
    return Run(folder)


def policy_shapes(engine: Engine) -> Policies:
    """The shapes of a run's policies."""
    return jax.eval_shape(engine.policies, engine.shapes)


def _present(found: checkpoint.Loaded | None, folder: RunFolder) -> Any:
    if found is None:
        raise RunError(f"{folder.path} has no checkpoint yet. Continue training: rookery resume {folder.path}")
    return found.state


class Policy:
    """Acts in one environment, and carries its network's memory from step to step.

    `act` takes a `Step`, or what an environment returns: an array of observations [agent, ...], one agent's observation
    if there is only one (of any kind: an array, a number, a dict), or a mapping from agent to observation.
    """

    def __init__(self, config: RunConfig, params: Any, swept: Mapping[str, Array], clock: Clock) -> None:
        task = config.task
        self.spec: Spec = task.spec
        self._codec: Codec = task.codec if isinstance(task, HostTask) else Padded(self.spec)
        algo = with_values(config.algo, {path.removeprefix("algo."): x for path, x in swept.items()})
        self._carry, self._opens = algo.carry(self.spec, 1), True

        def act(carry: Any, step: Step, key: Array, greedy: bool) -> tuple[Any, Action]:
            rows = jax.tree.map(lambda x: x[None], step)
            carry, action, _ = algo.act(self.spec, params, carry, rows, clock, key, greedy=greedy)
            return carry, within_bounds(self.spec.action, action)[0]

        self._act = jit(act, static_argnums=3)

    def reset(self) -> None:
        """Begin an episode: the next observation is its first. (A `Step` says so itself.)"""
        self._opens = True

    def act(self, seen: Any, key: Array | None = None, *, legal: Any = None) -> Any:
        """Actions for what is seen: greedy, or sampled if a key is given. `legal` masks actions [agent, action].

        A `Step` is answered by a padded array [agent, ...], as tasks take it. All else is answered by actions as the
        environment takes them: a mapping by a mapping, one agent's observation by one action, an array by an array (by
        a tuple, if agents' actions differ in shape).
        """
        by_agent = {} if isinstance(seen, Step) else self._by_agent(seen)
        step = seen if isinstance(seen, Step) else self._step(by_agent, legal)
        used = jax.random.PRNGKey(0) if key is None else key
        self._carry, action = self._act(self._carry, step, used, key is None)
        self._opens = False
        if isinstance(seen, Step):
            return action
        padded = np.asarray(action)
        actions = [self._codec.decode(agent, padded[agent]) for agent in range(self.spec.n_agents)]
        if self._named(seen):
            return {name: actions[self.spec.agents.index(str(name))] for name in seen}
        if self._alone(seen):
            return actions[0]
        return np.stack(actions) if len({np.shape(x) for x in actions}) == 1 else tuple(actions)

    def _named(self, seen: Any) -> bool:
        """Whether this is a mapping from agents; one agent's observation may be a mapping of its own."""
        return isinstance(seen, Mapping) and all(str(name) in self.spec.agents for name in seen)

    def _alone(self, seen: Any) -> bool:
        """Whether this is the observation of the only agent, without an axis of agents."""
        stacked = isinstance(seen, (np.ndarray, jax.Array)) and np.ndim(seen) > len(self.spec.obs_shape)
        return self.spec.n_agents == 1 and not (stacked and len(seen) == 1)

    def _by_agent(self, seen: Any) -> dict[int, Any]:
        """Index of each agent that is seen, and its observation."""
        agents = self.spec.agents
        if self._named(seen):
            return {agents.index(str(name)): obs for name, obs in seen.items()}
        if self._alone(seen):
            return {0: seen}
        if isinstance(seen, Mapping):
            unknown = [name for name in seen if str(name) not in agents]
            raise ConfigError(f"unknown agents {unknown}; the policy was trained for {list(agents)}.")
        if len(seen) != len(agents):
            raise ConfigError(f"there are {len(seen)} observations; the policy was trained for {list(agents)}.")
        return dict(enumerate(seen))

    def _step(self, by_agent: Mapping[int, Any], legal: Any) -> Step:
        """Observations in numpy as a `Step`, padded as training pads them."""
        rows = empty_rows(self.spec, 1)
        rows.legal[0] = self._codec.legal
        for agent, seen in by_agent.items():
            self._codec.encode(agent, seen, rows.obs[0, agent], rows.legal[0, agent])
            rows.alive[0, agent] = True
        if legal is not None:
            rows.legal[0] &= np.asarray(legal, bool)
        rows.first[0] = self._opens
        return Step(*(jnp.asarray(field[0]) for field in rows))
