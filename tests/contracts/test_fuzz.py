"""Random configs: each is refused with a clear error, or traced without one.

`FUZZ=1000 pytest tests/contracts/test_fuzz.py` tries so many changes of every preset and of every task.
"""

from __future__ import annotations

import os
import random
import typing
from typing import Any, Literal

import jax
import numpy as np
import pytest
from small import small_config

from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.host import HostTask, empty_rows
from rookery.core.registry import PRESETS, TASKS, find_task
from rookery.training.check import check
from rookery.training.config import RunConfig
from rookery.training.engine import trace

CHANGES = int(os.environ.get("FUZZ", "1"))
NUMBERS: dict[type, list[Any]] = {
    int: [-1, 0, 1, 2, 3, 7, 64],
    float: [-1.0, 0.0, 1e-3, 0.5, 1.0, 1.5, 1e6, float("inf"), float("nan")],
    bool: [True, False],
}


def changed(config: Any, rng: random.Random, part: str = "algo") -> tuple[Any, str]:
    """The config with another value in one entry of its algorithm or task, and what was changed."""
    paths = [path for path in configs.leaves(getattr(config, part)) if path.rpartition(".")[2] != "family"]
    path = f"{part}.{rng.choice(paths)}"
    kind = configs.type_of(config, path)
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else NUMBERS.get(kind, [])
    if not choices:
        return config, ""
    value = rng.choice(list(choices))
    # A task checks itself when it is made; `set_path` makes it anew, as the command line does.
    place = configs.set_path if part == "task" else lambda c, p, x: configs.with_values(c, {p: x})
    return place(config, path, value), f"{path}={value}"


@pytest.mark.parametrize("preset", PRESETS if CHANGES > 1 else list(PRESETS)[::6])
def test_a_changed_preset_is_refused_or_traced(preset: str) -> None:
    rng = random.Random(f"{preset} {CHANGES}")
    for _ in range(CHANGES):
        config, change = changed(small_config(preset), rng)
        try:
            check(config)
        except ConfigError as error:
            assert len(str(error)) > 20, change
            continue
        try:
            trace(config)
        except ConfigError:
            continue  # networks refuse what they cannot read when they are built
        except Exception as error:
            raise AssertionError(f"{preset} with {change} passed `check`, then failed: {error}") from error


# One of each family, all of them if many changes are wanted.
FAMILIES = list({type(task): name for name, task in TASKS.items()}.values())
HOST = ["gymnasium:CartPole-v1", "pettingzoo:mpe2.simple_spread_v3", "pettingzoo:pettingzoo.classic.rps_v2"]


@pytest.mark.parametrize("name", [*(TASKS if CHANGES > 1 else FAMILIES), *HOST])
def test_a_changed_task_is_refused_or_traced(name: str) -> None:
    rng = random.Random(f"{name} {CHANGES}")
    for _ in range(CHANGES):
        config, change = RunConfig("ippo", name, PRESETS["ippo"].small(), find_task(name)), ""
        try:
            config, change = changed(config, rng, "task")
            check(config)
        except ConfigError as error:
            assert len(str(error)) > 20, change
            continue
        try:
            play(config.task)
        except Exception as error:
            raise AssertionError(f"{name} with {change} passed `check`, then failed: {error}") from error


def play(task: Any) -> None:
    """Trace a compiled task; open and step a host task."""
    spec, key = task.spec, jax.random.PRNGKey(0)
    if not isinstance(task, HostTask):
        state, step = jax.eval_shape(task.reset, key)
        assert step.obs.shape == (spec.n_agents, *spec.obs_shape)
        action = jax.ShapeDtypeStruct((spec.n_agents, *spec.action.shape), spec.action.dtype)
        assert jax.eval_shape(task.step, state, action, key)[1].obs.shape == step.obs.shape
        return
    rows, seeds = empty_rows(spec, 1), np.zeros(1, np.uint32)
    envs = task.open(1)
    envs.reset(seeds, rows)
    for _ in range(3):
        envs.step(np.zeros((1, spec.n_agents, *spec.action.shape), spec.action.dtype), seeds, rows)
    envs.close()


@pytest.mark.parametrize(
    ("preset", "change", "told"),
    [
        ("mappo", {"task.limit": 0}, "task.limit must be at least 1, got 0"),
        ("mappo", {"algo.minibatches": 0}, "algo.minibatches must be at least 1, got 0"),
        ("mappo", {"algo.epochs": 0}, "algo.epochs must be at least 1"),
        ("mappo", {"algo.actor.width": -1}, "algo.actor.width must be at least 1"),
        ("mappo", {"algo.collect.envs": 0}, "algo.collect.envs must be at least 1"),
        ("mappo", {"algo.collect.length": -1}, "algo.collect.length must be at least 0"),
        ("mappo", {"algo.optimiser.lr": -1e-3}, "algo.optimiser.lr must be at least 0"),
        ("mappo", {"algo.gamma": 1e6}, "algo.gamma must be at least 0 and at most 1"),
        ("mappo", {"algo.entropy": float("inf")}, "algo.entropy must be a finite number"),
        ("mappo", {"steps": 0}, "steps must be at least 1"),
        ("mappo", {"workers.count": -2}, "workers.count must be at least -1"),
        ("masac", {"algo.entropy.alpha": 0.0}, "algo.entropy.alpha must be above 0"),
        ("maddpg", {"algo.gumbel.end": 0.0}, "algo.gumbel.end must be above 0"),
        ("inspire_qmix", {"algo.share.radius": 0.0}, "algo.share.radius must be above 0"),
    ],
)
def test_what_is_out_of_range_is_named(preset: str, change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check(configs.with_values(small_config(preset, "mpe/simple_spread"), change))
