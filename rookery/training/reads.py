"""Refuse values that nothing reads: a flag without effect is a lie about what was trained.

Which entries a run's programs read is found out by tracing them abstractly with twins of the configs that take note of
every entry they are asked for. What checks, labels and JSON read does not count, for they get the configs themselves.
Entries of the run as a whole (steps, evaluation, checkpoints) are not looked at: the trainer always uses them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import typing
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal, TypeVar

from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.host import HostTask
from rookery.core.registry import PRESETS, known_task
from rookery.training.config import RunConfig
from rookery.training.engine import trace

T = TypeVar("T")
_NOTES = "_notes"  # attribute of a twin: (what was read so far, the twin's own path)
_TRIALS = 8  # settings that are tried in search of the switch that would bring a value to life


def refuse_unread(config: RunConfig) -> None:
    """Raise `ConfigError` if the user set an entry of the algorithm or of the task that no program of the run reads."""
    dead = unread(config)
    if dead:
        raise ConfigError("\n".join(_explain(config, path) for path in dead))


def unread(config: RunConfig) -> list[str]:
    """Paths that are swept, or differ from the preset's and the task's own values, but are read by nothing."""
    chosen = _chosen(config)
    # A plain preset on a plain task need not wait for a trace.
    read = reads(_unswept(config), chosen) if chosen else frozenset()
    return [path for path in chosen if path not in read]


def reads(config: RunConfig, wanted: Iterable[str] = ()) -> frozenset[str]:
    """Dotted paths of the algorithm's and the task's entries that collecting, learning or evaluation reads.

    With `wanted`, those that were read until the last of them was: most are read long before a trace is done.
    """
    return _reads(config.algo, config.task, frozenset(wanted))


@functools.cache
def _reads(algo: Any, task: Any, wanted: frozenset[str]) -> frozenset[str]:
    notes = _Notes(wanted)
    with suppress(_Enough):
        twins = RunConfig("", "", _twin(algo, notes, "algo"), _twin(task, notes, "task"))
        trace(twins)
        if isinstance(twins.task, HostTask):  # its spec need not say all that its environments are made with
            twins.task.open(1).close()
    return frozenset(notes.read)


def _chosen(config: RunConfig) -> list[str]:
    """What the user set; nothing is known of a preset or task that is not registered here."""
    bases = {"algo": PRESETS.get(config.preset, config.algo), "task": known_task(config.task_name) or config.task}
    changed = [
        f"{part}.{path}"
        for part, base in bases.items()
        for path, (_, now) in configs.diff(base, getattr(config, part)).items()
        if now is not None
    ]
    return list(dict.fromkeys([*(sweep.path for sweep in config.sweep), *changed]))


def _unswept(config: RunConfig) -> RunConfig:
    """One member of a sweep: as traced arrays, swept entries would all be looked up."""
    first = {sweep.path: sweep.values[0] for sweep in config.sweep}
    return dataclasses.replace(configs.with_values(config, first), sweep=())


# --- twins


class _Enough(BaseException):
    """All that was wanted has been read. No `Exception`: nothing on its way should take it for an error."""


class _Notes:
    """What twins were asked for."""

    def __init__(self, wanted: frozenset[str] = frozenset()) -> None:
        self.read: set[str] = set()
        self._missing = set(wanted)

    def add(self, path: str) -> None:
        """Raises `_Enough` at the last of what is wanted."""
        self.read.add(path)
        if path in self._missing:
            self._missing.remove(path)
            if not self._missing:
                raise _Enough


def _twin(config: T, notes: _Notes, path: str) -> T:
    """A config that behaves as the given one, and notes the path of every entry it is asked for."""
    twin = object.__new__(_twin_class(type(config)))
    for field in dataclasses.fields(typing.cast(Any, config)):
        value, below = getattr(config, field.name), f"{path}.{field.name}"
        is_config = dataclasses.is_dataclass(value) and not isinstance(value, type)
        object.__setattr__(twin, field.name, _twin(value, notes, below) if is_config else value)
    object.__setattr__(twin, _NOTES, (notes, path))
    return twin


@functools.cache
def _twin_class(cls: type[Any]) -> type[Any]:
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def note_and_get(self: Any, name: str) -> Any:
        if name in names:
            # A copy by `dataclasses.replace` has no notes, but making it read every entry.
            notes, path = vars(self).get(_NOTES, (_Notes(), ""))
            notes.add(f"{path}.{name}")
        return object.__getattribute__(self, name)

    # By identity: whatever is kept by config (a built environment) must be made anew from the twin.
    return type(cls.__name__, (cls,), {"__getattribute__": note_and_get, "__hash__": object.__hash__})


# --- the message


def _explain(config: RunConfig, path: str) -> str:
    value = configs.format_value(configs.get_path(config, path))
    switch = _switch(_unswept(config), path)
    if switch is None:
        return f"{path}={value} has no effect: nothing reads it with this config. Remove it."
    name, now, other = (switch[0], *map(configs.format_value, switch[1:]))
    return f"{path}={value} has no effect: nothing reads it with {name}={now}. Remove it, or set {name}={other}."


def _switch(config: RunConfig, path: str) -> tuple[str, Any, Any] | None:
    """An entry, its value, and another value with which `path` would be read; None if none is near."""
    for name, other in itertools.islice(_alternatives(config, path), _TRIALS):
        try:
            changed = configs.set_path(config, name, other)
            changed.algo.check(changed.task.spec)
            if path in reads(changed, [path]):
                return name, configs.get_path(config, name), other
        except Exception:  # of any kind: a combination that cannot be built is no advice
            continue
    return None


def _alternatives(config: RunConfig, path: str) -> Iterator[tuple[str, Any]]:
    """Other values of the entries around `path`, its neighbours first: named choices, then on and off."""
    for above in _owners(path):
        owner = configs.get_path(config, above)
        # Stable: the owner's own entries stand before those of the configs in it.
        around = {f"{above}.{name}": now for name, now in sorted(configs.leaves(owner).items(), key=_depth)}
        around.pop(path, None)
        yield from ((name, other) for name, now in around.items() for other in _choices(config, name, now))
        yield from ((name, type(now)(not now)) for name, now in around.items() if isinstance(now, (bool, int, float)))


def _depth(leaf: tuple[str, Any]) -> int:
    return leaf[0].count(".")


def _choices(config: RunConfig, path: str, now: Any) -> list[Any]:
    kind = configs.type_of(config, path)
    return [other for other in typing.get_args(kind) if other != now] if typing.get_origin(kind) is Literal else []


def _owners(path: str) -> list[str]:
    """ "algo.mixer.embed" -> ["algo.mixer", "algo"]."""
    names = path.split(".")[:-1]
    return [".".join(names[:depth]) for depth in range(len(names), 0, -1)]
