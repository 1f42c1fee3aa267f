"""Teams of a run, as a command line or a study file names them (NAME=PRESET, NAME=RUN), and cross-play."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.core.config import from_json
from rookery.core.errors import ConfigError, RunError
from rookery.core.registry import PRESETS, TASK_FAMILIES
from rookery.training.config import RunConfig

if TYPE_CHECKING:
    from rookery.algorithms.teams import Saved, Team, Teams
    from rookery.training.folder import RunFolder


def with_teams(config: RunConfig, given: Sequence[str], out: Path) -> RunConfig:
    """The config with an algorithm for each team: those given, and the config's own for all others."""
    from rookery.algorithms.teams import Team, Teams

    if not given:
        return config
    named: dict[str, Team] = {}
    for text in given:
        name, _, what = text.partition("=")
        if not name or not what or name in named:
            raise ConfigError(f"team: expected TEAM=PRESET or TEAM=RUN, once for each team; got '{text}'.")
        named[name] = Team(name, what, PRESETS[what]) if what in PRESETS else _frozen(name, what, out)
    known = dict.fromkeys(config.task.spec.teams)
    rest = {name: Team(name, config.preset, config.algo) for name in known if name not in named}
    teams = tuple((named | rest).values())
    # They play together, so they collect alike: as the command's own preset does, if any team learns by it.
    learning = [config.algo, *(t.algo for t in named.values() if not t.frozen)] if rest else [t.algo for t in teams]
    return replace(config, preset=",".join(map(str, teams)), algo=Teams(teams=teams, collect=learning[0].collect))


def cross_play(path: Path, other: Path, episodes: int) -> list[dict[str, Any]]:
    """Mean return of every team, for each team that the first run plays against the other run; member by member."""
    import numpy as np

    from rookery.algorithms.teams import members
    from rookery.training.state import member_infos
    from rookery.training.train import evaluate_fresh

    ours, theirs = (_config(p) for p in (path, other))
    spec = ours.task.spec
    if not spec.teams:
        raise ConfigError(f"{spec.name} has no teams, so nobody is against anybody.")
    pairs = min(len(member_infos(ours)), len(member_infos(theirs)))
    rows: list[dict[str, Any]] = []
    names = list(dict.fromkeys(spec.teams))
    for mine in names:
        means: list[Any] = []
        for member in range(pairs):
            algo = pairing({name: path if name == mine else other for name in names}, member)
            one = replace(ours, algo=algo, seeds=(member_infos(ours)[member].seed,), sweep=())
            means.append(evaluate_fresh(one, episodes)["returns"].to_numpy().mean(axis=0))
        every = np.mean(means, axis=0)
        found = {f"return of {name}": float(every[list(members(spec, name))].mean()) for name in names}
        rows.append({f"{path.name} plays": mine, **found, "members": pairs})
    return rows


def pairing(plays: Mapping[str, Path], member: int) -> Teams:
    """Each team played by the best policy of a run's member."""
    from rookery.algorithms.teams import Team, Teams
    from rookery.core.types import Collect

    configs = {name: _config(path) for name, path in plays.items()}
    teams = [Team(name, configs[name].preset, configs[name].algo, _saved(path, member)) for name, path in plays.items()]
    return Teams(teams=tuple(teams), collect=Collect(envs=1, length=1))


def teams_of(folder: RunFolder) -> tuple[str, ...]:
    """The team of each agent of a run's task; empty if it has no teams, or is not known here."""
    task = folder.config().get("task")
    return _teams_of(json.dumps(task))


@cache
def _teams_of(task: str) -> tuple[str, ...]:
    """The same, from the task's config as JSON."""
    found = json.loads(task)
    try:
        return from_json(TASK_FAMILIES[found["family"]], found).spec.teams
    except (ConfigError, KeyError, TypeError):
        return ()


def _config(path: Path) -> RunConfig:
    from rookery.training.folder import RunFolder

    return from_json(RunConfig, RunFolder(path).config())


def _frozen(name: str, what: str, out: Path) -> Team:
    """A team that the best policy of a run plays; RUN@2 is its member 2."""
    from rookery.algorithms.teams import Team
    from rookery.training.folder import resolve

    run, _, member = what.partition("@")
    if member and not member.isdigit():
        raise ConfigError(f"team: expected {name}=RUN@MEMBER with the number of a member, got '{what}'.")
    try:
        path = resolve(run, out).path
    except RunError as error:
        raise ConfigError(f"team {name}={what}: '{run}' is neither a preset nor a run. {error}") from error
    config = _config(path)
    return Team(name, config.preset, config.algo, _saved(path, int(member or 0)))


def _saved(path: Path, member: int) -> Saved:
    """Where a complete run keeps the policy of a member."""
    from rookery.algorithms.teams import Saved
    from rookery.training import checkpoint
    from rookery.training.folder import RunFolder
    from rookery.training.state import member_infos

    folder, config = RunFolder(path), _config(path)
    known = checkpoint.manifests(folder.policies) if folder.policies.exists() else []
    if not known:
        raise ConfigError(f"{path} is not complete, so it has no policy to play: rookery resume {path}")
    if config.sweep or member >= len(member_infos(config)):
        raise ConfigError(f"{path} has no member {member} that can be played: sweeps cannot, and members count from 0.")
    file = folder.policies / known[-1].name / checkpoint.STATE
    return Saved(str(file.resolve()), known[-1].sha256, member)
