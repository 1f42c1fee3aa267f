"""JaxMARL environments behind `Task`: padding, masks, time limits and scripted opponents, in one place."""

from __future__ import annotations

import abc
import contextlib
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from rookery.core.errors import ConfigError, suggest
from rookery.core.types import Action, ActionSpec, Entities, Spec, Step

NEVER = 2**30
"""A time limit that no episode reaches: handed to environments whose clock is replaced by ours."""


class EnvState(eqx.Module):
    """The environment's own state and the transitions since reset."""

    env: PyTree[Array]
    t: Int[Array, ""]


class Event(eqx.Module):
    """What an environment reported with its new state."""

    obs: PyTree[Array]
    dones: PyTree[Array]
    info: PyTree[Array]


@dataclass(frozen=True, eq=False)
class World:
    """One built environment and how to read it; functions take the environment's own state."""

    env: Any
    spec: Spec
    ids: tuple[Hashable, ...]
    """The environment's keys for all its agents, in order."""
    learners: tuple[int, ...]
    """Which of `ids` are the task's agents; the rest follow `opponents`."""
    action_sizes: tuple[int, ...]
    """Real number of actions of every agent in `ids`."""
    opponents: Literal["random", "idle"]
    read: Callable[[Any], Sequence[Array]]
    """Unpadded observation of each agent in `ids`, from what the environment returned."""
    legal: Callable[[Any], Sequence[Array]] | None
    """Mask of each agent in `ids`, unpadded; None where every real action is always legal."""
    alive: Callable[[Any], Bool[Array, "all"]] | None
    state: Callable[[Any, Event], Array] | None
    ended: Callable[[Any, Event], Bool[Array, ""]]
    """Whether the episode terminated for good."""
    success: Callable[[Any, Event], Array] | None
    bonus: Callable[[Event], Array] | None
    """Added to the rewards of all agents in `ids`."""


class JaxmarlTask(abc.ABC):
    """A frozen config that knows how to build its `World`; everything else follows from that."""

    @abc.abstractmethod
    def build(self) -> World:
        """Construct the environment. Called once per config."""

    @property
    def spec(self) -> Spec:
        """The static facts of this task."""
        return world_of(self).spec

    def reset(self, key: Array) -> tuple[EnvState, Step]:
        """Begin an episode."""
        world = world_of(self)
        obs, env_state = world.env.reset(key)
        state = EnvState(strong(env_state), jnp.zeros((), jnp.int32))
        return state, _first_step(world, state, Event(obs, None, None))

    def step(self, state: EnvState, action: Action, key: Array) -> tuple[EnvState, Step]:
        """One transition; never resets."""
        world = world_of(self)
        actions, key = _joint_action(world, state.env, action, key)
        obs, env_state, rewards, dones, info = world.env.step_env(key, state.env, actions)
        state = EnvState(strong(env_state), state.t + 1)
        return state, _next_step(world, state, rewards, Event(obs, dones, info))


@cache
def world_of(task: JaxmarlTask) -> World:
    """The built environment of a config, once per process."""
    return task.build()


def load(module: str, name: str, package: str = "jaxmarl.environments") -> Any:
    """An attribute of a module of jaxmarl (or of another package, by the same rules).

    Late, because importing jaxmarl takes seconds; quiet, because it prints.
    """
    with _quiet(), jax.ensure_compile_time_eval():
        return getattr(_import_alone(f"{package}.{module}"), name)


def _import_alone(name: str) -> ModuleType:
    """A module without the code of the packages above it: that imports every environment, for seconds."""
    above = [name[:i] for i, letter in enumerate(name) if letter == "."]
    missing = [package for package in above if package not in sys.modules]
    try:
        for package in missing:
            _put_bare(package)
        return importlib.import_module(name)
    except ImportError:  # it needs what those packages gather
        pass
    finally:
        # Whoever imports the packages themselves gets them whole.
        for package in missing:
            sys.modules.pop(package, None)
    return importlib.import_module(name)


def _put_bare(package: str) -> None:
    """Let submodules of a package be found, and nothing else."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)
    bare = ModuleType(package)
    bare.__path__ = spec.submodule_search_locations
    sys.modules[package] = bare


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on stdout, and both streams as they were afterwards."""
    sink = io.StringIO()
    # One of jaxmarl's modules points both streams back at the interpreter's own while it is imported.
    stdout, stderr = contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sys.stderr)
    with stdout, stderr, mock.patch.object(sys, "__stdout__", sink):
        yield


