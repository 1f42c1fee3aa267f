"""What every task in the registry must be and do."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from typing import Any, get_type_hints

import jax
import numpy as np
import pytest

import rookery.tasks
from rookery.core.registry import TASK_FAMILIES, TASK_PREFIXES, TASKS
from rookery.core.types import Step, Task
from rookery.tasks.catalog import FACTS, describe, recorded_shapes, shapes

KEYS = {"legacy": jax.random.PRNGKey(0), "typed": jax.random.key(0)}
# One of each family and each peculiarity; others differ from these in numbers only.
PLAYED = (
    "mpe/simple_spread",
    "mpe/simple_speaker_listener",
    "mpe/simple_tag",
    "mpe/simple_facmac_3a",
    "smax/3m",
    "overcooked/cramped_room",
    "hanabi/2p",
    "riddle/3",
    "coin/selfish",
    "storm/two_player",
    "matrix/climbing",
    "maze/static",
    "maze/walls_moving",
    "maze/gbmr",
    "key_to_door/noisy",
    "tmaze/10",
    "rooms/four_random",
    "rooms/four_inertia",
    "minatar/asterix",
    "minatar/breakout",
    "minatar/freeway",
    "minatar/space_invaders",
)


def shape_of(x: Any) -> tuple[Any, ...]:
    return (x.shape, x.dtype, x.weak_type)


@pytest.mark.parametrize("name", TASKS)
def test_shapes_and_types(name: str) -> None:
    task = TASKS[name]
    spec = task.spec
    assert isinstance(task, Task)
    assert hash(task) == hash(dataclasses.replace(task))
    state, first = jax.eval_shape(task.reset, KEYS["legacy"])
    n, action = spec.n_agents, spec.action
    expected = {
        "obs": ((n, *spec.obs_shape), spec.obs_dtype),
        "state": (spec.state_shape or (0,), "float32"),
        "legal": ((n, action.width), "bool"),
        "alive": ((n,), "bool"),
        "reward": ((n,), "float32"),
        "discount": ((n,), "float32"),
        "first": ((), "bool"),
        "last": ((), "bool"),
        "success": ((), "float32"),
    }
    chosen = jax.ShapeDtypeStruct((n, *action.shape), action.dtype)
    new_state, step = jax.eval_shape(task.step, state, chosen, KEYS["legacy"])
    for one in (first, step):
        found = {f.name: getattr(one, f.name) for f in dataclasses.fields(Step)}
        assert {k: (v.shape, v.dtype.name) for k, v in found.items()} == expected
    # A scan carries the state: reset and step must agree in every leaf.
    assert jax.tree.map(shape_of, state) == jax.tree.map(shape_of, new_state)


@pytest.mark.parametrize("name", TASKS)
def test_spec_is_consistent(name: str) -> None:
    spec = TASKS[name].spec
    assert len(set(spec.agents)) == spec.n_agents
    assert spec.limit >= 1
    for sizes in (spec.obs_sizes, spec.action_sizes, spec.teams):
        assert len(sizes) in (0, spec.n_agents)
    if spec.obs_sizes:
        assert (max(spec.obs_sizes),) == spec.obs_shape
    if spec.action_sizes:
        assert max(spec.action_sizes) == spec.action.width
    if spec.teams:
        assert not spec.cooperative and len(set(spec.teams)) > 1
    assert all(i < spec.obs_size for i in spec.position)
    if spec.entities:
        ends = [e.start + e.count * e.size for e in spec.entities]
        assert [e.start for e in spec.entities] == [0, *ends[:-1]], "entities must tile the observation"
        assert ends[-1] == spec.obs_size
        about = [e.first_action + k for e in spec.entities if e.first_action >= 0 for k in range(e.count)]
        assert len(set(about)) == len(about) and all(a < spec.action.width for a in about)


@pytest.mark.parametrize("family", TASK_FAMILIES)
def test_configs_are_plain(family: str) -> None:
    cls = TASK_FAMILIES[family]
    fields = dataclasses.fields(cls)
    assert fields[0].name == "family" and fields[0].default == family
    assert set(get_type_hints(cls)) >= {f.name for f in fields}
    values = dataclasses.asdict(cls())
    assert None not in values.values()
    assert json.loads(json.dumps(values)).keys() == values.keys()


@pytest.mark.parametrize("name", TASKS)
def test_catalog_knows_the_task(name: str) -> None:
    row = describe(name)
    assert row["name"] == name
    assert recorded_shapes()[name] == shapes(name), "run python -m rookery.tasks.catalog to record shapes anew"
    assert math.isfinite(row["random"]), "random scores are measured for every task"
    assert math.isfinite(row["reference"]) or row["source"] == "not yet measured"
    assert FACTS[name].about and FACTS[name].score


def test_catalog_has_no_other_task() -> None:
    assert FACTS.keys() == TASKS.keys()


@pytest.mark.parametrize("name", PLAYED)
def test_random_play(name: str, rollout: Any) -> None:
    """A little longer than an episode without a reset: also what comes after the end must be harmless."""
    task = TASKS[name]
    spec = task.spec
    length = min(spec.limit + 2, 120)
    first, steps, _ = rollout(task, length, KEYS["legacy"])
    assert first.first and not first.last
    assert not np.any(first.reward) and np.all(first.discount == 1) and np.all(first.alive)
    assert not np.any(steps.first)
    for leaf in jax.tree.leaves((first, steps)):
        assert np.all(np.isfinite(leaf))
    assert np.all(np.any(first.legal, -1)) and np.all(np.any(steps.legal, -1))
    assert np.all(np.isin(steps.discount, (0.0, 1.0)))
    assert np.all(steps.alive | (steps.discount == 0)), "the dead do not earn"
    if length >= spec.limit:
        assert np.all(steps.last[spec.limit - 1 :])
    # `last` without termination is a cut, and a cut comes at the limit only.
    cut = steps.last & (np.max(steps.discount, -1) == 1)
    assert not np.any(cut[: spec.limit - 1])
    assert not np.any(~steps.last & (np.max(steps.discount, -1) == 0))


@pytest.mark.parametrize("name", ["mpe/simple_speaker_listener", "mpe/simple_tag"])
def test_padding(name: str, rollout: Any) -> None:
    spec = TASKS[name].spec
    _, steps, _ = rollout(TASKS[name], min(spec.limit + 2, 120), KEYS["legacy"])
    for i, size in enumerate(spec.obs_sizes):
        assert not np.any(steps.obs[:, i, size:])
        assert np.any(steps.obs[:, i, :size])
    for i, size in enumerate(spec.action_sizes):
        assert np.all(steps.legal[:, i, :size]) and not np.any(steps.legal[:, i, size:])


@pytest.mark.parametrize("name", ["mpe/simple_spread", "smax/3m", "matrix/climbing", "maze/static"])
def test_both_kinds_of_key(name: str) -> None:
    task = TASKS[name]
    _, legacy = jax.eval_shape(task.reset, KEYS["legacy"])
    _, typed = jax.eval_shape(task.reset, KEYS["typed"])
    assert jax.tree.map(shape_of, legacy) == jax.tree.map(shape_of, typed)


def test_typed_keys_draw_the_same_numbers(rollout: Any) -> None:
    a, b = (rollout(TASKS["mpe/simple_spread"], 27, key) for key in KEYS.values())
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_vmap_is_many_single_environments() -> None:
    task = TASKS["maze/goal"]
    keys = jax.random.split(KEYS["typed"], 3)
    _, many = jax.vmap(task.reset)(keys)
    for i in range(3):
        _, one = task.reset(keys[i])
        np.testing.assert_allclose(many.obs[i], one.obs, rtol=1e-6)


def test_first_use_inside_a_trace_leaves_no_tracer() -> None:
    """An environment built while tracing must be usable in the next trace."""
    code = (
        "import jax, rookery.tasks\n"
        "from rookery.core.registry import TASKS\n"
        "t = TASKS['mpe/simple_spread']\n"
        "jax.jit(lambda k: t.reset(k)[1].obs)(jax.random.key(0))\n"
        "print(jax.jit(jax.vmap(lambda k: t.reset(k)[1].obs.sum()))(jax.random.split(jax.random.key(0), 2)).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(2,)\n", "jaxmarl's greetings must not reach the user"


def test_importing_the_tasks_imports_no_environment() -> None:
    code = "import sys, rookery.tasks; assert not {'jaxmarl', 'gymnax', 'gymnasium'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_task_imports_its_own_environment_only_and_leaves_jaxmarl_whole() -> None:
    code = (
        "import sys, rookery.tasks\n"
        "from rookery.core.registry import TASKS\n"
        "TASKS['smax/3m'].spec, TASKS['mpe/simple_spread'].spec\n"
        "assert 'jaxmarl.environments.smax.smax_env' in sys.modules\n"
        "assert not {'jaxmarl.environments.storm', 'matplotlib'} & set(sys.modules)\n"
        "import jaxmarl\n"
        "from jaxmarl.environments.smax import HeuristicEnemySMAX\n"
        "assert type(jaxmarl.make('HeuristicEnemySMAX')) is HeuristicEnemySMAX\n"
        "assert jaxmarl.make('MPE_simple_spread_v3').num_agents == TASKS['mpe/simple_spread'].spec.n_agents == 3\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_registry_is_filled_by_importing_the_package() -> None:
    assert rookery.tasks.__all__
    ours = {name for name, cls in TASK_FAMILIES.items() if cls.__module__.startswith("rookery.")}  # not those of tests
    assert {name.split("/")[0] for name in TASKS} == ours - set(TASK_PREFIXES)
