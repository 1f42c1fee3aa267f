"""Gymnasium spaces as arrays: how observations are flattened and actions are handed back.

Observations:
- One Box keeps its shape. One uint8 Box of two or more dimensions (an image) stays uint8; all else becomes float32.
- Dict entries are joined in the order of their sorted keys, Tuple entries in their own order, depth first. A Box is
  raveled in C order, a Discrete is one-hot (its `start` subtracted), a MultiDiscrete is one one-hot per branch, a
  MultiBinary is its bits.
- A Dict entry "action_mask" is no observation. A Dict with one entry left is that entry.
- If agents differ in shape, every agent's observation is raveled and padded with zeros at the end.

Actions of all agents have one kind. Discrete agents are padded to the largest count, MultiDiscrete ones branch by
branch, Boxes and MultiBinaries to the longest; `legal` is false for padding. A padded branch has one legal option, 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.core.errors import ConfigError, TrainingError
from rookery.core.types import ActionSpec

MASK = "action_mask"
_HUGE = float(np.finfo(np.float32).max)


def violation(env: str, agent: str, field: str, problem: str) -> TrainingError:
    """The error for an environment that breaks its own declaration."""
    return TrainingError(f"{env}: agent '{agent}': {field} {problem}.")


def show(value: Any) -> str:
    """A value cut short, for messages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else text[:197] + "..."


# --- observations


@dataclass(frozen=True)
class Leaf:
    """One entry of an observation and where it stands in the flat vector."""

    path: tuple[str | int, ...]
    space: Any
    start: int
    size: int

    @property
    def label(self) -> str:
        """The entry's name in messages."""
        return "observation" + "".join(f"[{key!r}]" for key in self.path)


