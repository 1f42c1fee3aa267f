"""Ranges of config entries, declared where the entry is: `width: Count = 64`. Refusals and help follow from them."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from typing import Annotated, Any

import tyro
from annotated_types import Ge, Gt, Le, Lt

from rookery.core.errors import ConfigError

Count = Annotated[int, Ge(1), tyro.conf.arg(metavar="INT>=1")]
Whole = Annotated[int, Ge(0), tyro.conf.arg(metavar="INT>=0")]
Positive = Annotated[float, Gt(0), tyro.conf.arg(metavar="FLOAT>0")]
NonNegative = Annotated[float, Ge(0), tyro.conf.arg(metavar="FLOAT>=0")]
Fraction = Annotated[float, Ge(0), Le(1), tyro.conf.arg(metavar="0..1")]
"""A probability, a discount, a share."""
BelowOne = Annotated[float, Ge(0), Lt(1), tyro.conf.arg(metavar="0..<1")]
"""The probability of what must not happen always."""
UpToOne = Annotated[float, Gt(0), Le(1), tyro.conf.arg(metavar=">0..1")]
"""The probability of what must happen at times."""
Several = Annotated[int, Ge(2), tyro.conf.arg(metavar="INT>=2")]

Bound = Ge | Gt | Le | Lt


def check_ranges(config: Any, prefix: str) -> None:
    """Raise `ConfigError` for every number of a config that is outside its range, or not finite."""
    problems = list(_problems(config, prefix))
    if problems:
        raise ConfigError("\n".join(problems))


def words(bounds: typing.Iterable[Bound]) -> str:
    """A range in words: "at least 0 and at most 1"."""
    return " and ".join(_word(bound) for bound in bounds)


def bounds_of(cls: type, name: str) -> tuple[Bound, ...]:
    """The bounds that the annotation of a field declares."""
    return tuple(mark for mark in getattr(_hints(cls).get(name), "__metadata__", ()) if isinstance(mark, Bound))


def _problems(config: Any, prefix: str) -> typing.Iterator[str]:
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), f"{prefix}.{field.name}" if prefix else field.name
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _problems(typing.cast(Any, value), path)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            bounds = bounds_of(config.__class__, field.name)
            if not math.isfinite(value):
                yield f"{path} must be a finite number, got {value}."
            elif not all(_holds(bound, value) for bound in bounds):
                yield f"{path} must be {words(bounds)}, got {value}."


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _holds(bound: Bound, value: float) -> bool:
    number: Any
    match bound:
        case Ge(number):
            return value >= number
        case Gt(number):
            return value > number
        case Le(number):
            return value <= number
        case Lt(number):
            return value < number


def _word(bound: Bound) -> str:
    match bound:
        case Ge(number):
            return f"at least {number}"
        case Gt(number):
            return f"above {number}"
        case Le(number):
            return f"at most {number}"
        case Lt(number):
            return f"below {number}"
