"""Configs as JSON and as dotted paths. Every mistake is a `ConfigError` that names the path and what is accepted."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError
from pydantic_core import core_schema

from rookery.core.errors import ConfigError, suggest
from rookery.core.ranges import words
from rookery.core.registry import ALGORITHMS, PRESETS, TASK_FAMILIES

T = TypeVar("T")

FAMILIES: dict[str, dict[str, type[Any]]] = {"algo": ALGORITHMS, "task": TASK_FAMILIES}
"""Tables of the classes that a field of this name may hold, if it is marked `OfFamily`."""


class OfFamily:
    """Marks a field that holds a config of any family: its class is found by the config's own "family" entry."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.any_schema()  # checked against the family's class instead


_OUT_OF_RANGE: dict[str, tuple[Any, str]] = {
    "greater_than_equal": (Ge, "ge"),
    "greater_than": (Gt, "gt"),
    "less_than_equal": (Le, "le"),
    "less_than": (Lt, "lt"),
}
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_json(config: Any) -> Any:
    """The config as plain JSON values; tuples become lists, non-finite floats the words "inf", "-inf", "nan"."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if _is_mapping(config):
        return {str(key): to_json(value) for key, value in config.items()}
    if _is_list(config):
        return [to_json(value) for value in config]
    if isinstance(config, float) and not math.isfinite(config):
        return str(config)
    return config


def from_json(cls: type[T], data: Any, prefix: str = "") -> T:
    """The config of class `cls` that `to_json` gave `data` for; absent entries take their defaults."""
    opened: dict[str, Any] = {}
    if _is_mapping(data):
        _check_family(cls, data, prefix)
        opened = _open_fields(cls, data, prefix)
        # The rest is checked with nothing in their place: they are checked against classes of their own.
        blank: dict[str, Any] = {name: [] if _is_list(value) else None for name, value in opened.items()}
        data = {**data, **blank}
    config = _validate(cls, data, prefix)
    return dataclasses.replace(config, **opened) if opened else config


def get_path(config: Any, path: str) -> Any:
    """The entry at a dotted path such as "algo.optimiser.lr"."""
    for depth, name in enumerate(path.split(".")):
        _require(config, name, path, depth)
        config = getattr(config, name)
    return config


def set_path(config: T, path: str, value: Any) -> T:
    """The config with a checked value at a dotted path; a mapping stands for a nested config."""
    parent, name = _owner(config, path)
    return _replace(config, path.split("."), _checked(parent, name, path, value))


def with_values(config: T, values: Mapping[str, Any]) -> T:
    """The config with any objects, also traced arrays, at dotted paths: nothing is checked but that the paths exist."""
    for path, value in values.items():
        get_path(config, path)
        config = _place(config, path.split("."), value)
    return config


def leaves(config: Any) -> dict[str, Any]:
    """Dotted path -> value of every entry that is not itself a config."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{path}": leaf for path, leaf in leaves(value).items()}
        else:
            found[field.name] = value
    return found


def nested(config: Any) -> dict[str, Any]:
    """Dotted path -> config of every entry that is itself a config."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = value
            found |= {f"{field.name}.{path}": inner for path, inner in nested(value).items()}
    return found


def normalised(config: T) -> T:
    """The config with every value of its declared type: 2e4 for an integer is 20000, 1 for a number 1.0.

    Equal runs have equal hashes only in this form. Raises `ConfigError` where a value does not fit.
    """
    return from_json(type(config), to_json(config))


def diff(a: Any, b: Any) -> dict[str, tuple[Any, Any]]:
    """Dotted path -> (value in a, value in b) where they differ; None where a config has no such entry."""
    left, right = leaves(a), leaves(b)
    return {
        path: (left.get(path), right.get(path))
        for path in [*left, *(path for path in right if path not in left)]
        if path not in left or path not in right or left[path] != right[path]
    }


def label(preset: str, algo: Any) -> str:
    """The preset and what `algo` changes of it, for example "qmix mixer.embed=64"."""
    if preset not in PRESETS:
        return preset
    return " ".join([preset, *overrides(PRESETS[preset], algo)])


def overrides(base: Any, config: Any) -> list[str]:
    """What `config` changes of `base`, each as "path=value"."""
    changed = {path: new for path, (_, new) in diff(base, config).items() if new is not None}
    return [f"{path}={format_value(value)}" for path, value in changed.items()]


def format_value(value: Any) -> str:
    """A value as it is written on the command line: floats short, tuples with commas."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if _is_list(value):
        return ",".join(format_value(item) for item in value)
    return str(value)


def type_of(config: Any, path: str) -> Any:
    """The declared type of the entry at a dotted path."""
    owner, name = _owner(config, path)
    return _hints(owner.__class__)[name]