class Observation:
    """How one agent's observation is checked and written."""

    def __init__(self, env: str, agent: str, space: Any, drop: Sequence[str] = ()) -> None:
        self.env, self.agent, self.space = env, agent, space
        self.masked = _is_dict(space) and MASK in space.spaces
        self._key: str | None = None
        if _is_dict(space):
            left = [key for key in sorted(space.spaces) if key != MASK and key not in drop]
            if not left:
                raise ConfigError(f"{env}: nothing is left of the observation {space}.")
            if len(left) == 1:
                self._key, space = left[0], space.spaces[left[0]]
        self.leaves = tuple(_leaves(env, agent, space, drop, (), [0]))
        self.size = sum(leaf.size for leaf in self.leaves)
        self.single = len(self.leaves) == 1 and self.leaves[0].path == () and _kind(space) == "Box"
        self.shape: tuple[int, ...] = tuple(space.shape) if self.single and space.shape else (self.size,)
        self.image = self.single and space.dtype == np.uint8 and len(self.shape) >= 2
        self._expected = tuple(space.shape) if self.single else ()
        self._dtypes = {np.dtype(space.dtype)} if self.single else set[np.dtype]()

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest accepted values, flat; the largest float32 where a space is unbounded."""
        low, high = np.zeros(self.size, np.float64), np.ones(self.size, np.float64)
        for leaf in self.leaves:
            if _kind(leaf.space) == "Box":
                part = slice(leaf.start, leaf.start + leaf.size)
                low[part], high[part] = np.ravel(leaf.space.low), np.ravel(leaf.space.high)
        low, high = np.clip(low, -_HUGE, _HUGE), np.clip(high, -_HUGE, _HUGE)
        return low.astype(np.float32), high.astype(np.float32)

    def write(self, value: Any, out: np.ndarray) -> None:
        """Write an observation into a view of its (padded) row; raise if its shape or dtype is not the declared one."""
        if self._key is not None:
            value = self._entry(value, (self._key,))
        if not self.single:
            for leaf in self.leaves:
                self._write_leaf(leaf, self._entry(value, leaf.path), out.reshape(-1))
            return
        if value.__class__ is not np.ndarray or value.dtype not in self._dtypes:
            value = self._cast(self.leaves[0], value)
        if value.shape != self._expected:
            raise self._shape_error(self.leaves[0], value)
        if out.shape == self._expected:
            out[...] = value
        else:
            out[: self.size] = value.ravel()

    def _entry(self, value: Any, path: tuple[str | int, ...]) -> Any:
        for depth, key in enumerate(path):
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                where = "observation" + "".join(f"[{k!r}]" for k in path[: depth + 1])
                raise violation(self.env, self.agent, where, f"is missing in {show(value)}") from None
        return value

    def _cast(self, leaf: Leaf, value: Any) -> np.ndarray:
        """`value` as an array whose dtype can stand for the declared one (float64 for float32, not for uint8)."""
        array = np.asarray(value)
        if not np.can_cast(array.dtype, leaf.space.dtype, "same_kind"):
            raise violation(
                self.env, self.agent, leaf.label, f"has dtype {array.dtype}, not {leaf.space.dtype}: {show(value)}"
            )
        if self.single:
            self._dtypes.add(array.dtype)
        return array

    def _shape_error(self, leaf: Leaf, value: Any) -> TrainingError:
        shape = tuple(leaf.space.shape)
        return violation(self.env, self.agent, leaf.label, f"has shape {np.shape(value)}, not {shape}: {show(value)}")

    def _write_leaf(self, leaf: Leaf, value: Any, flat: np.ndarray) -> None:
        part = flat[leaf.start : leaf.start + leaf.size]
        array = self._cast(leaf, value)
        if array.shape != tuple(leaf.space.shape):
            raise self._shape_error(leaf, value)
        kind = _kind(leaf.space)
        if kind in ("Box", "MultiBinary"):
            part[...] = array.ravel()
            return
        counts, begins = _branches(leaf.space)
        index = array.ravel().astype(np.int64) - begins
        if np.any((index < 0) | (index >= counts)):
            raise violation(self.env, self.agent, leaf.label, f"is not in {leaf.space}: {show(value)}")
        part[...] = 0
        part[np.concatenate([[0], np.cumsum(counts)[:-1]]) + index] = 1


class Observations:
    """The padded observations of all agents."""

    def __init__(
        self, env: str, agents: Sequence[str], spaces: Sequence[Any], drop: Sequence[str] = (), *, check: bool = True
    ) -> None:
        self.check = check
        """Whether rows are checked against the declared bounds too."""
        self.each = tuple(Observation(env, a, s, drop) for a, s in zip(agents, spaces, strict=True))
        shapes = {o.shape for o in self.each}
        self.padded = len(shapes) > 1
        longest = max(o.size for o in self.each)
        self.shape = (longest,) if self.padded else next(iter(shapes))
        self.sizes = tuple(o.size for o in self.each) if self.padded else ()
        self.dtype = "uint8" if all(o.image for o in self.each) and not self.padded else "float32"

    def bounds(self, *, declared: bool) -> tuple[np.ndarray, np.ndarray] | None:
        """Bounds [agent, *obs] that rows are checked against; None if nothing can be outside (uint8).

        0 is always accepted: it stands for padding and for agents that are absent.
        """
        if self.dtype == "uint8":
            return None
        size = int(np.prod(self.shape))
        low, high = (
            np.full((len(self.each), size), -_HUGE, np.float32),
            np.full((len(self.each), size), _HUGE, np.float32),
        )
        if declared:
            for i, o in enumerate(self.each):
                low[i, : o.size], high[i, : o.size] = o.bounds()
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        return low.reshape(-1, *self.shape), high.reshape(-1, *self.shape)


def _leaves(
    env: str,
    agent: str,
    space: Any,
    drop: Sequence[str],
    path: tuple[str | int, ...],
    end: list[int],
) -> list[Leaf]:
    """Entries in the documented order; `end` holds the length so far."""
    kind = _kind(space)
    if kind == "Dict":
        names = [key for key in sorted(space.spaces) if key not in drop and not (path == () and key == MASK)]
        return [x for k in names for x in _leaves(env, agent, space.spaces[k], drop, (*path, k), end)]
    if kind == "Tuple":
        parts = enumerate(space.spaces)
        return [x for i, s in parts for x in _leaves(env, agent, s, drop, (*path, i), end)]
    if kind in ("Box", "MultiBinary"):
        size = int(np.prod(space.shape))
    elif kind in ("Discrete", "MultiDiscrete"):
        size = int(np.sum(_branches(space)[0]))
    else:
        name = path[-1] if path else "observation"
        raise ConfigError(
            f"{env}: agent '{agent}': the observation {'.'.join(map(str, path)) or 'space'} is {space}, which has no "
            f"fixed size. Leave it out with --task.drop {name}, or convert it with --task.wrappers."
        )
    start = end[0]
    end[0] += size
    return [Leaf(path, space, start, size)]


def _kind(space: Any) -> str:
    """Box, Discrete, ... for a space or a subclass of one; the class's own name otherwise."""
    from gymnasium import spaces

    for base in (spaces.Dict, spaces.Tuple, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Discrete, spaces.Box):
        if isinstance(space, base):
            return base.__name__
    return type(space).__name__


def _is_dict(space: Any) -> bool:
    return _kind(space) == "Dict"


