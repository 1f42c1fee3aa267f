"""Errors that a user can act on. The command line prints their text alone and exits with `code`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RookeryError(Exception):
    """Something a user can mend; the message says what was wrong, what was given, what would be accepted."""

    code = 1


class ConfigError(RookeryError):
    """A config that is misspelt, mistyped or impossible."""

    code = 2


class RunError(RookeryError):
    """A run folder that cannot be used: locked, corrupted, unwritable, of another config."""


class TrainingError(RookeryError):
    """Training that cannot go on, for example a non-finite loss."""


def suggest(given: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or the known names where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.5)
    if close:
        return " Did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    return " Known: " + ", ".join(known) + "."
