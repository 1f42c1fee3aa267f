"""Options that messages advise are options, as a user would type them."""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tyro

import rookery
import rookery.algorithms
import rookery.tasks
import rookery.tasks.host
from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.registry import ALGORITHMS, TASK_FAMILIES
from rookery.training.config import Checkpoints, Evaluation, Workers

SOURCE = Path(rookery.__file__).parent
OWNERS: dict[str, list[Any]] = {
    "algo": [*ALGORITHMS.values()],
    "task": [*TASK_FAMILIES.values()],
    "workers": [Workers],
    "evaluation": [Evaluation],
    "checkpoints": [Checkpoints],
}
OPTION = re.compile(rf"--({'|'.join(OWNERS)})\.([a-z][\w.-]*\w)(?: ([^\s,;:()]+))?")


def texts(file: Path) -> list[str]:
    """All strings of a module, f-strings with a blank for what is filled in; of no docstring."""
    tree = ast.parse(file.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "_" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | pieces:
            found.append(node.value)
    return found


def advised() -> list[tuple[str, str, str]]:
    """Owner, path and the word after each option that a string of the tree names."""
    every = [text for file in sorted(SOURCE.rglob("*.py")) for text in texts(file)]
    return sorted({match.groups("") for text in every for match in OPTION.finditer(text)})  # pyright: ignore


def leaf(owner: type[Any], path: str) -> tuple[Any, bool]:
    """The type of an entry, and whether the option is its negation; None if there is no such entry."""
    names = path.replace("-", "_").split(".")
    for negated in (False, True):
        if negated:
            if not names[-1].startswith("no_"):
                break
            names[-1] = names[-1].removeprefix("no_")
        try:
            kind = configs.type_of(owner(), ".".join(names))
        except ConfigError:
            continue
        if not dataclasses.is_dataclass(kind):
            return kind, negated
    return None, False


def words(kind: Any, after: str) -> list[str]:
    """What stands after the option on a command line."""
    if kind is bool:
        assert after not in ("True", "False", "true", "false", "0", "1"), "a switch takes no value: --x or --no-x"
        return []
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    after = after.rstrip(".'\"")
    if after in choices or re.fullmatch(r"-?\d[\d.e-]*", after):
        return [after]
    return [str(choices[0]) if choices else "1"]


@pytest.mark.parametrize(("owner", "path", "after"), advised())
def test_an_option_that_a_message_advises_parses(owner: str, path: str, after: str) -> None:
    known = [family for family in OWNERS[owner] if leaf(family, path)[0] is not None]
    assert known, f"there is no option --{owner}.{path}"
    kind, negated = leaf(known[0], path)
    assert kind is bool or not negated
    with suppress(ConfigError):  # it was understood; the value that stands for one may not be accepted
        tyro.cli(known[0], args=[f"--{path}", *words(kind, after)])


def test_advice_is_found() -> None:
    assert {("task", "no-check-bounds"), ("algo", "collect.no-restart")} <= {(a, b) for a, b, _ in advised()}
