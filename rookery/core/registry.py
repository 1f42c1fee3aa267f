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
TASKS: dict[str, Any] = {}
"""task name -> task config."""


def family(table: dict[str, type]) -> Callable[[C], C]:
    """Class decorator: enter a config class under the default of its `family` field."""

    def enter(cls: C) -> C:
        table[vars(cls)["family"]] = cls
        return cls

    return enter


def lookup(table: dict[str, Any], name: str, what: str) -> Any:
    """`table[name]`, or a ConfigError that suggests a name."""
    if name not in table:
        is_slip = difflib.get_close_matches(name, table, n=1, cutoff=0.8)
        own = "" if is_slip else " One that a file of your own defines needs --import FILE.py."
        raise ConfigError(f"unknown {what} '{name}'.{suggest(name, table)}{own}")
    return table[name]