# --- reading and writing along a path


def _join(prefix: str, name: object) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


def _owner(config: Any, path: str) -> tuple[Any, str]:
    """The config that holds the entry at a path, and the entry's name."""
    get_path(config, path)
    parent, _, name = path.rpartition(".")
    return (get_path(config, parent) if parent else config), name


def _require(config: Any, name: str, path: str, depth: int) -> None:
    """Raise unless `config`, found `depth` names down `path`, has the entry `name`."""
    above = ".".join(path.split(".")[:depth])
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"{path}: there is no such entry; {above} is a value, {_show(config)}.")
    names = [f.name for f in dataclasses.fields(config)]
    if name not in names:
        # A right name at the wrong depth is the commonest slip.
        deeper = [_join(above, leaf) for leaf in leaves(config) if leaf.endswith(f".{name}")]
        hint = " Did you mean " + " or ".join(f"'{leaf}'" for leaf in deeper) + "?" if deeper else suggest(name, names)
        raise ConfigError(f"{path}: there is no such entry.{hint}")


def _checked(parent: Any, name: str, path: str, value: Any) -> Any:
    """`value`, made to fit the field `name` of `parent`."""
    annotation = _hints(parent.__class__)[name]
    table = _family_fields(type(parent)).get(name)
    if name == "family" and value != parent.family:
        raise ConfigError(f"{path}: the family is fixed, '{parent.family}'; choose another preset or task instead.")
    if table is not None:
        return value if type(value) in table.values() else _open_family(value, table, path)
    if dataclasses.is_dataclass(value):
        value = to_json(value) if isinstance(value, _class_of(annotation)) else value
    return _validate(annotation, value, path)


def _class_of(annotation: Any) -> type:
    return annotation if isinstance(annotation, type) else object


def _replace(config: Any, names: Sequence[str], value: Any) -> Any:
    if len(names) > 1:
        value = _replace(getattr(config, names[0]), names[1:], value)
    return dataclasses.replace(config, **{names[0]: value})


def _place(config: Any, names: Sequence[str], value: Any) -> Any:
    """As `_replace`, past `__post_init__`: checks there would need the value of a traced array."""
    if len(names) > 1:
        value = _place(getattr(config, names[0]), names[1:], value)
    changed = copy.copy(config)
    object.__setattr__(changed, names[0], value)
    return changed


# --- families


def _family_fields(cls: Any) -> dict[str, dict[str, type[Any]]]:
    """Fields of `cls` that hold a config of any family, with the table of its families."""
    if not dataclasses.is_dataclass(cls):
        return {}
    return {name: table for name, table in FAMILIES.items() if OfFamily in _marks(cls, name)}


def _family_lists(cls: Any) -> dict[str, Any]:
    """Fields of `cls` that hold a tuple of configs, each with a field that holds a config of any family."""
    if not dataclasses.is_dataclass(cls):
        return {}
    kinds = {name: typing.get_args(kind)[:1] for name, kind in _hints(typing.cast(type, cls)).items()}
    return {name: kind[0] for name, kind in kinds.items() if kind and _family_fields(kind[0])}


