"""Task names with a prefix, which open host environments, and what is installed of them."""

from __future__ import annotations

import importlib
import importlib.util
import io
import pkgutil
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from rookery.core.registry import TASK_PREFIXES
from rookery.tasks.host.atari_task import Atari, settings_of
from rookery.tasks.host.base import EXTRAS, import_module, load
from rookery.tasks.host.factory_task import Factory
from rookery.tasks.host.gymnasium_task import PLUGINS, Gymnasium
from rookery.tasks.host.pettingzoo_task import PettingZoo
from rookery.tasks.host.pymarl_task import PyMarl

KNOWN_IDS: Mapping[str, Mapping[str, Any]] = {
    "Foraging": {"limit_is_truncation": True},
    "rware": {"limit_is_truncation": True},
    # Nothing limits how high a lander flies (17 was seen), though 2.5 is declared.
    "LunarLander": {"check_bounds": False},
    # There the text tells which of several objects is the goal: a user must decide to go without.
    "MiniGrid-Fetch": {},
    "MiniGrid-GoTo": {},
    "MiniGrid-PutNear": {},
    "MiniGrid-": {"drop": ("mission",)},
    # The screen becomes an image of 60 x 80 pixels that stays uint8. Game variables (such as health) are left out:
    # joined with them, the image would be a vector of floats.
    "Vizdoom": {
        "kwargs": '{"frame_skip": 4}',
        "wrappers": (
            "rookery.tasks.host.vizdoom_wrappers:OwnSettings",
            'rookery.tasks.host.vizdoom_wrappers:SmallScreen({"shrink": 4})',
        ),
        "drop": ("gamevariables",),
    },
}
"""Beginning of a Gymnasium id -> settings that its environments need; the first match counts. lbforaging and rware
report time limits as terminations."""
KNOWN_MODULES: Mapping[str, Mapping[str, Any]] = {
    "mpe2.simple_adversary_v3": {"cooperative": False},
    "mpe2.simple_crypto_v3": {"cooperative": False, "teams": ("adversary", "good", "good")},
    "mpe2.simple_push_v3": {"cooperative": False},
    "mpe2.simple_tag_v3": {"cooperative": False},
    "mpe2.simple_world_comm_v3": {"cooperative": False, "teams": ("adversary",) * 4 + ("agent",) * 2},
    "pettingzoo.classic.tictactoe_v3": {"cooperative": False, "limit": 9},
    "pettingzoo.classic.connect_four_v3": {"cooperative": False, "limit": 42},
    "pettingzoo.classic.hanabi_v5": {"cooperative": True},
    "pettingzoo.classic.": {"cooperative": False},
    "pettingzoo.atari.entombed_cooperative": {"cooperative": True},
    "pettingzoo.atari.": {"cooperative": False},
    "magent2.environments.": {"cooperative": False},
}
"""Beginning of a PettingZoo module -> its settings; the first match counts."""
_OTHERS = ("ALE/", "VizdoomDoom", "VizdoomFreedoom")
"""Beginnings of Gymnasium ids that are not listed: Atari has a prefix of its own, maps of whole games need data."""
PACKAGES = ("mpe2", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl", "pettingzoo.atari")
MORE = ("magent2.environments", "gymnasium_robotics.envs.multiagent_mujoco")


def _gymnasium(rest: str) -> Gymnasium:
    import_module("gymnasium", f"gymnasium:{rest}")
    bare = rest.rpartition(":")[2]
    return Gymnasium(id=rest, **_known(bare, KNOWN_IDS))


def _pettingzoo(rest: str) -> PettingZoo:
    import_module("pettingzoo", f"pettingzoo:{rest}")
    import_module(rest, f"pettingzoo:{rest}")
    return PettingZoo(module=rest, **_known(rest, KNOWN_MODULES))


def _known(name: str, table: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The settings of the first beginning that fits."""
    return next((values for beginning, values in table.items() if name.startswith(beginning)), {})


def _atari(rest: str) -> Atari:
    return Atari(**settings_of(rest))


def _pymarl(rest: str) -> PyMarl:
    _load(rest, "pymarl")
    return PyMarl(path=rest)


def _factory(rest: str) -> Factory:
    _load(rest, "host")
    return Factory(path=rest)


def _load(rest: str, prefix: str) -> None:
    load(rest, f"{prefix}:{rest}")


TASK_PREFIXES.update(gymnasium=_gymnasium, pettingzoo=_pettingzoo, atari=_atari, pymarl=_pymarl, host=_factory)


def installed() -> dict[str, tuple[str, ...]]:
    """Prefix -> full names of the host environments that can be opened here. Imports what it lists."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return {"gymnasium": _registered(), "pettingzoo": _modules(), "atari": _games()}


def _exists(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _registered() -> tuple[str, ...]:
    if not _exists("gymnasium"):
        return ()
    import gymnasium

    for package in {*PLUGINS.values()} - {"ale_py"}:
        if _exists(package):
            importlib.import_module(package)
    needs = {"box2d": "Box2D", "mujoco": "mujoco", "classic_control": "gymnasium", "toy_text": "gymnasium"}
    found: list[str] = []
    for name, spec in gymnasium.registry.items():
        point = spec.entry_point if isinstance(spec.entry_point, str) else ""
        group = point.split(":")[0].split(".")[2] if point.startswith("gymnasium.envs.") else "gymnasium"
        if name.startswith(_OTHERS) or "NoFrameskip" in name or not _exists(needs.get(group, "gymnasium")):
            continue
        if "ale_py" not in point and group not in ("phys2d", "tabular"):
            found.append(f"gymnasium:{name}")
    return tuple(sorted(found))


def _modules() -> tuple[str, ...]:
    if not _exists("pettingzoo"):
        return ()
    found: list[str] = []
    for package in (*PACKAGES, *MORE):
        if not _exists(package):
            continue
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            name = f"{package}.{module.name}"
            if module.name.rpartition("_v")[2].isdigit() and _opens(name):
                found.append(f"pettingzoo:{name}")
    return tuple(found)


def _opens(module: str) -> bool:
    """Whether the module can be imported with what is installed, and is an environment."""
    try:
        found = vars(importlib.import_module(module))
    except Exception:  # a package of somebody else may raise anything
        return False
    return "parallel_env" in found or "env" in found


def _games() -> tuple[str, ...]:
    if not _exists("ale_py"):
        return ()
    names = importlib.import_module("ale_py.roms").get_all_rom_ids()
    return tuple(f"atari:{''.join(part.capitalize() for part in name.split('_'))}" for name in sorted(names))


def extras() -> dict[str, bool]:
    """Extra -> whether all its packages are installed."""
    found: dict[str, bool] = {}
    for package, extra in EXTRAS.items():
        found[extra] = found.get(extra, True) and _exists(package)
    return found
