"""One algorithm per team: each learns from its own agents alone; a saved policy plays as it did and stands still."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from small import assert_close, assert_same, differs, hasty_jit

import rookery.algorithms  # noqa: F401  (fills the registries)
from rookery.algorithms.teams import Saved, Team, Teams, members, of_agents, team_rollout, team_spec
from rookery.core.config import from_json, label, to_json
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.registry import PRESETS
from rookery.core.types import Clock, Collect, Rollout
from rookery.studies import plan, results
from rookery.studies.plan import Compare
from rookery.studies.read import open_runs
from rookery.studies.summarise import teams_table
from rookery.studies.teams import cross_play, pairing, with_teams
from rookery.tasks.compiled.mpe import Mpe
from rookery.training.check import check
from rookery.training.compiled.program import Program
from rookery.training.compiled.rollout import collect, open_worlds
from rookery.training.config import Evaluation, RunConfig
from rookery.training.train import train

TAG = Mpe(scenario="simple_tag", limit=3)
SPEC = TAG.spec
KEY = jax.random.PRNGKey(0)
CLOCK = Clock(jnp.int32(0), jnp.uint32(0), jnp.float32(100))
COLLECT = Collect(envs=2, length=8)
SMALL = {name: PRESETS[name].small() for name in ("maddpg", "qmix", "ippo")}


def teams_of(adversary: str, good: str) -> Teams:
    pair = {"adversary": adversary, "good": good}
    return Teams(teams=tuple(Team(name, preset, SMALL[preset]) for name, preset in pair.items()), collect=COLLECT)


def config_of(algo: Any, preset: str = "") -> RunConfig:
    evaluation = Evaluation(points=1, rows=1, episodes=4, final=4)
    return RunConfig(preset or "teams", "mpe/simple_tag", algo, TAG, 48, evaluation=evaluation)


@cache
def experience(algo: Teams) -> tuple[Any, Rollout]:
    def build(key: jax.Array) -> tuple[Any, Rollout]:
        state = algo.init(SPEC, key)
        worlds = open_worlds(algo, TAG, 2, key)
        return state, collect(algo, TAG, algo.policy(state), worlds, CLOCK, key)[1]

    return hasty_jit(build)(KEY)


def test_a_teams_config_is_json_both_ways() -> None:
    config = config_of(teams_of("qmix", "maddpg"))
    assert from_json(RunConfig, to_json(config)) == config
    assert label(config.preset, config.algo) == "teams"
    wrong: Any = to_json(config)
    wrong["algo"]["teams"][1]["algo"]["gama"] = 1
    with pytest.raises(ConfigError, match=r"algo\.teams\.1\.algo\.gama"):
        from_json(RunConfig, wrong)


def test_a_team_sees_its_own_agents() -> None:
    assert SPEC.teams == ("adversary",) * 3 + ("good",)
    assert members(SPEC, "good") == (3,)
    own = team_spec(SPEC, "adversary")
    assert own.n_agents == 3 and own.cooperative and own.obs_shape == SPEC.obs_shape
    assert own.obs_sizes == SPEC.obs_sizes[:3]
    _, rollout = experience(teams_of("ippo", "maddpg"))
    step = of_agents(rollout.step, (3,))
    np.testing.assert_array_equal(step.reward, rollout.step.reward[:, :, 3:])
    np.testing.assert_array_equal(step.obs, rollout.step.obs[:, :, 3:])
    np.testing.assert_array_equal(step.first, rollout.step.first)


@pytest.mark.parametrize("pair", [("qmix", "maddpg"), ("maddpg", "ippo")])
def test_each_team_learns_as_if_alone(pair: tuple[str, str]) -> None:
    """What its algorithm makes of its own share; what the other team gets is nothing to it, to the bit."""
    algo = teams_of(*pair)
    algo.check(SPEC)
    state, rollout = experience(algo)
    clock = replace(CLOCK, iteration=jnp.int32(1))
    update = hasty_jit(lambda s, r: algo.update(SPEC, s, r, clock, KEY))
    after, metrics = update(state, rollout)
    for team in algo.teams:
        every = 8 // algo.carry_interval(SPEC) if team.preset != "ippo" else 1
        own = team_rollout(SPEC, rollout, team.name, every)
        assert own.action.shape[2] == len(members(SPEC, team.name))
        alone = hasty_jit(
            lambda s, r, t=team: t.algo.update(team_spec(SPEC, t.name), s, r, clock, stream(KEY, t.name))
        )(state[team.name], own)
        assert_close(after[team.name], alone[0], 1e-6)
        assert {f"{team.name}/{name}" for name in alone[1]} <= set(metrics)
        assert differs(algo.policy(after)[team.name], algo.policy(state)[team.name])
    paid = replace(rollout, step=replace(rollout.step, reward=rollout.step.reward.at[:, :, 3].add(9.0)))
    assert_same(update(state, paid)[0]["adversary"], after["adversary"])
    assert differs(update(state, paid)[0]["good"], after["good"])


def test_impossible_teams_are_refused() -> None:
    both = teams_of("qmix", "maddpg")
    with pytest.raises(ConfigError, match="every team needs one"):
        replace(both, teams=both.teams[:1]).check(SPEC)
    with pytest.raises(ConfigError, match="no team 'prey'"):
        replace(both, teams=(both.teams[0], replace(both.teams[1], name="prey"))).check(SPEC)
    with pytest.raises(ConfigError, match="no teams"):
        both.check(replace(SPEC, teams=()))
    for text in ("adversary", "=iql", "adversary=nobody"):
        with pytest.raises(ConfigError, match=r"^team[: ]"):
            with_teams(config_of(SMALL["maddpg"], "maddpg"), [text], Path("nowhere"))


def test_presets_and_runs_by_name(tmp_path: Path) -> None:
    """The whole way: a run, a second one in which its policy plays one team, and cross-play between two runs."""
    first = train(config_of(SMALL["maddpg"], "maddpg"), tmp_path)
    base = config_of(SMALL["qmix"], "qmix")
    frozen = with_teams(base, [f"good={first.folder.path}"], tmp_path)
    assert isinstance(frozen.algo, Teams) and frozen.preset.startswith("good=maddpg@")
    check(frozen)
    assert from_json(RunConfig, to_json(frozen)) == frozen
    program = Program(frozen)
    state = hasty_jit(program.init)()
    prey = jax.tree.map(lambda x: x[0], first.policies.best)
    assert_same(jax.tree.map(lambda x: x[0], state.members.algo["good"]), prey)
    after, report = hasty_jit(partial(program.chunk, iterations=3))(state)
    assert_same(after.members.algo["good"], state.members.algo["good"])
    assert differs(after.members.algo["adversary"].learner.online, state.members.algo["adversary"].learner.online)
    assert any(name.startswith("adversary/") for name in report.means)
    assert not any(name.startswith("good/") for name in report.means)
    # The prey acts as in its own run, greedily, whatever the key.
    algo, played = frozen.algo, first.config.algo
    _, step = jax.vmap(TAG.reset)(jax.random.split(KEY, 5))
    policies = jax.tree.map(lambda x: x[0], program.policies(state).last)
    mixed = algo.act(SPEC, policies, algo.carry(SPEC, 5), step, CLOCK, jax.random.PRNGKey(7), greedy=False)[1]
    alone = played.act(SPEC, prey, played.carry(SPEC, 5), step, CLOCK, KEY, greedy=True)[1]
    np.testing.assert_array_equal(mixed[:, 3], alone[:, 3])
    # Against itself a run scores what it scores.
    rows = cross_play(first.folder.path, first.folder.path, 8)
    assert [row[f"{first.folder.path.name} plays"] for row in rows] == ["adversary", "good"]
    assert rows[0]["return of good"] == rows[1]["return of good"]
    other = Path(shutil.copytree(first.folder.path, tmp_path / "other"))
    plays = {"adversary": first.folder.path, "good": other}
    assert {team.name: Path(team.saved.path).parents[2] for team in pairing(plays, 0).teams} == plays
    # Reports have a row for each team.
    table = teams_table(results.collect(open_runs([first.folder]), Compare(resamples=50), {}))
    final = first.final().filter(pl.col("which") == "best")["returns"].to_numpy().mean(axis=0)
    assert [row[2] for row in table.rows] == ["adversary", "good"]
    np.testing.assert_allclose([row[3] for row in table.rows], [final[:3].mean(), final[3]], rtol=1e-5)
    # A study file names teams as the command line does.
    file = tmp_path / "study.toml"
    entry = 'preset = "maddpg", vary = { "gumbel.kind" = ["st", "gst"] }'
    text = 'tasks = [{ name = "mpe/simple_tag", limit = 3 }]\nalgorithms = [{ %s, teams = { good = "%s" } }]\n'
    file.write_text(text % (entry, first.folder.name))
    study = plan.load(file, tmp_path)
    assert [run.label.split(",")[1] for run in study.runs] == ["adversary=maddpg", "adversary=maddpg gumbel.kind=gst"]
    for run in study.runs:
        assert isinstance(run.config.algo, Teams) and run.config.algo.teams[0].saved == frozen.algo.teams[0].saved
    file.write_text(
        text % (entry.replace("vary", "sweep").replace('"gumbel.kind" = ["st", "gst"]', "gamma = [0.9]"), "vdn")
    )
    with pytest.raises(ConfigError, match="cannot be swept"):
        plan.load(file, tmp_path)


def test_a_changed_or_foreign_policy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(b"not a policy")
    with pytest.raises(ConfigError, match="not the one"):
        Saved(str(file), "0" * 64).load({})
    with pytest.raises(ConfigError, match="cannot be read"):
        Saved(str(tmp_path / "absent"), "0" * 64).load({})
    from safetensors.numpy import save_file

    save_file({".best['w']": np.zeros((1, 3), np.float32)}, file)
    saved = Saved(str(file), hashlib.sha256(file.read_bytes()).hexdigest())
    assert saved.load({"w": jnp.zeros(3)})["w"].shape == (3,)
    with pytest.raises(ConfigError, match="another task or algorithm"):
        saved.load({"w": jnp.zeros(4)})
