"""Endings, absences, masks and violations in rows, with environments that do one thing each."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="gymnasium is missing: pip install 'rookery[gymnasium]'")
from gymnasium.spaces import Box, Discrete, Tuple
from host_play import Player, need
from host_toys import Comers, Corridor, Script, ok

from rookery.core.errors import TrainingError
from rookery.core.host import Rows, empty_rows
from rookery.tasks.host.base import LoopEnvs
from rookery.tasks.host.factory_task import Factory
from rookery.tasks.host.gymnasium_task import Gymnasium
from rookery.tasks.host.pettingzoo_task import ParallelPlayer, PettingZoo
from rookery.tasks.host.pymarl_task import PyMarl


def opened(env: Any, config: Any = None, **values: Any) -> tuple[LoopEnvs, Rows]:
    """One environment after its reset, and its rows."""
    envs = LoopEnvs([(config or Gymnasium(**values)).adapt(env, "toy")])
    rows = empty_rows(envs.spec, 1)
    for field in rows:
        field.fill(1)  # a reset must write every field
    envs.reset(np.array([11]), rows)
    return envs, rows


def move(envs: LoopEnvs, rows: Rows, action: Any = 0, seed: int = 12) -> Rows:
    """The next row."""
    shape = (1, envs.spec.n_agents, *envs.spec.action.shape)
    envs.step(np.full(shape, action, envs.spec.action.dtype), np.array([seed]), rows)
    return Rows(*(field[0].copy() for field in rows))


# --- one agent


def test_rows_of_two_episodes() -> None:
    env = Script([ok(reward=2.0), ok((0.5, 0.5, 0.5), -1.0, over=True)])
    envs, rows = opened(env)
    assert rows.first[0] and not rows.last[0] and not rows.obs.any() and rows.discount.all() and rows.alive.all()
    row = move(envs, rows, 2)
    assert row.obs[0].tolist() == np.float32([0.1, 0.2, 0.3]).tolist() and row.reward[0] == 2.0
    assert not row.first and not row.last and row.discount[0] == 1
    row = move(envs, rows, 1)
    assert row.last and row.discount[0] == 0 and row.reward[0] == -1.0 and row.obs[0, 0] == 0.5
    row = move(envs, rows, 1, seed=99)
    assert row.first and not row.last and row.reward[0] == 0 and row.discount[0] == 1 and not row.obs.any()
    assert env.taken == [2, 1] and env.seeds == [11, 99], "the action at a last row is ignored"


def test_truncation_keeps_the_discount() -> None:
    envs, rows = opened(Script([ok(cut=True)]))
    row = move(envs, rows)
    assert row.last and row.discount[0] == 1
    envs, rows = opened(Script([ok(over=True, cut=True)]))
    assert move(envs, rows).discount[0] == 0, "terminated at the limit is terminated"
    envs, rows = opened(Script([ok(over=True)]), limit=1, limit_is_truncation=True)
    assert move(envs, rows).discount[0] == 1


def test_our_limit_cuts() -> None:
    envs, rows = opened(Script([ok(), ok(), ok()]), limit=2)
    assert envs.spec.limit == 2
    assert not move(envs, rows).last
    row = move(envs, rows)
    assert row.last and row.discount[0] == 1


def test_frame_skip_sums_rewards_and_stops_at_the_end() -> None:
    env = Script([ok(reward=1.0), ok(reward=2.0), ok(reward=4.0, over=True)])
    envs, rows = opened(env, frame_skip=2)
    assert move(envs, rows, 1).reward[0] == 3.0
    row = move(envs, rows, 2)
    assert row.reward[0] == 4.0 and row.last and env.taken == [1, 1, 2]


def test_sticky_actions_repeat_by_seed() -> None:
    def taken(seed: int) -> list[int]:
        env = Script([ok()] * 50)
        envs, rows = opened(env, sticky=0.5)
        rows.last[...] = True
        move(envs, rows, seed=seed)
        for t in range(40):
            move(envs, rows, t % 3)
        return env.taken

    first, again, other = taken(1), taken(1), taken(2)
    chosen = [t % 3 for t in range(40)]
    assert first == again != other and first != chosen
    assert all(a in (c, before) for a, c, before in zip(first[1:], chosen[1:], first, strict=False))


def test_clipped_rewards_keep_the_score() -> None:
    envs, rows = opened(Script([ok(reward=5.0), ok(reward=-3.0, over=True)]), clip_rewards=1.0)
    assert envs.spec.score == "success"
    assert move(envs, rows).reward[0] == 1.0
    row = move(envs, rows)
    assert row.reward[0] == -1.0 and row.success == 2.0


def test_masks_come_and_go() -> None:
    steps = [ok(action_mask=np.int8([0, 1, 0])), ok(), ok(action_mask=np.int8([0, 0, 0]))]
    envs, rows = opened(Script(steps))
    assert move(envs, rows).legal.tolist() == [[False, True, False]]
    assert move(envs, rows).legal.all()
    with pytest.raises(TrainingError, match="toy: agent 'agent': action_mask allows no action"):
        move(envs, rows)
    envs, rows = opened(Script([ok(action_mask=np.zeros(3), over=True)]))
    assert move(envs, rows).legal.tolist() == [[True, False, False]], "nothing is legal when the game is over"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (ok((0.0, np.nan, 0.0)), r"observation\[1\] is np.float32\(nan\), which is not finite"),
        (ok((0.0, 0.0, -np.inf)), r"observation\[2\] is np.float32\(-inf\), which is not finite"),
        (ok((0.0, 1.5, 0.0)), r"observation\[1\] is np.float32\(1.5\), outside its declared bounds .*-1.0.* to .*1.0"),
        (ok(reward=np.nan), r"reward is np.float32\(nan\), which is not finite"),
        (ok(reward="much"), "reward must be a number: 'much'"),
        (ok((0.0, 0.0)), r"observation has shape \(2,\), not \(3,\)"),
        (ok("text"), "observation has dtype <U4, not float32"),
    ],
)
def test_violations(step: Any, words: str) -> None:
    envs, rows = opened(Script([step]))
    with pytest.raises(TrainingError, match=r"^toy: agent '\w+': " + words):
        move(envs, rows)


def test_bounds_can_be_ignored_but_not_nan() -> None:
    script = Script([ok((9.0, 0.0, 0.0)), ok((np.nan, 0.0, 0.0))])
    envs = LoopEnvs([Gymnasium(check_bounds=False).adapt(script, "toy")])
    rows = empty_rows(envs.spec, 1)
    envs.reset(np.array([0]), rows)
    assert move(envs, rows).obs[0, 0] == 9
    with pytest.raises(TrainingError, match="not finite"):
        move(envs, rows)


def pair_of(steps: list[Any]) -> tuple[LoopEnvs, Rows]:
    """An environment of two agents that plays back such steps."""
    env = Script(
        [(obs or (np.zeros(1), np.zeros(1)), [1.0, 2.0], *rest, {}) for obs, *rest in steps],
        Tuple((Box(0, 1, (1,), np.float64),) * 2),
        Tuple((Discrete(2),) * 2),
    )
    env.reset = lambda **_: ((np.zeros(1), np.zeros(1)), {})  # pyright: ignore[reportAttributeAccessIssue]
    return opened(env)


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_endings_may_be_told_for_each_of_several_agents(kind: Any) -> None:
    no, first, both = kind([False, False]), kind([True, False]), kind([True, True])
    envs, rows = pair_of([(None, no, no), (None, first, no), (None, no, no), (None, no, kind([False, True]))])
    assert not move(envs, rows).last
    row = move(envs, rows)
    assert not row.last and row.alive.tolist() == [False, True] and row.discount.tolist() == [0, 1]
    assert row.legal.tolist() == [[True, False], [True, True]], "who is gone has one legal action"
    row = move(envs, rows)
    assert not row.last and row.alive.tolist() == [False, True] and row.discount.tolist() == [0, 1]
    row = move(envs, rows)
    assert row.last and row.discount.tolist() == [0, 1], "the first died, the second was cut"
    assert move(envs, rows).first and rows.alive.all()
    envs, rows = pair_of([(None, both, no)])
    row = move(envs, rows)
    assert row.last and not row.discount.any()


def test_an_engine_may_change_its_buffers() -> None:
    envs, rows = opened(Script([ok(reward=float(t)) for t in range(40)]))
    for t in range(30):
        rows = Rows(*(field.copy() for field in rows))
        assert move(envs, rows).reward[0] == t


def test_tuple_spaces_are_agents() -> None:
    env = Script(
        action_space=Tuple((Discrete(2), Discrete(3))), observation_space=Tuple((Box(0, 1, (1,)), Discrete(2)))
    )
    env.reset = lambda **_: ((np.float32([0.5]), 1), {})  # pyright: ignore[reportAttributeAccessIssue]
    env.steps = [((np.float32([0.25]), 0), [1.0, 2.0], False, False, {"action_mask": ([0, 1], [1, 0, 1])})]
    envs, rows = opened(env)
    assert rows.obs[0].tolist() == [[0.5, 0.0], [0.0, 1.0]] and envs.spec.obs_sizes == (1, 2)
    row = move(envs, rows)
    assert row.reward.tolist() == [1, 2] and row.obs.tolist() == [[0.25, 0.0], [1.0, 0.0]]
    assert row.legal.tolist() == [[False, True, False], [True, False, True]]


# --- agents that come and go


def comers(script: list[tuple[str, str, str]], start: str = "red_0 red_1 blue_0", **values: Any) -> Any:
    need("pettingzoo")
    config, env = PettingZoo(**values), Comers(script, start)
    envs = LoopEnvs([ParallelPlayer(config, env, "toy")])
    rows = empty_rows(envs.spec, 1)
    envs.reset(np.array([1]), rows)
    return env, envs, rows


def test_a_death_a_departure_and_a_mixed_end() -> None:
    env, envs, rows = comers([("red_1 blue_0", "red_0", ""), ("red_1 blue_0", "", ""), ("", "red_1", "blue_0")])
    row = move(envs, rows)
    assert row.alive.tolist() == [False, True, True] and row.discount.tolist() == [0, 1, 1]
    assert row.obs[:, 0].tolist() == [2, 2, 2] and row.reward.tolist() == [1, 1, 1], "a last observation and reward"
    assert row.legal[0].tolist() == [True, False, False, False, False] and not row.last
    row = move(envs, rows)
    assert row.obs[:, 0].tolist() == [0, 3, 3] and row.reward.tolist() == [0, 2, 2]
    assert row.discount.tolist() == [0, 1, 1] and not row.last
    row = move(envs, rows)
    assert row.last and row.discount.tolist() == [0, 0, 1] and row.reward.tolist() == [0, 3, 3]
    assert row.alive.tolist() == [False, True, True] and row.obs[:, 0].tolist() == [0, 4, 4]
    assert env.asked == [{"red_0", "red_1", "blue_0"}, {"red_1", "blue_0"}, {"red_1", "blue_0"}]
    row = move(envs, rows)
    assert row.first and row.alive.all() and row.discount.all() and row.legal[0].all() and row.obs[0, 0] == 1


def test_an_agent_joins() -> None:
    _, envs, rows = comers([("red_0 blue_0", "", ""), ("blue_0", "", "red_0"), ("", "", "blue_0")], start="red_0")
    assert rows.alive[0].tolist() == [True, False, False] and rows.discount[0].tolist() == [1, 0, 0]
    assert rows.obs[0, :, 0].tolist() == [1, 0, 0]
    row = move(envs, rows)
    assert row.alive.tolist() == [True, False, True] and row.discount.tolist() == [1, 0, 1]
    assert row.legal[2].tolist() == [True, True, False, False, False] and row.obs[2].tolist() == [2, 2, 0, 0]
    row = move(envs, rows)
    assert row.alive.tolist() == [False, False, True] and row.discount.tolist() == [0, 0, 1] and not row.last
    row = move(envs, rows)
    assert row.last and row.discount.tolist() == [0, 0, 1], "the last one was cut"


def test_a_limit_of_ours_cuts_everybody() -> None:
    _, envs, rows = comers([("red_0 red_1", "blue_0", ""), ("red_0 red_1", "", "")], limit=2)
    assert not move(envs, rows).last
    row = move(envs, rows)
    assert row.last and row.discount.tolist() == [1, 1, 0]


def test_teams() -> None:
    assert comers([])[1].spec.teams == ()
    assert comers([], cooperative=False)[1].spec.teams == ("red", "red", "blue")
    assert comers([], cooperative=False, teams=("x", "y", "y"))[1].spec.teams == ("x", "y", "y")


def test_an_unknown_agent_is_named() -> None:
    _, envs, rows = comers([("red_0 red_1 green_7", "", "")])
    with pytest.raises(TrainingError, match="toy: agent 'green_7': agent is not in possible_agents"):
        move(envs, rows)


# --- PyMARL's interface


def test_pymarl_rows() -> None:
    task = PyMarl(path="host_toys:Corridor", noop_is_dead=True, score="success")
    spec = task.spec
    assert spec.state_shape == (3,) and spec.limit == 6 and spec.action.sizes == (3,) and spec.score == "success"
    player, raw = Player(task), Corridor()
    raw.seed(player.seed)
    raw.reset()
    wins = cuts = 0
    for action, row in player.walk(200):
        if action is None:
            raw.seed(player.seed)
            raw.reset()
            assert row.first
        else:
            reward, over, info = raw.step(action.tolist())
            assert row.last == over and (row.reward == reward).all() and row.success == (over and info["battle_won"])
            if over:
                assert (row.discount == row.alive * bool(info.get("episode_limit"))).all()
            wins, cuts = wins + bool(reward), cuts + ("episode_limit" in info)
        np.testing.assert_array_equal(row.obs, raw.get_obs())
        np.testing.assert_array_equal(row.state, raw.get_state())
        np.testing.assert_array_equal(row.legal, np.array(raw.get_avail_actions(), bool))
        np.testing.assert_array_equal(row.alive, raw.place < raw.length)
    assert wins and cuts


def test_pymarl_truncation_counts_without_info() -> None:
    corridor = Corridor()
    corridor.step = lambda actions: (corridor.get_obs(), 0.0, False, True, None)  # pyright: ignore[reportAttributeAccessIssue]
    envs, rows = opened(corridor, PyMarl())
    row = move(envs, rows, 1)
    assert row.last and row.discount.all()


def test_pymarl_around_lbforaging() -> None:
    need("lbforaging")
    from host_toys import Foragers

    player, raw = Player(PyMarl(path="host_toys:Foragers")), Foragers()
    raw.reset(seed=player.seed)
    for action, row in player.walk(120):
        if action is None:
            raw.reset(seed=player.seed)
        else:
            _, reward, over, _, _ = raw.step(action.tolist())
            assert (row.reward == np.float32(reward)).all() and row.last == over
        np.testing.assert_array_equal(row.obs, raw.get_obs())
        np.testing.assert_array_equal(row.state, raw.get_state())


# --- factories


@pytest.mark.parametrize(
    ("name", "kwargs", "agents", "limit"),
    [
        ("cart_pole", '{"gravity": 20}', 1, 500),
        ("tic_tac_toe", "{}", 2, 0),
        ("Corridor", '{"episode_limit": 9}', 2, 9),
        ("Comers", '{"script": [["red_0", "red_1 blue_0", ""], ["", "", "red_0"]]}', 3, 0),
    ],
)
def test_factory_finds_the_interface(name: str, kwargs: str, agents: int, limit: int) -> None:
    if name == "tic_tac_toe":
        need("pettingzoo", "pygame")
    task = Factory(path=f"host_toys:{name}", kwargs=kwargs)
    assert task.spec.n_agents == agents and task.spec.limit == limit
    assert sum(row.last for _, row in Player(task).walk(60)) >= 1


def test_an_aec_environment_is_converted_where_that_is_safe() -> None:
    need("pettingzoo", "pygame", "mpe2")
    aec, parallel = (Player(Factory(path=f"mpe2.simple_tag_v3:{maker}")) for maker in ("env", "parallel_env"))
    assert aec.spec.limit == parallel.spec.limit == 25
    for (_, a), (_, b) in zip(aec.walk(60), parallel.walk(60), strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_overhead_of_the_loop() -> None:
    """Without the type checks of the tests: at most 8 microseconds of our own per environment step."""
    code = """
import time, numpy as np, gymnasium
from rookery.core.host import empty_rows
from rookery.tasks.host.base import LoopEnvs
from rookery.tasks.host.gymnasium_task import Gymnasium
class Null(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    seen = np.zeros(4, np.float32)
    def reset(self, seed=None, options=None): return self.seen, {}
    def step(self, action): return self.seen, 1.0, False, False, {}
envs = LoopEnvs([Gymnasium().adapt(Null(), "null") for _ in range(32)])
rows, seeds, action = empty_rows(envs.spec, 32), np.arange(32), np.zeros((32, 1), np.int32)
envs.reset(seeds, rows)
def once():
    start = time.perf_counter()
    for _ in range(100): envs.step(action, seeds, rows)
    return (time.perf_counter() - start) / 3200
print(min(once() for _ in range(10)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 8e-6
