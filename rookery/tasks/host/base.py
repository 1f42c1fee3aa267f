"""A loop over single environments that write into their rows, and the checks on what they write."""

from __future__ import annotations

import abc
import importlib
import json
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rookery.core.codec import Codec
from rookery.core.errors import ConfigError, RookeryError, suggest
from rookery.core.host import HostEnvs, HostTask, Rows
from rookery.core.types import Spec
from rookery.tasks.host.spaces import MASK, Actions, Observations, show, violation

EXTRAS = {
    "gymnasium": "gymnasium",
    "ale_py": "atari",
    "cv2": "atari",
    "pettingzoo": "pettingzoo",
    "mpe2": "pettingzoo",
    "magent2": "magent",
    "minigrid": "minigrid",
    "lbforaging": "lbforaging",
    "rware": "rware",
    "gymnasium_robotics": "mujoco",
    "mujoco": "mujoco",
    "Box2D": "box2d",
    "vizdoom": "vizdoom",
    "pygame": "pettingzoo",
}
"""Top-level package -> the extra of rookery that installs it."""


@runtime_checkable
class SingleEnv(Protocol):
    """One environment. Its rows are views without an env axis: `row.last[...] = True`.

    It reads every setting when it is made, if only by a copy of its config: settings that nobody reads are refused
    (training/reads.py), and no step is taken to find them.

    Before `reset`, the row is cleared: reward 0, discount 1, everybody alive, base `legal`, obs 0. Before `step` it
    holds the current row, so only what changes is written. `first` is not its business.
    """

    spec: Spec
    actions: Actions
    observations: Observations

    def reset(self, seed: int, row: Rows) -> None: ...
    def step(self, action: Any, row: Rows) -> None: ...
    def close(self) -> None: ...