def _branches(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Options and first values of the branches of a Discrete or MultiDiscrete."""
    if _kind(space) == "Discrete":
        return np.array([int(space.n)]), np.array([int(space.start)])
    counts = np.ravel(space.nvec).astype(np.int64)
    return counts, np.ravel(np.broadcast_to(space.start, space.nvec.shape)).astype(np.int64)


# --- actions

_KINDS = {"Discrete": "discrete", "MultiDiscrete": "multi_discrete", "MultiBinary": "multi_binary", "Box": "box"}


class Actions:
    """The padded action space of all agents, and each agent's own action made of a padded one."""

    def __init__(self, env: str, agents: Sequence[str], spaces: Sequence[Any], *, clip: bool = True) -> None:
        self.clip = clip
        """Whether Box actions are clipped to their bounds."""
        kinds = {_KINDS.get(_kind(space), _kind(space)) for space in spaces}
        if len(kinds) > 1 or not kinds <= set(_KINDS.values()):
            listed = ", ".join(f"{a}: {s}" for a, s in zip(agents, spaces, strict=True))
            raise ConfigError(
                f"{env}: actions must be Discrete, MultiDiscrete, MultiBinary or Box, the same kind for all agents, "
                f"not {show(listed)}."
            )
        self.kind = kinds.pop()
        self.sizes = tuple(_real_size(space) for space in spaces)
        self.spec = _action_spec(self.kind, spaces, clip=clip)
        self.legal = np.stack([self._legal(space) for space in spaces])
        self.native: tuple[Callable[[Any], Any], ...] = tuple(_native(self.kind, space) for space in spaces)
        idle = np.zeros(self.spec.width, bool)
        starts = np.concatenate([[0], np.cumsum(self.spec.sizes)[:-1]])
        idle[starts if self.kind == "multi_discrete" else 0] = True
        self.idle = idle if self.kind in ("discrete", "multi_discrete") else np.ones_like(idle)
        """`legal` of an agent that does not act: option 0 alone; its action is ignored."""

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """`Spec.action_sizes`."""
        return self.sizes if len(set(self.sizes)) > 1 else ()

    def prepare(self, action: np.ndarray, *, clip: bool) -> Any:
        """A batch [env, agent, ...] in the form that `native` takes one entry of: lists of int, or new arrays."""
        if self.kind == "discrete":
            return action.tolist()
        if self.kind != "box":
            return np.array(action)
        if not clip:
            return np.array(action, np.float32)
        low, high = self.spec.bounds
        return np.clip(np.asarray(action, np.float32), low, high)

    def mask(self, env: str, agent: int, name: str, given: Any, out: np.ndarray) -> None:
        """Write an environment's action mask into an agent's row of `legal`."""
        array = np.asarray(given)
        if self.kind != "discrete" or array.shape != (self.sizes[agent],):
            raise violation(
                env, name, MASK, f"must have one entry for each of {self.sizes[agent]} discrete actions: {show(given)}"
            )
        out[: self.sizes[agent]] = array.astype(bool)

    def _legal(self, space: Any) -> np.ndarray:
        legal = np.zeros(self.spec.width, bool)
        if self.kind != "multi_discrete":
            legal[: _real_size(space)] = True
            return legal
        counts = _branches(space)[0]
        starts = np.concatenate([[0], np.cumsum(self.spec.sizes)[:-1]])
        for branch, start in enumerate(starts):
            legal[start : start + (counts[branch] if branch < len(counts) else 1)] = True
        return legal


def _real_size(space: Any) -> int:
    kind = _kind(space)
    return int(np.sum(_branches(space)[0])) if kind in ("Discrete", "MultiDiscrete") else int(np.prod(space.shape))


def _action_spec(kind: str, spaces: Sequence[Any], *, clip: bool = True) -> ActionSpec:
    if kind == "discrete":
        return ActionSpec("discrete", (max(int(s.n) for s in spaces),))
    if kind == "multi_discrete":
        branches = itertools.zip_longest(*(_branches(s)[0].tolist() for s in spaces), fillvalue=1)
        return ActionSpec("multi_discrete", tuple(max(b) for b in branches))
    size = max(_real_size(s) for s in spaces)
    if kind == "multi_binary":
        return ActionSpec("multi_binary", (size,))
    low, high = (
        tuple(_padded(np.ravel(x), size, pad) for x in xs)
        for xs, pad in (
            ([s.low for s in spaces], -1.0),
            ([s.high for s in spaces], 1.0),
        )
    )
    if len(set(low)) == 1 and len(set(high)) == 1:
        low, high = low[:1], high[:1]
    return ActionSpec("box", (size,), low, high, clip)


def _padded(values: np.ndarray, size: int, pad: float) -> tuple[float, ...]:
    return (*map(float, values), *[pad] * (size - len(values)))


def _native(kind: str, space: Any) -> Callable[[Any], Any]:
    """From one agent's padded action to what its space holds."""
    if kind == "discrete":
        start = int(space.start)
        return (lambda a: a + start) if start else (lambda a: a)
    shape, dtype = tuple(space.shape), space.dtype
    size = int(np.prod(shape))
    if kind == "multi_discrete":
        begins = _branches(space)[1]
        return lambda a: (a[:size] + begins).astype(dtype).reshape(shape)
    return lambda a: a[:size].astype(dtype).reshape(shape)


def mask_of(obs: Any, info: Any, *, in_obs: bool) -> Any:
    """The action mask that an environment gave, in the observation or in `info`; None if there is none."""
    if in_obs:
        return obs[MASK]
    return info.get(MASK) if isinstance(info, Mapping) and info else None
