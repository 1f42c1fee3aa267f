"""Names, their errors, and configs as JSON."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import tyro
from host_play import need

import rookery.algorithms  # noqa: F401  (fills the registry)
from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.registry import PRESETS, TASK_FAMILIES, TASK_PREFIXES, TASKS, find_task
from rookery.tasks.host.atari_task import Atari
from rookery.tasks.host.gymnasium_task import Gymnasium
from rookery.tasks.host.names import installed
from rookery.tasks.host.pettingzoo_task import PettingZoo
from rookery.training.config import RunConfig
from rookery.training.train import score_unit


def test_catalog_names_are_found() -> None:
    assert find_task("maze/static") is TASKS["maze/static"]
    assert isinstance(find_task("gymnasium:CartPole-v1"), Gymnasium)
    assert find_task("gymnasium:Foraging-8x8-2p-3f-v3").limit_is_truncation


def test_ids_that_need_settings_have_them() -> None:
    """What text tells about the goal is not left out unasked; a lander's own bounds are not its environment's."""
    need("gymnasium", "minigrid", "Box2D")
    assert find_task("gymnasium:MiniGrid-DoorKey-5x5-v0").spec.obs_shape == (4 + 7 * 7 * 3,)
    with pytest.raises(ConfigError, match=r"--task\.drop mission"):
        _ = find_task("gymnasium:MiniGrid-Fetch-5x5-N2-v0").spec
    lander = find_task("gymnasium:LunarLander-v3")
    assert not lander.check_bounds and replace(lander, check_bounds=True) == Gymnasium(id="LunarLander-v3")


def test_known_modules_have_their_teams() -> None:
    need("pettingzoo", "mpe2")
    assert find_task("pettingzoo:mpe2.simple_spread_v3").cooperative
    crypto = find_task("pettingzoo:mpe2.simple_crypto_v3").spec
    assert dict(zip(crypto.agents, crypto.teams, strict=True)) == {
        "eve_0": "adversary",
        "bob_0": "good",
        "alice_0": "good",
    }
    world = find_task("pettingzoo:mpe2.simple_world_comm_v3").spec
    assert [a.endswith("adversary_" + a[-1]) for a in world.agents] == [t == "adversary" for t in world.teams]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("maze/statik", "unknown task 'maze/statik'. Did you mean 'maze/static'"),
        ("gymnasum:CartPole-v1", "no prefix 'gymnasum:'. Did you mean 'gymnasium'"),
        ("gymnasium:", "lacks the name"),
        ("pettingzoo:mpe2.simple_spred_v3", "no module 'simple_spred_v3' in 'mpe2'. Did you mean 'simple_spread_v3'"),
        ("pymarl:no_such_package.envs:World", "there is no module 'no_such_package'. Is its package installed"),
        ("host:no_such_file:make", "is found with --import no_such_file.py."),
        ("pymarl:host_toys:Coridor", "'host_toys' has no 'Coridor'. Did you mean 'Corridor'"),
        ("pymarl:host_toys", "expected package.module:name"),
        ("atari:MsPackman", "unknown Atari game 'MsPackman'. Did you mean 'ms_pacman'"),
        ("atari:MsPackmanNoFrameskip-v4", "unknown Atari game 'MsPackman'. Did you mean 'ms_pacman'"),
        ("atari:Pong-v5", "no such id. There are Pong-v0"),
        ("atari:ALE/PongNoFrameskip-v5", "or give the bare name, atari:Pong,"),
    ],
)
def test_errors_of_names(name: str, words: str) -> None:
    need("pettingzoo", "mpe2", "ale_py")
    with pytest.raises(ConfigError) as error:
        find_task(name)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gymnasium:CartPol-v1", "Did you mean 'CartPole-v"),
        ("host:host_toys:nothing", "returned int, which is neither"),
        ("pymarl:host_toys:cart_pole", "no MultiAgentEnv interface: get_env_info"),
        ("host:host_toys:broken", "host:host_toys:broken cannot be opened with task.kwargs {}: KeyError at "),
        ("pettingzoo:pettingzoo.classic", "neither parallel_env nor env"),
    ],
)
def test_errors_of_opening(name: str, words: str) -> None:
    need("pettingzoo")
    with pytest.raises(ConfigError) as error:
        _ = find_task(name).spec
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("atari:Pong", "ale_py", "atari"), ("pettingzoo:mpe2.simple_v3", "mpe2", "pettingzoo")],
)
def test_a_missing_extra_is_named(name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    import importlib

    real = importlib.import_module

    def absent(module: str, *rest: Any) -> Any:
        if module.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
        return real(module, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError) as error:
        find_task(name)
    assert f"pip install 'rookery[{extra}]'" in str(error.value)


@pytest.mark.parametrize(("package", "extra"), [("MuJoCo", "mujoco"), ("Box2D", "box2d"), ("pygame", "gymnasium")])
def test_the_extra_of_what_gymnasium_misses_is_named(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import gymnasium

    def absent(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled(f"{package} is not installed, run `pip install gymnasium[x]`")

    monkeypatch.setattr(gymnasium, "make", absent)
    with pytest.raises(ConfigError, match=rf"pip install 'rookery\[{extra}\]'"):
        Gymnasium().make()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match=r"task\.kwargs must be a JSON object"):
        Gymnasium(kwargs="[1]")
    with pytest.raises(ConfigError, match=r"cannot be opened with task\.kwargs .*gravitas"):
        _ = Gymnasium(kwargs='{"gravitas": 3}').spec
    with pytest.raises(ConfigError, match=r"task\.frame_skip must be at least 1"):
        Gymnasium(frame_skip=0)
    with pytest.raises(ConfigError, match=r"has no 'TimeLimits'\. Did you mean 'TimeLimit'"):
        _ = Gymnasium(wrappers=("gymnasium.wrappers:TimeLimits",)).spec
    with pytest.raises(ConfigError, match=r"task\.wrappers: gymnasium\.wrappers:TimeLimit cannot be opened with arg"):
        _ = Gymnasium(wrappers=("gymnasium.wrappers:TimeLimit",)).spec
    with pytest.raises(ConfigError, match=r"has no state\(\) of its own"):
        need("pettingzoo")
        _ = PettingZoo(module="pettingzoo.classic.tictactoe_v3", state=True).spec


def test_a_clipped_return_is_no_success() -> None:
    need("gymnasium")
    plain = Gymnasium()
    for task, unit in (
        (plain, "return (mean over agents)"),
        (replace(plain, clip_rewards=1.0), "return without clipping"),
    ):
        assert score_unit(RunConfig("dqn", "", PRESETS["dqn"], task)) == unit


def test_wrappers() -> None:
    task = Gymnasium(id="Pendulum-v1", wrappers=('gymnasium.wrappers:TimeLimit({"max_episode_steps": 7})',))
    assert task.spec.limit == 7
    stacked = replace(task, wrappers=(*task.wrappers, 'gymnasium.wrappers:FrameStackObservation({"stack_size": 2})'))
    assert stacked.spec.obs_shape == (2, 3)


@pytest.mark.parametrize("family", ["gymnasium", "pettingzoo", "atari", "pymarl", "host"])
def test_configs_are_json_both_ways(family: str) -> None:
    task = TASK_FAMILIES[family]()
    if "kwargs" in vars(task):
        task = replace(task, kwargs='{"b": 1, "a": [2, {"c": null}]}')
        assert task == replace(task, kwargs='{"a": [2, {"c": null}],   "b": 1}')
    assert configs.from_json(type(task), configs.to_json(task)) == task and hash(task) == hash(replace(task))


def test_the_command_line_takes_json() -> None:
    args = ["--kwargs", '{"N": 3}', "--wrappers", '["gymnasium.wrappers:TimeLimit", "a:B"]', "--drop", "x", "y"]
    task = tyro.cli(Gymnasium, args=args)
    assert task.kwargs == '{"N": 3}' and task.wrappers == ("gymnasium.wrappers:TimeLimit", "a:B")
    assert task.drop == ("x", "y")


def test_installed_names_are_names() -> None:
    need("pettingzoo", "mpe2", "ale_py", "minigrid")
    found = installed()
    assert "gymnasium:CartPole-v1" in found["gymnasium"] and "atari:MsPacman" in found["atari"]
    assert "gymnasium:MiniGrid-DoorKey-5x5-v0" in found["gymnasium"]
    assert "pettingzoo:mpe2.simple_tag_v3" in found["pettingzoo"]
    assert "pettingzoo:pettingzoo.classic.tictactoe_v3" in found["pettingzoo"]
    assert isinstance(find_task("atari:TicTacToe3d"), Atari) and len(found["atari"]) > 100


def test_importing_the_tasks_imports_no_environment() -> None:
    packages = "{'gymnasium', 'pettingzoo', 'ale_py', 'mpe2'}"
    code = f"import sys, rookery.tasks.host; print({packages} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_prefixes_are_families() -> None:
    assert {*TASK_PREFIXES} <= {*TASK_FAMILIES}
    assert all(callable(getattr(TASK_FAMILIES[p], "open", None)) for p in TASK_PREFIXES)