class LoopEnvs:
    """`HostEnvs` that loops over single environments in this process.

    Shapes and dtypes are checked where an observation is written, for every row. NaN, infinity and bounds are checked
    once per step over the rows of all environments together, also for every row: two vectorized comparisons cost less
    than one check per environment on every hundredth row.
    """

    def __init__(self, envs: Sequence[SingleEnv]) -> None:
        self._envs = tuple(envs)
        first = self._envs[0]
        self.spec, self._actions = first.spec, first.actions
        self._bounds = first.observations.bounds(declared=first.observations.check)
        self._discrete = self._actions.kind == "discrete"
        self._steps = tuple(env.step for env in self._envs)
        self._views: OrderedDict[int, tuple[Rows, list[Rows]]] = OrderedDict()

    def reset(self, seeds: np.ndarray, rows: Rows) -> None:
        """Begin an episode in every environment; write its first row."""
        rows.first[...] = True
        rows.state[...] = 0
        self._clear(rows, slice(None))
        for env, seed, row in zip(self._envs, seeds.tolist(), self._views_of(rows), strict=True):
            env.reset(seed, row)
        self._check(rows)

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        """Move every environment by one row; one whose current row is `last` begins an episode."""
        ended = rows.last.tolist()
        rows.first[...] = rows.last
        views = self._views_of(rows)
        actions = self._actions.prepare(action, clip=self._actions.clip)
        if True in ended:
            self._clear(rows, rows.first)
            for i, step in enumerate(self._steps):
                if ended[i]:
                    self._envs[i].reset(int(seeds[i]), views[i])
                else:
                    step(actions[i], views[i])
        else:
            for step, chosen, row in zip(self._steps, actions, views, strict=True):
                step(chosen, row)
        self._check(rows)

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _clear(self, rows: Rows, where: Any) -> None:
        rows.obs[where] = 0
        rows.legal[where] = self._actions.legal
        rows.alive[where] = True
        rows.reward[where] = 0
        rows.discount[where] = 1
        rows.last[where] = False
        rows.success[where] = 0

    def _views_of(self, rows: Rows) -> list[Rows]:
        """Views of single rows; those of the last few `Rows` objects are kept, because an engine reuses its buffers."""
        found = self._views.get(id(rows))
        if found is None:
            found = rows, [Rows(*(field[i, ...] for field in rows)) for i in range(len(self._envs))]
            self._views[id(rows)] = found  # holds `rows`, so its id stays taken
            if len(self._views) > 8:
                self._views.popitem(last=False)
        return found[1]

    def _check(self, rows: Rows) -> None:
        """Raise if an observation is outside its bounds or any number is not finite."""
        if self._bounds is not None:
            low, high = self._bounds
            if not (_all(rows.obs >= low) and _all(rows.obs <= high)):  # false for NaN too
                self._raise("observation", rows.obs, (rows.obs >= low) & (rows.obs <= high))
        if not _all(np.isfinite(rows.reward)):
            self._raise("reward", rows.reward, np.asarray(np.isfinite(rows.reward)))
        if rows.state.size and not _all(np.isfinite(rows.state)):
            self._raise("state", rows.state[:, None], np.asarray(np.isfinite(rows.state))[:, None])
        # Where everything is legal, as it mostly is, one count says so.
        if self._discrete and not _all(rows.legal) and not rows.legal.any(axis=-1).all():
            # Games that are over allow nothing; the action taken there is ignored, but a policy needs one.
            rows.legal[~rows.legal.any(axis=-1) & rows.last[:, None], 0] = True
            if not rows.legal.any(axis=-1).all():
                self._raise("action_mask", rows.legal, np.asarray(rows.legal.any(axis=-1)))

    def _raise(self, field: str, values: np.ndarray, good: np.ndarray) -> None:
        """Raise for the first bad entry."""
        env, agent, *rest = np.argwhere(~good)[0].tolist()
        name = self.spec.agents[agent] if field != "state" else "all"
        if field == "action_mask":
            raise violation(self.spec.name, name, field, f"allows no action: {show(values[env, agent])}")
        place = f"[{', '.join(map(str, rest))}]" if rest else ""
        problem = f"is {values[(env, agent, *rest)]!r}, which is not finite"
        if field == "observation" and np.isfinite(values[(env, agent, *rest)]) and self._bounds is not None:
            low, high = (bound[(agent, *rest)] for bound in self._bounds)
            problem = (
                f"is {values[(env, agent, *rest)]!r}, outside its declared bounds {low!r} to {high!r} "
                "(--task.no-check-bounds accepts it)"
            )
        raise violation(self.spec.name, name, field + place, problem)


def _all(x: np.ndarray) -> bool:
    """`x.all()` in a third of its time, where there are few entries."""
    return bool(np.count_nonzero(x) == x.size)


class MadeTask(HostTask):
    """A config that makes single environments."""

    @abc.abstractmethod
    def make(self) -> SingleEnv:
        """One environment."""

    @property
    def spec(self) -> Spec:
        """The static facts of the environment, which is opened once to learn them."""
        return _facts(self)[0]

    @property
    def codec(self) -> Codec:
        """Observations and actions as the environment's spaces say."""
        return _facts(self)[1]

    def open(self, envs: int) -> HostEnvs:
        """So many environments, stepped in a loop."""
        return LoopEnvs([self.make() for _ in range(envs)])


@dataclass(frozen=True)
class Spaces:
    """See `Codec`."""

    actions: Actions
    observations: Observations

    @property
    def legal(self) -> np.ndarray:
        """All actions that each agent has."""
        return self.actions.legal

    def encode(self, agent: int, seen: Any, obs: np.ndarray, legal: np.ndarray) -> None:
        """Write an observation, and the mask that is part of it."""
        writer = self.observations.each[agent]
        writer.write(seen, obs)
        if writer.masked:
            self.actions.mask(writer.env, agent, writer.agent, seen[MASK], legal)

    def decode(self, agent: int, action: Any) -> Any:
        """An action of the agent's own space."""
        return self.actions.native[agent](action.item() if self.actions.kind == "discrete" else action)


@cache
def _facts(task: MadeTask) -> tuple[Spec, Spaces]:
    """The task's spec and spaces: one environment is opened to learn them, and closed."""
    env = task.make()
    try:
        return env.spec, Spaces(env.actions, env.observations)
    finally:
        env.close()