def construct(module: str, name: str, *mixins: type, package: str = "jaxmarl.environments", **kwargs: Any) -> Any:
    """An environment of jaxmarl (or of another package), with the methods of the mixins instead of its own."""
    make = load(module, name, package)
    if mixins:
        make = type(name, (*mixins, make), {})
    # The first call may come while tracing; the environment's constants must not be tracers of that trace.
    with jax.ensure_compile_time_eval():
        return make(**kwargs)


def make_world(
    env: Any,
    *,
    name: str,
    limit: int,
    ids: Sequence[Hashable] = (),
    names: Sequence[str] = (),
    learners: Sequence[int] = (),
    teams: Sequence[str] = (),
    cooperative: bool = True,
    score: Literal["return", "success"] = "return",
    position: tuple[int, ...] = (),
    entities: Sequence[Entities] = (),
    opponents: Literal["random", "idle"] = "random",
    read: Callable[[Any], Sequence[Array]] | None = None,
    legal: Callable[[Any], Sequence[Array]] | None = None,
    alive: Callable[[Any], Array] | None = None,
    state: Callable[[Any, Event], Array] | None = None,
    ended: Callable[[Any, Event], Array] = lambda _, event: event.dones["__all__"],
    success: Callable[[Any, Event], Array] | None = None,
    bonus: Callable[[Event], Array] | None = None,
) -> World:
    """The World of `env`. Shapes are read off what reset really returns: declared spaces are sometimes wrong."""
    ids = tuple(ids) or tuple(env.agents)
    learners = tuple(learners) or tuple(range(len(ids)))
    obs, env_state = jax.eval_shape(env.reset, jax.ShapeDtypeStruct((2,), jnp.uint32))
    read = read or (lambda obs: [obs[i] for i in ids])
    seen = jax.eval_shape(read, obs)
    shapes = [seen[i].shape for i in learners]
    padded = tuple(int(n) for n in np.max(np.array(shapes), axis=0))
    action, sizes = _action_spec(env, ids, learners)
    state_shape = ()
    if state is not None:
        state_shape = jax.eval_shape(lambda s, o: state(s, Event(o, None, None)), env_state, obs).shape
    names = tuple(names) or tuple(str(i) for i in ids)
    spec = Spec(
        name=name,
        agents=tuple(names[i] for i in learners),
        obs_shape=padded,
        action=action,
        limit=limit,
        state_shape=state_shape,
        obs_sizes=tuple(s[0] for s in shapes) if len(set(shapes)) > 1 else (),
        action_sizes=tuple(sizes[i] for i in learners) if len({sizes[i] for i in learners}) > 1 else (),
        teams=tuple(teams[i] for i in learners) if teams and cooperative is False else (),
        cooperative=cooperative,
        score=score,
        position=position,
        # An entity may lie in the part of the observation that only agents left out of the task have.
        entities=tuple(e for e in entities if len(padded) == 1 and e.start + e.count * e.size <= padded[0]),
    )
    return World(env, spec, ids, learners, sizes, opponents, read, legal, alive, state, ended, success, bonus)


def require(given: str, known: Sequence[str], what: str) -> None:
    """Raise ConfigError, with a suggestion, unless `given` is one of `known`."""
    if given not in known:
        raise ConfigError(f"unknown {what} '{given}'.{suggest(given, known)}")


def _action_spec(env: Any, ids: Sequence[Hashable], learners: Sequence[int]) -> tuple[ActionSpec, tuple[int, ...]]:
    """The padded action space of the learners, and the real sizes of all agents."""
    spaces = [_space(env, i) for i in ids]
    box = not hasattr(spaces[0], "n")
    sizes = tuple(int(s.shape[0]) if box else int(s.n) for s in spaces)
    width = max(sizes[i] for i in learners)
    if box:
        low, high = (_bounds([getattr(spaces[i], side) for i in learners], width) for side in ("low", "high"))
        return ActionSpec("box", (width,), low, high), sizes
    return ActionSpec("discrete", (width,)), sizes


def _bounds(of_agents: Sequence[Any], width: int) -> tuple[tuple[float, ...], ...]:
    """One side of the agents' bounds, padded with their own last ones."""
    rows = [np.broadcast_to(np.asarray(bound, float), np.shape(bound) or (width,)) for bound in of_agents]
    return tuple(tuple(np.pad(row, (0, width - len(row)), mode="edge").tolist()) for row in rows)


def _space(env: Any, agent: Hashable) -> Any:
    """One agent's action space; some environments share one and take no argument."""
    spaces = getattr(env, "action_spaces", None)
    return spaces[agent] if spaces else env.action_space()


