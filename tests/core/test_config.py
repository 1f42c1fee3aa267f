"""Round trips, dotted paths, and the text of every kind of mistake."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core import config as c
from rookery.core.errors import ConfigError
from rookery.core.registry import ALGORITHMS, PRESETS, TASK_FAMILIES
from rookery.core.types import Algorithm, Collect, Task
from rookery.training.config import Checkpoints, Evaluation, RunConfig, Sweep


@dataclass(frozen=True)
class Optimiser:
    lr: float = 5e-4
    clip: float = math.inf
    warmup: int = 0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"lr must be above 0, got {self.lr}.")


@dataclass(frozen=True)
class Mixer:
    kind: Literal["none", "vdn", "qmix"] = "none"
    embed: int = 32


@dataclass(frozen=True)
class Toy(Algorithm[Any]):
    mixer: Mixer = field(default_factory=Mixer)
    optimiser: Optimiser = field(default_factory=Optimiser)
    layers: tuple[int, ...] = (64, 64)
    span: tuple[float, float] = (0.0, 1.0)
    double: bool = True
    note: str = ""
    family: Literal["toy"] = "toy"
    collect: ClassVar[Collect] = Collect()


@dataclass(frozen=True)
class Maze(Task[Any]):
    size: int = 5
    spec: ClassVar[Any] = None
    family: str = field(default="toymaze", init=False)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ALGORITHMS, "toy", Toy)
    monkeypatch.setitem(TASK_FAMILIES, "toymaze", Maze)
    monkeypatch.setitem(PRESETS, "toy-vdn", Toy(mixer=Mixer("vdn")))
    yield


def run(**changes: Any) -> RunConfig:
    return RunConfig(
        **{"preset": "toy-vdn", "task_name": "toymaze/5", "algo": PRESETS["toy-vdn"], "task": Maze()} | changes
    )


floats = st.floats(allow_nan=False)
ints = st.integers(-(2**62), 2**62)
algos = st.builds(
    Toy,
    mixer=st.builds(Mixer, kind=st.sampled_from(["none", "vdn", "qmix"]), embed=ints),
    optimiser=st.builds(Optimiser, lr=st.floats(1e-300, allow_infinity=False), clip=floats, warmup=ints),
    layers=st.lists(ints, max_size=3).map(tuple),
    span=st.tuples(floats, floats),
    double=st.booleans(),
    note=st.text(),
)
runs = st.builds(
    RunConfig,
    preset=st.text(),
    task_name=st.text(),
    algo=algos,
    task=st.builds(Maze, size=ints),
    steps=st.integers(1, 4_000_000_000),
    seeds=st.lists(ints, max_size=4).map(tuple),
    sweep=st.lists(st.builds(Sweep, path=st.text(), values=st.lists(floats).map(tuple)), max_size=2).map(tuple),
    evaluation=st.builds(Evaluation, points=st.integers(1, 2**62)),
    checkpoints=st.builds(Checkpoints, keep=st.integers(1, 2**62)),
)


@settings(max_examples=60, deadline=None)
@given(runs)
def test_round_trip_through_json_text(config: RunConfig) -> None:
    text = json.dumps(c.to_json(config), allow_nan=False)
    back = c.from_json(RunConfig, json.loads(text))
    assert back == config
    assert hash(back) == hash(config)
    assert {path: type(v) for path, v in c.leaves(back).items()} == {p: type(v) for p, v in c.leaves(config).items()}


def test_missing_entries_take_their_defaults() -> None:
    data = {"preset": "p", "task_name": "t", "algo": {"family": "toy"}, "task": {"family": "toymaze"}}
    assert c.from_json(RunConfig, data) == RunConfig("p", "t", Toy(), Maze())


def test_what_users_mean_is_accepted() -> None:
    data = c.to_json(run()) | {"steps": 2e6}
    data["algo"]["span"] = [0, 1]
    config = c.from_json(RunConfig, data)
    assert config.steps == 2_000_000 and type(config.steps) is int
    assert config.algo.span == (0.0, 1.0) and type(config.algo.span[0]) is float


MISTAKES: list[tuple[str, Any, str]] = [
    ("algo.optimiser.lrr", 1.0, "algo.optimiser.lrr: there is no such entry. Did you mean 'lr'?"),
    ("stepz", 1, "stepz: there is no such entry. Did you mean 'steps'"),
    ("evaluation.points", "3", 'evaluation.points: expected an integer, got "3".'),
    ("evaluation.points", True, "evaluation.points: expected an integer, got true."),
    ("steps", 2.5, "steps: expected an integer, got 2.5."),
    ("algo.optimiser.lr", "fast", 'algo.optimiser.lr: expected a number, got "fast".'),
    ("algo.optimiser.lr", False, "algo.optimiser.lr: expected a number, got false."),
    ("algo.optimiser.lr", -1.0, "lr must be above 0, got -1.0."),
    ("algo.double", 1, "algo.double: expected true or false, got 1."),
    (
        "algo.mixer.kind",
        "qmx",
        'algo.mixer.kind: expected one of "none", "vdn", "qmix", got "qmx". Did you mean \'qmix\'',
    ),
    ("algo.layers", [64, "x"], 'algo.layers.1: expected an integer, got "x".'),
    ("algo.layers", 64, "algo.layers: expected a list, each item an integer, got 64."),
    ("algo.span", [1.0], "algo.span.1: missing; expected a number."),
    ("algo.span", [1.0, 2.0, 3.0], "algo.span: expected a list of 2: a number, a number, got [1.0, 2.0, 3.0]."),
    ("algo.mixer", 3, "algo.mixer: expected an object with the entries kind, embed, got 3."),
    ("algo.family", "toi", "algo.family: unknown family \"toi\". Did you mean 'toy'?"),
    ("task.family", 3, "task.family: unknown family 3."),
    ("task", [], "task: expected an object with the entry 'family' (one of "),
    ("sweep", [{"path": 3, "values": []}], "sweep.0.path: expected a string, got 3."),
    ("steps", None, "steps: expected an integer, got null."),
]


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES, ids=[f"{p}={v}" for p, v, _ in MISTAKES])
def test_mistakes_in_a_file_name_the_path(path: str, value: Any, message: str) -> None:
    data = c.to_json(run())
    parent = data
    *above, name = path.split(".")
    for key in above:
        parent = parent[key]
    parent[name] = value
    with pytest.raises(ConfigError) as caught:
        c.from_json(RunConfig, data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_mistake_is_told_at_once_one_line_each() -> None:
    data = c.to_json(run()) | {"steps": "x", "seeds": 3}
    with pytest.raises(ConfigError) as caught:
        c.from_json(RunConfig, data)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["steps", "seeds"]


@pytest.mark.parametrize("part", ["algo", "task", "preset"])
def test_missing_parts_are_named(part: str) -> None:
    data = c.to_json(run())
    del data[part]
    with pytest.raises(ConfigError, match=f"^{part}: missing"):
        c.from_json(RunConfig, data)


def test_missing_family_is_named() -> None:
    data = c.to_json(run())
    del data["algo"]["family"]
    with pytest.raises(ConfigError, match=r"^algo\.family: missing; accepted: .*'toy'"):
        c.from_json(RunConfig, data)


def test_a_config_is_not_read_as_another_family() -> None:
    with pytest.raises(ConfigError, match=r"family: expected 'toymaze', got \"toy\""):
        c.from_json(Maze, {"family": "toy"})


def test_get_and_set_along_a_path() -> None:
    config = c.set_path(run(), "algo.optimiser.lr", 1)
    assert c.get_path(config, "algo.optimiser.lr") == 1.0
    assert type(config.algo.optimiser.lr) is float
    assert dataclasses.replace(config, algo=PRESETS["toy-vdn"]) == run()
    assert c.set_path(config, "algo.layers", [8, 4e0]).algo.layers == (8, 4)
    assert c.set_path(config, "algo.mixer", {"kind": "qmix"}).algo.mixer == Mixer("qmix")
    assert c.set_path(config, "algo.mixer", Mixer("qmix", 3)).algo.mixer == Mixer("qmix", 3)
    assert c.set_path(config, "task", Maze(9)).task == Maze(9)
    assert c.set_path(config, "task", {"family": "toymaze", "size": 2}).task == Maze(2)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("algo.optimizer.lr", 1.0, "algo.optimizer.lr: there is no such entry. Did you mean 'optimiser'"),
        ("algo.lr", 1.0, "algo.lr: there is no such entry. Did you mean 'algo.optimiser.lr'?"),
        ("steps.more", 1, "steps.more: there is no such entry; steps is a value, 1000000."),
        ("algo.mixer", Optimiser(), "algo.mixer: expected an object"),
        ("algo.mixer.embed", 1.5, "algo.mixer.embed: expected an integer, got 1.5."),
        ("algo.mixer.embed", object(), "algo.mixer.embed: expected an integer, got <object"),
        ("algo.family", "other", "algo.family: the family is fixed, 'toy'"),
        ("task", Toy(), "task: expected an object with the entry 'family'"),
    ],
)
def test_wrong_paths_and_values_are_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        c.set_path(run(), path, value)
    assert message in str(caught.value)


def test_traced_arrays_go_in_unchecked() -> None:
    config = run()

    def loss(lr: jax.Array) -> jax.Array:
        return c.with_values(config, {"algo.optimiser.lr": lr}).algo.optimiser.lr * 2

    assert jax.vmap(loss)(jnp.array([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert config == run()
    with pytest.raises(ConfigError, match="Did you mean 'lr'"):
        c.with_values(config, {"algo.optimiser.lrr": 1.0})


def test_leaves_and_diff() -> None:
    assert c.leaves(Mixer()) == {"kind": "none", "embed": 32}
    assert list(c.leaves(run()))[:4] == ["preset", "task_name", "algo.mixer.kind", "algo.mixer.embed"]
    changed = c.set_path(c.set_path(run(), "algo.mixer.embed", 64), "steps", 5)
    assert c.diff(run(), changed) == {"algo.mixer.embed": (32, 64), "steps": (1_000_000, 5)}
    assert c.diff(Maze(), Mixer()) == {
        "size": (5, None), "family": ("toymaze", None), "kind": (None, "none"), "embed": (None, 32)
    }  # fmt: skip


def test_label_tells_what_differs_from_the_preset() -> None:
    algo = PRESETS["toy-vdn"]
    assert c.label("toy-vdn", algo) == "toy-vdn"
    algo = c.set_path(c.set_path(algo, "mixer.embed", 64), "layers", (32, 16))
    assert c.label("toy-vdn", c.set_path(algo, "optimiser.lr", 1e-4)) == (
        "toy-vdn mixer.embed=64 optimiser.lr=0.0001 layers=32,16"
    )
    assert c.label("from-elsewhere", algo) == "from-elsewhere"


def test_declared_types_are_found() -> None:
    assert c.type_of(run(), "algo.optimiser.lr") is float
    assert c.type_of(run(), "steps") is int