# --- names and arguments in configs


def parse_kwargs(text: str, option: str = "task.kwargs") -> dict[str, Any]:
    """Keyword arguments from a JSON object."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{option} must be a JSON object such as '{{\"N\": 3}}', not {text!r}: {error}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{option} must be a JSON object such as '{{\"N\": 3}}', not {text!r}.")
    return found


def canonical_kwargs(text: str) -> str:
    """The same object in one spelling, so that equal arguments make equal configs."""
    return json.dumps(parse_kwargs(text), sort_keys=True)


def canonical_list(items: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Items as given, or those of a single JSON list, as the command line may hand it over."""
    if len(items) != 1 or not items[0].lstrip().startswith("["):
        return items
    try:
        found = json.loads(items[0])
    except json.JSONDecodeError as error:
        raise ConfigError(f"{option}: {items[0]!r} is not a JSON list: {error}.") from None
    if not all(isinstance(item, str) for item in found):
        raise ConfigError(f"{option} must be a list of strings, not {items[0]!r}.")
    return tuple(found)


def set_canonical(config: Any, **values: Any) -> None:
    """Replace fields of a frozen config while it is being made."""
    for name, value in values.items():
        object.__setattr__(config, name, value)


def missing(module: str, what: str) -> ConfigError:
    """The error for a module that cannot be found, with the extra that brings it."""
    top = module.split(".")[0]
    extra = EXTRAS.get(top)
    own = f" Is its package installed in this environment? A file of your own is found with --import {top}.py."
    hint = f" Run: pip install 'rookery[{extra}]'" if extra else own
    return ConfigError(f"{what}: there is no module '{module}'.{hint}")


def import_module(name: str, what: str) -> Any:
    """The module, or a ConfigError that names what is missing and how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _not_found(name, what, error) from error
    except ImportError as error:
        raise ConfigError(f"{what}: importing '{name}' failed: {error}.") from error


def _not_found(name: str, what: str, error: ModuleNotFoundError) -> ConfigError:
    """Which module is missing: the one asked for (with close names beside it) or one that it imports."""
    absent = error.name or name
    parent, _, last = name.rpartition(".")
    if absent != name or not parent:
        return missing(absent, what)
    import pkgutil

    siblings = [m.name for m in pkgutil.iter_modules(importlib.import_module(parent).__path__)]
    return ConfigError(f"{what}: there is no module '{last}' in '{parent}'.{suggest(last, siblings)}")


def load(path: str, what: str) -> Callable[..., Any]:
    """The object at "package.module:name"."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigError(f"{what}: expected package.module:name, got '{path}'.")
    found = import_module(module, what)
    if name not in vars(found):
        raise ConfigError(
            f"{what}: '{module}' has no '{name}'.{suggest(name, [k for k in vars(found) if k[:1] != '_'])}"
        )
    return vars(found)[name]


def call(maker: Callable[..., Any], kwargs: dict[str, Any], what: str, option: str = "task.kwargs") -> Any:
    """What the maker returns; what it raises becomes a ConfigError."""
    try:
        return maker(**kwargs)
    except RookeryError:
        raise
    except TypeError as error:
        raise ConfigError(f"{what} cannot be opened with {option} {json.dumps(kwargs)}: {error}.") from error
    except ImportError as error:
        name = error.name or ""
        if name.split(".")[0] in EXTRAS:
            raise missing(name, what) from error
        raise ConfigError(f"{what} cannot be opened: {error}.") from error
    except Exception as error:  # of any kind: it is the code of somebody else
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"
        raise ConfigError(f"{what} cannot be opened with {option} {json.dumps(kwargs)}: {problem}") from error


def limit_of(env: Any, names: Sequence[str]) -> int:
    """The first positive integer among these attributes of an environment; 0 if there is none."""
    for name in names:
        try:
            value = getattr(env, name, None)
        except Exception:  # an attribute of somebody else's class may raise anything
            continue
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0:
            return int(value)
    return 0