def strong(tree: PyTree[ArrayLike]) -> PyTree[Array]:
    """The same numbers as arrays without weak types, so that reset and step return states of one type."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), tree)


def _pad(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` with zeros after it along every axis, up to `shape`."""
    return jnp.pad(x, [(0, n - m) for m, n in zip(x.shape, shape, strict=True)])


def _joint_action(world: World, env_state: Any, action: Action, key: Array) -> tuple[Any, Array]:
    """The actions of all agents in the environment's own form, and the key that is left for the transition."""
    chosen = dict(zip(world.learners, action, strict=True))
    if len(chosen) < len(world.ids):
        key, opponent_key = jax.random.split(key)
        others = [i for i in range(len(world.ids)) if i not in chosen]
        masks = _masks(world, env_state)
        keys = jax.random.split(opponent_key, len(others))
        chosen |= {i: _opponent(world, i, masks[i], k) for i, k in zip(others, keys, strict=True)}
    box = world.spec.action.kind == "box"
    actions = [chosen[i][:n] if box else chosen[i] for i, n in enumerate(world.action_sizes)]
    # Agents called 0, 1, ... are asked for by position.
    return (actions if world.ids[0] == 0 else dict(zip(world.ids, actions, strict=True))), key


def _opponent(world: World, i: int, mask: Array, key: Array) -> Array:
    """What agent `i`, which the task does not control, does."""
    box = world.spec.action.kind == "box"
    if world.opponents == "idle":
        return jnp.zeros(world.action_sizes[i]) if box else jnp.argmax(mask)
    if box:
        space = _space(world.env, world.ids[i])
        return jax.random.uniform(key, (world.action_sizes[i],), minval=space.low, maxval=space.high)
    return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))


def _masks(world: World, env_state: Any) -> list[Array]:
    """Unpadded mask of each of the environment's agents."""
    if world.legal is None:
        return [jnp.ones(n, bool) for n in world.action_sizes]
    masks = [m.astype(bool) for m in world.legal(env_state)]
    # A game that is over may leave nothing legal; an empty mask would make every masked maximum infinite.
    return [m | ~jnp.any(m) for m in masks]


def _legal(world: World, env_state: Any) -> Bool[Array, "agent action"]:
    """Padded mask of the task's agents."""
    masks = _masks(world, env_state)
    return jnp.stack([_pad(masks[i], (world.spec.action.width,)) for i in world.learners])


def _observe(world: World, obs: Any) -> Array:
    """Padded observations of the task's agents."""
    arrays = world.read(obs)
    return jnp.stack([_pad(jnp.asarray(arrays[i], jnp.float32), world.spec.obs_shape) for i in world.learners])


def _alive(world: World, env_state: Any) -> Bool[Array, "agent"]:
    """Which of the task's agents live."""
    if world.alive is None:
        return jnp.ones(world.spec.n_agents, bool)
    return world.alive(env_state)[jnp.array(world.learners)]


def _state(world: World, env_state: Any, event: Event) -> Float[Array, "state"]:
    """The environment's global state; size 0 where it has none."""
    return jnp.zeros(0) if world.state is None else world.state(env_state, event).astype(jnp.float32)


def _first_step(world: World, state: EnvState, event: Event) -> Step:
    """The step that opens an episode."""
    n = world.spec.n_agents
    return Step(
        obs=_observe(world, event.obs),
        state=_state(world, state.env, event),
        legal=_legal(world, state.env),
        alive=_alive(world, state.env),
        reward=jnp.zeros(n),
        discount=jnp.ones(n),
        first=jnp.array(True),
        last=jnp.array(False),
        success=jnp.zeros(()),
    )


def _next_step(world: World, state: EnvState, rewards: Any, event: Event) -> Step:
    """The step that a transition leads to."""
    alive = _alive(world, state.env)
    ended = jnp.asarray(world.ended(state.env, event), bool)
    reward = jnp.stack([jnp.asarray(rewards[world.ids[i]], jnp.float32).reshape(()) for i in world.learners])
    if world.bonus is not None:
        reward = reward + world.bonus(event)[jnp.array(world.learners)]
    success = jnp.zeros(()) if world.success is None else world.success(state.env, event)
    return Step(
        obs=_observe(world, event.obs),
        state=_state(world, state.env, event),
        legal=_legal(world, state.env),
        alive=alive,
        reward=reward,
        discount=(alive & ~ended).astype(jnp.float32),
        first=jnp.array(False),
        last=ended | (state.t >= world.spec.limit),
        success=jnp.asarray(success, jnp.float32),
    )
