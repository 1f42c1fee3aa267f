"""The engine of host environments: rollouts row by row, members, evaluation, states that go on bit for bit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import assert_same

sys.path.insert(0, str(Path(__file__).parent))
from envs import CartPole, Counter

import rookery.algorithms  # noqa: F401  (fills the registry)
from rookery.core.errors import ConfigError
from rookery.core.host import Rows, empty_rows
from rookery.core.registry import PRESETS
from rookery.core.types import ActionSpec, Collect
from rookery.training import checkpoint
from rookery.training.check import check
from rookery.training.config import Evaluation, RunConfig, Sweep, Workers
from rookery.training.host.engine import HostEngine
from rookery.training.host.packing import Packing
from rookery.training.host.program import playable
from rookery.training.host.worlds import mix
from rookery.training.reads import reads

EVALUATION = Evaluation(points=2, rows=2, episodes=3, final=3)


def config_of(preset: str = "ippo", task: Any = None, **changes: Any) -> RunConfig:
    algo = PRESETS[preset].small()
    if "collect" in changes:
        algo = replace(algo, collect=changes.pop("collect"))
    changes.setdefault("workers", Workers(count=0))
    return RunConfig(preset, "test", algo, task or Counter(), steps=400, evaluation=EVALUATION, **changes)


def begun(config: RunConfig) -> tuple[HostEngine, Any]:
    engine = HostEngine(config)
    engine.prepare(fresh=True)
    return engine, engine.init()


def test_blocks_hold_every_field_as_it_is() -> None:
    spec = replace(Counter().spec, agents=("a", "b"), state_shape=(5,), obs_dtype="uint8")
    packing = Packing(spec, 6)
    blocks, rng = packing.empty(4), np.random.default_rng(0)
    rows = packing.rows(blocks)
    for field in rows:
        field[...] = rng.integers(0, 2 if field.dtype == bool else 250, field.shape)
    step = jax.jit(lambda x: packing.step(x, members=3))(blocks)
    for name, field in rows._asdict().items():
        got = np.asarray(getattr(step, name))
        assert got.dtype == field.dtype
        np.testing.assert_array_equal(got, field.reshape(4, 3, 2, *field.shape[2:]))


def test_seeds_depend_on_member_environment_and_episode() -> None:
    seeds = mix(1, np.arange(20)[:, None, None], np.arange(30)[:, None], np.arange(40))
    assert len(np.unique(seeds)) > 0.999 * seeds.size and seeds.max() < 2**31
    assert mix(1, 2, 3, 4) == mix(1, np.asarray([2]), 3, 4)[0]


class Spy:
    """Notes every row and action of a stepper."""

    def __init__(self, stepper: Any) -> None:
        self._stepper, self.seen, self.actions, self.seeds = stepper, [], [], []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stepper, name)

    def reset(self, seeds: np.ndarray) -> None:
        self._stepper.reset(seeds)
        self.seeds.append(seeds.copy())
        self.seen.append(self._stepper.block.copy())

    def send(self, action: np.ndarray, seeds: np.ndarray) -> None:
        self.actions.append(action.copy())
        self.seeds.append(seeds.copy())
        self._stepper.send(action, seeds)

    def wait(self) -> Any:
        found = self._stepper.wait()
        self.seen.append(self._stepper.block.copy())
        return found


def spied(config: RunConfig) -> tuple[HostEngine, Spy]:
    engine = HostEngine(config)
    spy = Spy(engine._open(engine.program.packing))
    engine._open = lambda packing, count=None: spy  # pyright: ignore[reportAttributeAccessIssue]
    return engine, spy


@pytest.mark.parametrize("preset", ["ippo", "iql"])
def test_learning_is_given_what_the_environments_showed(preset: str) -> None:
    config = config_of(preset, seeds=(0, 1), collect=Collect(envs=2, length=8))
    engine, spy = spied(config)
    given: list[Any] = []
    engine.prepare(fresh=True)
    learn = engine._learn

    def look(leaves: Any, shared: Any, acting: Any, progress: Any, rows: Any) -> Any:
        given.append(jax.tree.map(np.array, (acting[0].tape, rows[0])))
        return learn(leaves, shared, acting, progress, rows)

    engine.__dict__["_learn"] = look
    state, _ = engine.chunk(engine.init(), 3)
    packing, length = engine.program.packing, engine.program.length
    for i, (tape, rows) in enumerate(given):
        np.testing.assert_array_equal(rows, np.stack(spy.seen[i * length : (i + 1) * length + 1]))
        actions = np.stack(spy.actions[i * length : (i + 1) * length])
        np.testing.assert_array_equal(tape.action.reshape(actions.shape), actions)
    seen = packing.rows(np.stack(spy.seen))
    # A row with `last` is followed by one with `first`, and by nothing else.
    np.testing.assert_array_equal(seen.first[1:], seen.last[:-1])
    assert seen.last.any()
    taken = (~seen.last[:-1]).sum(axis=0).reshape(2, 2).sum(axis=1)
    np.testing.assert_array_equal(np.asarray(state.members.steps), taken)
    # Every episode of every environment had a seed of its own.
    starts = np.stack(spy.seeds)[seen.first]
    assert len(np.unique(starts)) == len(starts)
    engine.close()


def test_metrics_are_those_of_the_episodes_that_ended() -> None:
    engine, spy = spied(config_of(collect=Collect(envs=4, length=8)))
    engine.prepare(fresh=True)
    _, report = engine.chunk(engine.init(), 5)
    rows = engine.program.packing.rows(np.stack(spy.seen))
    returns, lengths, wins = [], [], []
    for env in range(4):
        total = length = 0
        for t in range(1, len(spy.seen)):
            total, length = (0, 0) if rows.first[t, env] else (total + rows.reward[t, env, 0], length + 1)
            if rows.last[t, env]:
                returns.append(total)
                lengths.append(length)
                wins.append(rows.success[t, env])
    means = report.means
    assert float(means["train/return_mean"].weight[0]) == len(returns)
    for name, values in {"return_mean": returns, "episode_length": lengths, "success": wins}.items():
        np.testing.assert_allclose(np.asarray(means[f"train/{name}"].value)[0], np.mean(values), rtol=1e-5)


def test_members_learn_apart_from_each_other() -> None:
    """A member of a group does what it does alone, up to rounding."""
    collect = Collect(envs=4, length=8)
    together, state = begun(config_of(seeds=(0, 1), collect=collect))
    state, _ = together.chunk(state, 3)
    alone, lone = begun(config_of(seeds=(1,), collect=collect))
    lone, _ = alone.chunk(lone, 3)
    of_group, of_lone = state.members.worlds, lone.members.worlds
    np.testing.assert_array_equal(of_group.seed[1], of_lone.seed[0])
    np.testing.assert_array_equal(of_group.actions[1], of_lone.actions[0])
    for x, y in zip(jax.tree.leaves(state.members.algo), jax.tree.leaves(lone.members.algo), strict=True):
        np.testing.assert_allclose(np.asarray(x[1]), np.asarray(y[0]), atol=1e-4)


def test_swept_values_reach_their_members() -> None:
    config = config_of(sweep=(Sweep("algo.optimiser.lr", (0.0, 1e-2)),), collect=Collect(envs=4, length=8))
    engine, state = begun(config)
    before = jax.tree.map(np.array, engine.policies(state).last)
    state, _ = engine.chunk(state, 2)
    after = engine.policies(state).last
    moved = [
        np.abs(np.asarray(b) - a).reshape(2, -1).max(axis=1)
        for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)
    ]
    assert max(m[0] for m in moved) == 0.0 and max(m[1] for m in moved) > 0.0


@pytest.mark.parametrize("preset", ["ippo", "iql", "qmix"])
def test_a_saved_state_goes_on_bit_for_bit(preset: str, tmp_path: Path) -> None:
    config = config_of(preset, seeds=(3, 4))
    engine, state = begun(config)
    state, _ = engine.chunk(state, 3)
    checkpoint.save(tmp_path, state, chunk=1, steps=[0, 0], score=0.0, keep=1)
    state, want = engine.chunk(state, 3)
    again = HostEngine(config)
    found = checkpoint.load(tmp_path, again.shapes)
    assert found is not None
    again.prepare(fresh=False)
    other = again.restore(found.state)
    assert not again.notes
    other, got = again.chunk(other, 3)
    assert_same(got, want)
    assert_same(other, state)


def test_an_environment_that_cannot_be_repeated_begins_afresh(tmp_path: Path) -> None:
    config = config_of(task=Counter(random=True))
    engine, state = begun(config)
    state, _ = engine.chunk(state, 3)
    checkpoint.save(tmp_path, state, chunk=1, steps=[0], score=0.0, keep=1)
    again = HostEngine(config)
    found = checkpoint.load(tmp_path, again.shapes)
    assert found is not None
    again.restore(found.state)
    assert any("Not resumed bit for bit" in note for note in again.notes)
    assert "did not show the same observations" in again.record()["environments_resumed"]
    assert again._collector.halves[0].stepper.rows.first.all()


@pytest.mark.parametrize(("task", "said"), [(Counter(), "no steps were compared"), (Counter(random=True), "fresh")])
def test_nothing_is_claimed_of_rollouts_that_begin_with_a_reset(task: Counter, said: str, tmp_path: Path) -> None:
    """Their episodes are not repeated: the resets of the next rollout are compared, and nothing else."""
    config = config_of("iql", task, collect=Collect(envs=2, length=0, restart=True))
    engine, state = begun(config)
    state, _ = engine.chunk(state, 2)
    rows = Rows(*(field.copy() for field in engine._collector.halves[0].stepper.rows))
    checkpoint.save(tmp_path, state, chunk=1, steps=[0], score=0.0, keep=1)
    again = HostEngine(config)
    found = checkpoint.load(tmp_path, again.shapes)
    assert found is not None
    now = again.restore(found.state)
    resumed = again.record()["environments_resumed"]
    assert said in resumed and not resumed.startswith("bit for bit")
    assert any("Not resumed bit for bit" in note for note in again.notes) == task.random
    if not task.random:
        np.testing.assert_array_equal(again._collector.halves[0].stepper.rows.obs, rows.obs)
        assert_same(engine.chunk(state, 2)[0], again.chunk(now, 2)[0])


def test_an_episode_that_is_too_long_to_repeat_begins_afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rookery.training.host.worlds.LONGEST", 6)
    config = config_of(task=Counter(shortest=4, longest=12, limit=0), collect=Collect(envs=4, length=8))
    engine, state = begun(config)
    for _ in range(6):
        state, _ = engine.chunk(state, 1)
        long = state.members.worlds.count[0] > 6
        if long.any() and not long.all():
            break
    else:
        pytest.fail("no state with some long episodes: adapt the counter")
    rows = Rows(*(field.copy() for field in engine._collector.halves[0].stepper.rows))
    again = HostEngine(config)
    again.restore(jax.tree.map(jnp.asarray, state))
    assert f"fresh episodes in {long.sum()} of 4" in again.record()["environments_resumed"]
    now = again._collector.halves[0].stepper.rows
    assert now.first[long].all()
    np.testing.assert_array_equal(now.obs[~long], rows.obs[~long])


def test_restarts_begin_every_rollout_with_a_reset() -> None:
    config = config_of("iql", collect=Collect(envs=2, length=0, restart=True))
    engine, spy = spied(config)
    engine.prepare(fresh=True)
    state, report = engine.chunk(engine.init(), 4)
    assert state.members.worlds.actions.shape[2] == 0
    rows, length = engine.program.packing.rows(np.stack(spy.seen)), 9
    blocks = [slice(1 + i * (length + 1), 1 + (i + 1) * (length + 1)) for i in range(4)]
    assert all(rows.first[block][0].all() for block in blocks)
    first_episodes = sum(int(np.argmax(rows.last[block][:, env])) for block in blocks for env in range(2))
    assert int(np.asarray(report.steps)[0]) == first_episodes


def test_box_actions_are_clipped_for_the_environment_only() -> None:
    engine, spy = spied(config_of(task=Counter(kind="box")))
    engine.prepare(fresh=True)
    state = engine.init()
    state, _ = engine.chunk(state, 2)
    taken = np.stack(spy.actions)
    drawn = np.asarray(engine._tapes[0].action)
    assert np.abs(taken).max() == 1.0 and np.abs(drawn).max() > 1.0
    np.testing.assert_array_equal(taken[-engine.program.length :].reshape(drawn.shape), np.clip(drawn, -1, 1))
    # What has diverged must not end the run before the chunk can report it.
    broken = jax.tree.map(lambda x: x * np.nan if x.dtype == np.float32 else x, state.members.algo)
    _, report = engine.chunk(eqx.tree_at(lambda s: s.members.algo, state, broken), 1)
    assert np.isfinite(np.stack(spy.actions)).all()
    assert (np.asarray(report.broken_at) >= 0).any()


def test_an_illegal_choice_becomes_the_first_legal_one() -> None:
    legal = jnp.array([[True, True, False], [False, True, True], [False, False, True], [False, True, True]])
    found = playable(ActionSpec("discrete", (3,)), jnp.array([1, 0, 0, 2], jnp.int32), legal)
    assert found.dtype == jnp.int32 and found.tolist() == [1, 1, 2, 2]


def test_images_reach_the_device_as_bytes() -> None:
    config = config_of(task=Counter(obs_dtype="uint8"))
    engine, _ = begun(config)
    step = engine.program.packing.step(jnp.zeros(engine.program.packing.nbytes, jnp.uint8), members=1)
    assert step.obs.dtype == jnp.uint8


def test_evaluation_plays_whole_episodes_from_its_own_seeds() -> None:
    config = config_of(seeds=(0, 1))
    engine, state = begun(config)
    rows = Rows(*(field.copy() for field in engine._collector.halves[0].stepper.rows))
    state, episodes = engine.evaluate(state)
    for name, shape in {"returns": (2, 3, 1), "length": (2, 3), "success": (2, 3)}.items():
        assert episodes[name].shape == shape
    assert_same(tuple(rows), tuple(engine._collector.halves[0].stepper.rows))
    assert np.all((np.asarray(episodes["length"]) >= 3) & (np.asarray(episodes["length"]) <= 9))
    assert np.isfinite(np.asarray(state.members.best_score)).all()
    keys = jnp.stack([jax.random.PRNGKey(5), jax.random.PRNGKey(6)])
    played = engine.play(engine.policies(state), keys)
    assert_same(played["last"], played["best"])
    assert_same(played, engine.play(engine.policies(state), keys))


def test_the_return_of_an_evaluation_is_the_sum_of_rewards() -> None:
    config = config_of()
    engine, state = begun(config)
    packing = engine.player._packing
    spy = Spy(engine._open(packing))
    engine.player._stepper = spy
    _, episodes = engine.evaluate(state)
    rows = packing.rows(np.stack(spy.seen))
    for env in range(3):
        end = int(np.argmax(rows.last[:, env]))
        assert int(episodes["length"][0, env]) == end
        np.testing.assert_allclose(episodes["returns"][0, env], rows.reward[1 : end + 1, env].sum(axis=0), rtol=1e-6)


@pytest.mark.usefixtures("as_trained")
def test_a_store_is_not_copied() -> None:
    config = config_of("iql")
    algo = replace(config.algo, replay=replace(config.algo.replay, capacity=20_000))
    engine = HostEngine(replace(config, algo=algo))
    store = checkpoint.nbytes(algo.stores(engine.shapes.members.algo))
    used = engine._learn.memory_analysis()
    assert store > 5_000_000 and used.temp_size_in_bytes < store / 10


def test_every_entry_that_changes_a_run_is_seen_to_be_read() -> None:
    config = config_of()
    found = reads(config)
    assert {"task.limit", "task.kind", "algo.gamma", "algo.collect.length", "algo.optimiser.lr"} <= found
    assert "task.unused" not in found


def test_a_profile_has_all_pieces() -> None:
    engine = HostEngine(config_of())
    timings = {timing.name: timing.wall for timing in engine.profile()}
    assert list(timings) == ["whole", "environment", "policy", "update", "evaluation"]
    assert all(wall > 0 for wall in timings.values())
    assert timings["environment"] + timings["policy"] + timings["update"] <= timings["whole"] * 1.01


def test_shards_are_refused() -> None:
    config = config_of(collect=Collect(envs=4, length=8, shards=2))
    with pytest.raises(ConfigError, match=r"algo\.collect\.shards is 2"):
        check(config)


def test_cartpole_is_learned() -> None:
    algo = replace(PRESETS["ippo"], collect=Collect(envs=16, length=64))
    config = RunConfig("ippo", "test", algo, CartPole(), steps=60_000, evaluation=EVALUATION)
    engine, state = begun(config)
    state, before = engine.evaluate(state)
    state, report = engine.chunk(state, 40)
    state, after = engine.evaluate(state)
    assert float(before["returns"].mean()) < 60 and float(after["returns"].mean()) > 300
    assert float(report.means["check/first_ratio_error"].value[0]) < 1e-5
    engine.close()


def test_rows_of_zeros_are_as_the_spec_says() -> None:
    rows = empty_rows(Counter().spec, 2)
    assert rows.obs.shape == (2, 1, 3) and rows.state.shape == (2, 0)
