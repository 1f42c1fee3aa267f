"""Names are data: families are classes, presets and tasks are instances of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

from rookery.core.errors import ConfigError, suggest

C = TypeVar("C", bound=type)

ALGORITHMS: dict[str, type] = {}
"""family -> config class with the methods of `Algorithm`."""
TASK_FAMILIES: dict[str, type] = {}
"""family -> config class with the methods of `Task`."""
PRESETS: dict[str, Any] = {}
"""preset name -> algorithm config."""
ABOUT: dict[str, str] = {}
"""preset name -> what it is, in one line."""
TASKS: dict[str, Any] = {}
"""task name -> task config."""
TASK_PREFIXES: dict[str, Callable[[str], Any]] = {}
"""prefix -> from the name after "prefix:" to a task config; raises `ConfigError` if there is no such environment."""


def family(table: dict[str, type]) -> Callable[[C], C]:
    """Class decorator: enter a config class under the default of its `family` field."""

    def enter(cls: C) -> C:
        table[vars(cls)["family"]] = cls
        return cls

    return enter


def find_task(name: str) -> Any:
    """The task config of a name: an entry of the catalog, or what follows a prefix such as "gymnasium:"."""
    prefix, colon, rest = name.partition(":")
    if not colon:
        return lookup({**TASKS, **{f"{p}:...": None for p in TASK_PREFIXES}}, name, "task")
    if prefix not in TASK_PREFIXES:
        raise ConfigError(f"unknown task '{name}': no prefix '{prefix}:'.{suggest(prefix, TASK_PREFIXES)}")
    if not rest:
        raise ConfigError(f"task '{name}' lacks the name after '{prefix}:'.")
    return TASK_PREFIXES[prefix](rest)


def known_task(name: str) -> Any | None:
    """The task config of a name; None if it is unknown here, for example because its package is not installed."""
    try:
        return find_task(name)
    except ConfigError:
        return None


def lookup(table: dict[str, Any], name: str, what: str) -> Any:
    """`table[name]`, or a ConfigError that suggests a name."""
    if name not in table:
        is_slip = difflib.get_close_matches(name, table, n=1, cutoff=0.8)
        own = "" if is_slip else " One that a file of your own defines needs --import FILE.py."
        raise ConfigError(f"unknown {what} '{name}'.{suggest(name, table)}{own}")
    return table[name]