def _open_fields(cls: Any, data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What `data` has for fields of any family, and for lists of configs that have such fields."""
    opened: dict[str, Any] = {}
    for name, table in _family_fields(cls).items():
        if name in data:
            opened[name] = _open_family(data[name], table, _join(prefix, name))
    for name, kind in _family_lists(cls).items():
        if _is_list(data.get(name)):
            items = enumerate(data[name])
            opened[name] = tuple(from_json(kind, item, f"{_join(prefix, name)}.{i}") for i, item in items)
    return opened


def _marks(cls: Any, name: str) -> tuple[Any, ...]:
    """What the annotation of a field is marked with."""
    return getattr(typing.get_type_hints(cls, include_extras=True).get(name), "__metadata__", ())


def _open_family(data: Any, table: Mapping[str, type[Any]], path: str) -> Any:
    """The config that `data` describes, of the class that its "family" entry names."""
    known = ", ".join(f"'{name}'" for name in sorted(table))
    if not _is_mapping(data):
        raise ConfigError(f"{path}: expected an object with the entry 'family' (one of {known}), got {_show(data)}.")
    if "family" not in data:
        raise ConfigError(f"{path}.family: missing; accepted: {known}.")
    name = data["family"]
    if not isinstance(name, str) or name not in table:
        raise ConfigError(
            f"{path}.family: unknown family {_show(name)}.{suggest(str(name), table)} "
            "If a file of your own defines it, pass --import FILE.py (in Python, import it first)."
        )
    return from_json(table[name], data, path)


def _check_family(cls: type, data: Mapping[str, Any], prefix: str) -> None:
    field = getattr(cls, "__dataclass_fields__", {}).get("family")
    if field is not None and data.get("family", field.default) != field.default:
        raise ConfigError(f"{_join(prefix, 'family')}: expected '{field.default}', got {_show(data['family'])}.")


# --- checking against types


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _adapter(annotation: Any) -> Any:
    return TypeAdapter(annotation)


def _validate(annotation: Any, data: Any, prefix: str) -> Any:
    """`data` as a value of the type, by pydantic's strict rules for JSON plus those of `_loosen`."""
    try:
        text = json.dumps(_loosen(annotation, data))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{prefix or 'config'}: expected {_expected(annotation)}, got {_show(data)}.") from error
    try:
        return _adapter(annotation).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        problems = [_explain(dict(e), prefix, annotation) for e in error.errors(include_url=False)]
        raise ConfigError("\n".join(problems)) from None


def _loosen(annotation: Any, data: Any) -> Any:
    """Accept what strict types refuse but users mean: 2e6 for an int, "inf" for a float, a fixed field's own value."""
    if annotation is int and isinstance(data, float) and data.is_integer():
        return int(data)
    if annotation is float and isinstance(data, str):
        return _NOT_FINITE.get(data, data)
    if _is_mapping(data) and dataclasses.is_dataclass(annotation):
        hints = _hints(typing.cast(type, annotation))
        fixed = {f.name: f.default for f in dataclasses.fields(annotation) if not f.init}
        kept = {key: value for key, value in data.items() if key not in fixed or value != fixed[key]}
        return {key: _loosen(hints.get(key), value) for key, value in kept.items()}
    if _is_list(data) and typing.get_origin(annotation) is tuple:
        inner = typing.get_args(annotation)
        each = inner[:1] * len(data) if inner[-1:] == (Ellipsis,) else (*inner, *[None] * len(data))
        return [_loosen(kind, item) for kind, item in zip(each, data, strict=False)]
    return data


def _explain(error: dict[str, Any], prefix: str, root: Any) -> str:
    """One line for one of pydantic's errors."""
    loc: tuple[Any, ...] = error["loc"]
    path = functools.reduce(_join, loc, prefix) or "config"
    owner = _type_at(root, loc[:-1])
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden") and dataclasses.is_dataclass(owner):
        return f"{path}: there is no such entry.{suggest(str(loc[-1]), [f.name for f in dataclasses.fields(owner)])}"
    expected = _expected(_type_at(root, loc)) or error["msg"]
    if error["type"] in ("missing", "missing_argument"):
        return f"{path}: missing; expected {expected}."
    if error["type"] in ("value_error", "assertion_error"):
        return f"{path}: {error['ctx']['error']}"
    given = error["input"]
    if error["type"] in _OUT_OF_RANGE:
        mark, entry = _OUT_OF_RANGE[error["type"]]
        return f"{path} must be {words([mark(error['ctx'][entry])])}, got {_show(given)}."
    choices = typing.get_args(_type_at(root, loc)) if error["type"] == "literal_error" else ()
    close = suggest(given, map(str, choices)) if isinstance(given, str) and choices else ""
    return f"{path}: expected {expected}, got {_show(given)}." + (close if close.startswith(" Did") else "")


def _type_at(annotation: Any, loc: Sequence[Any]) -> Any:
    """The declared type at pydantic's location; None where it cannot be followed."""
    for name in loc:
        if dataclasses.is_dataclass(annotation):
            annotation = _hints(typing.cast(type, annotation)).get(name)
        elif typing.get_origin(annotation) is tuple and isinstance(name, int):
            inner = typing.get_args(annotation)
            index = 0 if inner[-1:] == (Ellipsis,) else name
            annotation = inner[index] if index < len(inner) else None
        else:
            return None
    return annotation


def _expected(annotation: Any) -> str:
    """The type in words; empty where there are none for it."""
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    if annotation in words:
        return words[annotation]
    if dataclasses.is_dataclass(annotation):
        return "an object with the entries " + ", ".join(f.name for f in dataclasses.fields(annotation))
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return "one of " + ", ".join(_show(choice) for choice in inner)
    if typing.get_origin(annotation) is tuple and inner[-1:] == (Ellipsis,):
        return f"a list, each item {_expected(inner[0])}"
    if typing.get_origin(annotation) is tuple:
        return f"a list of {len(inner)}: " + ", ".join(_expected(kind) for kind in inner)
    return ""


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (tuple, list))


def _show(value: Any) -> str:
    """A value as it stood in the input, cut short."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
