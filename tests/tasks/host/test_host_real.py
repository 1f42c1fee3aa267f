"""Environments that others wrote: 200 random legal steps through rows, beside the raw environment stepped directly,
and two rollouts that are learned from."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from host_play import Player, check_first, need

import rookery.algorithms  # noqa: F401  (fills the registry)
from rookery.core.errors import ConfigError, TrainingError
from rookery.core.host import HostTask, Rows, empty_rows
from rookery.core.registry import PRESETS, find_task
from rookery.core.types import Collect
from rookery.tasks.host.atari_task import Atari, rom
from rookery.training.compiled import compiler
from rookery.training.config import RunConfig, Workers
from rookery.training.host.engine import HostEngine

STEPS = 200
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def task_of(name: str, **values: Any) -> Any:
    task = replace(find_task(name), **values)
    assert isinstance(task, HostTask)
    return task


# --- Gymnasium, one agent

GYMNASIUM: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "CartPole-v1": ((), {}, {}),
    "LunarLander-v3": (("Box2D",), {}, {}),
    "LunarLander-v3 continuous": (("Box2D",), {"kwargs": '{"continuous": true}'}, {"continuous": True}),
    "Pendulum-v1": ((), {"limit": 60}, {"max_episode_steps": 60}),
    "MiniGrid-DoorKey-5x5-v0": (("minigrid",), {}, {"max_steps": 90}),
    "FrozenLake-v1": ((), {}, {}),
    "Blackjack-v1": ((), {}, {}),
    "Taxi-v4": ((), {}, {}),
    "MountainCarContinuous-v0": ((), {"limit": 50}, {"max_episode_steps": 50}),
}


@pytest.mark.parametrize("case", GYMNASIUM)
def test_gymnasium(case: str) -> None:
    packages, values, kwargs = GYMNASIUM[case]
    name = case.split()[0]
    need("gymnasium", *packages)
    import gymnasium
    from gymnasium.spaces import Box, Dict, Discrete, flatten

    if "max_steps" in kwargs:
        values = values | {"kwargs": '{"max_steps": 90}'}
    player = Player(task_of(f"gymnasium:{name}", **values))
    raw = gymnasium.make(name, **kwargs)
    space = raw.observation_space
    kept = Dict({k: v for k, v in space.items() if k != "mission"}) if isinstance(space, Dict) else space
    discrete = isinstance(raw.action_space, Discrete)

    def flat(obs: Any) -> np.ndarray:
        if isinstance(kept, Dict):
            obs = {k: v for k, v in obs.items() if k != "mission"}
        return obs if isinstance(kept, Box) else flatten(kept, obs)

    obs, _ = raw.reset(seed=player.seed)
    np.testing.assert_array_equal(player.rows.obs[0, 0], np.float32(flat(obs)))
    endings = 0
    for action, row in player.walk(STEPS):
        if action is None:
            obs, _ = raw.reset(seed=player.seed)
            check_first(row)
        else:
            obs, reward, terminated, truncated, info = raw.step(int(action[0]) if discrete else action[0])
            assert row.reward[0] == np.float32(reward)
            assert row.last == (terminated or truncated)
            assert row.discount[0] == (not terminated)
            if "action_mask" in info:
                np.testing.assert_array_equal(row.legal[0], info["action_mask"].astype(bool))
            endings += row.last
        np.testing.assert_array_equal(row.obs[0], np.float32(flat(obs)))
    raw.close()
    assert endings or name in ("LunarLander-v3", "Taxi-v4")


def fly(task: Any) -> float:
    """The greatest height of a lander that is held upright with its engine on."""
    envs, rows, high = task.open(1), empty_rows(task.spec, 1), 0.0
    envs.reset(np.array([0]), rows)
    while not rows.last[0]:
        tilt = rows.obs[0, 0, 4]
        action = 2 if abs(tilt) < 0.2 else 1 if tilt < 0 else 3
        envs.step(np.array([[action]], np.int32), np.array([0]), rows)
        high = max(high, float(rows.obs[0, 0, 1]))
    envs.close()
    return high


def test_a_lander_may_leave_its_bounds() -> None:
    """Its environment declares 2.5; asked to, the check says so."""
    need("gymnasium", "Box2D")
    assert fly(task_of("gymnasium:LunarLander-v3")) > 2.5
    with pytest.raises(TrainingError, match=r"LunarLander-v3: agent 'agent': observation\[1\] is .* outside its"):
        fly(task_of("gymnasium:LunarLander-v3", check_bounds=True))


# --- Gymnasium with Tuple spaces: several agents


@pytest.mark.parametrize(("name", "package"), [("Foraging-8x8-2p-3f-v3", "lbforaging"), ("rware-tiny-2ag-v2", "rware")])
def test_several_agents(name: str, package: str) -> None:
    need("gymnasium", package)
    import gymnasium

    kwargs = '{"max_steps": 70}' if package == "rware" else "{}"
    task = task_of(f"gymnasium:{name}", kwargs=kwargs)
    player = Player(task)
    assert task.spec.n_agents == 2 and task.spec.limit == (70 if package == "rware" else 50)
    raw = gymnasium.make(name, **({"max_steps": 70} if package == "rware" else {}))
    obs, _ = raw.reset(seed=player.seed)
    np.testing.assert_array_equal(player.rows.obs[0], np.float32(obs))
    t, endings = 0, 0
    for action, row in player.walk(STEPS):
        if action is None:
            obs, _ = raw.reset(seed=player.seed)
            check_first(row)
            t = 0
        else:
            obs, reward, terminated, truncated, _ = raw.step(tuple(int(a) for a in action))
            t += 1
            np.testing.assert_array_equal(row.reward, np.float32(reward))
            assert row.last == (terminated or truncated)
            assert (row.discount == (t == task.spec.limit or not terminated)).all(), "a time limit is a truncation"
            endings += row.last
        np.testing.assert_array_equal(row.obs, np.float32(obs))
    assert endings


def test_vizdoom_trains_on_small_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("gymnasium", "vizdoom")
    monkeypatch.chdir(tmp_path)
    from dataclasses import replace

    import gymnasium

    from rookery.nets.encoder import Encoder
    from rookery.training.check import check
    from rookery.training.config import Evaluation, RunConfig, Workers
    from rookery.training.engine import open_engine

    task = task_of("gymnasium:VizdoomHealthGathering-v1")
    assert task.spec.obs_shape == (60, 80, 3) and task.spec.obs_dtype == "uint8" and task.spec.action.sizes == (4,)
    player = Player(task)
    assert not (tmp_path / "_vizdoom.ini").exists()  # the engine is running, and its settings are elsewhere
    raw = gymnasium.make("VizdoomHealthGathering-v1", frame_skip=4)
    seen = raw.reset(seed=player.seed)[0]["screen"]
    for action, row in player.walk(5):
        seen = raw.step(int(action[0]))[0]["screen"]
        np.testing.assert_allclose(row.obs[0, 0, 0], seen[:4, :4].mean(axis=(0, 1)), atol=1)
    raw.close()
    small = PRESETS["ppo"].small()
    net = replace(small.actor, layers=0, encoder=Encoder("nature", width=8))
    algo = replace(small, actor=net, critic=net, collect=replace(small.collect, envs=2, length=8))
    config = RunConfig(
        "ppo", task.spec.name, algo, task, 32, workers=Workers(count=0), evaluation=Evaluation(episodes=1)
    )
    check(config)
    engine = open_engine(config)
    state, report = engine.chunk(engine.init(), 2)
    engine.close()
    assert int(state.members.steps[0]) == 32 and float(report.means["grad_norm_actor"].total[0]) > 0


# --- PettingZoo, parallel

MPE = (
    "collect_treasure_v1",
    "simple_adversary_v3",
    "simple_crypto_v3",
    "simple_formation_v1",
    "simple_line_v1",
    "simple_push_v3",
    "simple_reference_v3",
    "simple_speaker_listener_v4",
    "simple_spread_v3",
    "simple_tag_v3",
    "simple_v3",
    "simple_world_comm_v3",
)
PARALLEL: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    **{f"mpe2.{name}": (("mpe2",), {}) for name in MPE},
    "mpe2.simple_spread_v3 continuous": (("mpe2",), {"continuous_actions": True, "N": 4}),
    "pettingzoo.butterfly.knights_archers_zombies_v11": ((), {"spawn_delay": 4, "max_cycles": 150}),
    "pettingzoo.sisl.pursuit_v5": ((), {"max_cycles": 80}),
    "pettingzoo.sisl.multiwalker_v9": (("Box2D",), {}),
    "pettingzoo.classic.rps_v2": ((), {}),
    "magent2.environments.battle_v4": (("magent2",), {"map_size": 30, "max_cycles": 190}),
    "magent2.environments.gather_v5": (("magent2",), {"max_cycles": 12}),
    "gymnasium_robotics.envs.multiagent_mujoco.mamujoco_v1": (
        ("gymnasium_robotics", "mujoco"),
        {"scenario": "Ant", "agent_conf": "2x4"},
    ),
}
DYING = ("knights_archers_zombies", "battle")
ATTACKS = range(13, 21)
"""Actions of battle: chance alone kills nobody."""
QUICK = {"magent2.environments.gather_v5": 30}


@pytest.mark.parametrize("case", PARALLEL)
def test_parallel(case: str) -> None:
    packages, kwargs = PARALLEL[case]
    name = case.split()[0]
    need("pettingzoo", "pygame", *packages)
    task = task_of(f"pettingzoo:{name}", kwargs=json.dumps(kwargs))
    player = Player(task, prefer=ATTACKS if "battle" in name else range(0))
    raw = importlib.import_module(name).parallel_env(**kwargs)
    seen, _ = raw.reset(seed=player.seed)
    expect = Expected(raw, player.rows)
    expect.observations(Rows(*(field[0] for field in player.rows)), seen)
    endings = deaths = 0
    for action, row in player.walk(QUICK.get(name, STEPS)):
        if action is None:
            seen, _ = raw.reset(seed=player.seed)
            check_first(row)
            expect.observations(row, seen)
            continue
        before = list(raw.agents)
        seen, rewards, terminated, _, _ = raw.step(expect.actions(action, before))
        expect.observations(row, seen)
        expect.rewards(row, rewards, before)
        over = not raw.agents
        assert row.last == over
        for i, agent in enumerate(raw.possible_agents):
            going = agent in raw.agents
            if over:
                assert row.discount[i] == (agent in before and not terminated[agent])
            else:
                assert row.alive[i] == going and row.discount[i] == going
                deaths += agent in before and not going
        endings += over
    raw.close()
    assert endings or case.split(".")[-1] in ("multiwalker_v9", "mamujoco_v1")
    assert deaths or not any(word in name for word in DYING)


class Expected:
    """What rows must hold, from a raw parallel environment's own dictionaries."""

    def __init__(self, raw: Any, rows: Rows) -> None:
        self.raw, self.agents, self.shape = raw, list(raw.possible_agents), rows.obs.shape[2:]
        from gymnasium.spaces import Box, flatten

        self.flatten, self.box = flatten, Box

    def observations(self, row: Rows, seen: dict[str, Any]) -> None:
        for i, agent in enumerate(self.agents):
            if agent not in seen:
                assert not row.obs[i].any(), "an absent agent sees nothing"
                continue
            space = self.raw.observation_space(agent)
            obs = np.float32(seen[agent] if isinstance(space, self.box) else self.flatten(space, seen[agent])).ravel()
            flat = row.obs[i].ravel()
            np.testing.assert_array_equal(flat[: len(obs)], obs)
            assert not flat[len(obs) :].any()

    def rewards(self, row: Rows, rewards: dict[str, float], before: list[str]) -> None:
        for i, agent in enumerate(self.agents):
            assert row.reward[i] == np.float32(rewards[agent] if agent in before else 0.0)

    def actions(self, action: np.ndarray, present: list[str]) -> dict[str, Any]:
        chosen = {}
        for agent in present:
            space, a = self.raw.action_space(agent), action[self.agents.index(agent)]
            chosen[agent] = a[: space.shape[0]] if isinstance(space, self.box) else int(a)
        return chosen


def test_global_state() -> None:
    need("pettingzoo", "mpe2")
    from mpe2 import simple_speaker_listener_v4

    task = task_of("pettingzoo:mpe2.simple_speaker_listener_v4", state=True)
    assert task.spec.state_shape == (14,)
    player = Player(task)
    raw = simple_speaker_listener_v4.parallel_env()
    raw.reset(seed=player.seed)
    for action, row in player.walk(20):
        assert action is not None
        raw.step(dict(zip(raw.possible_agents, action.tolist(), strict=True)))
        np.testing.assert_array_equal(row.state, raw.state())


# --- PettingZoo, turn by turn


@pytest.mark.parametrize("name", ["tictactoe_v3", "connect_four_v3"])
def test_turns(name: str) -> None:
    need("pettingzoo", "pygame")
    task = task_of(f"pettingzoo:pettingzoo.classic.{name}")
    player = Player(task)
    raw = importlib.import_module(f"pettingzoo.classic.{name}").env()
    raw.reset(seed=player.seed)
    agents, wins = list(raw.possible_agents), 0
    for action, row in player.walk(STEPS):
        if action is None:
            raw.reset(seed=player.seed)
            check_first(row)
        else:
            raw.step(int(action[agents.index(raw.agent_selection)]))
            np.testing.assert_array_equal(row.reward, np.float32([raw.rewards[a] for a in agents]))
            over = all(raw.terminations.values())
            assert row.last == over and (row.discount == (not over)).all()
            assert row.alive.all(), "a waiting player is alive"
            wins += bool(over and row.reward.any())
        for i, agent in enumerate(agents):
            seen = raw.observe(agent)
            np.testing.assert_array_equal(row.obs[i], np.float32(seen["observation"]))
            if row.last:
                continue
            if agent == raw.agent_selection:
                np.testing.assert_array_equal(row.legal[i], seen["action_mask"].astype(bool))
            else:
                assert row.legal[i].tolist() == [True] + [False] * (row.legal.shape[1] - 1)
    assert wins and not (row.reward < -1).any(), "no illegal move was made"


# --- Atari


def play_atari(task: Any, seed: int, actions: np.ndarray, envs: int = 2) -> list[list[np.ndarray]]:
    """All rows of `envs` games that take the same actions in all of them."""
    opened, rows = task.open(envs), empty_rows(task.spec, envs)
    seeds = np.arange(seed, seed + envs)
    opened.reset(seeds, rows)
    kept = [[field.copy() for field in rows]]
    for t, action in enumerate(actions):
        opened.step(np.full((envs, 1), action, np.int32), seeds + 1000 * (t + 1), rows)
        kept.append([field.copy() for field in rows])
    opened.close()
    return kept


def test_atari_is_deterministic_per_seed() -> None:
    need("ale_py", "cv2")
    task = task_of("atari:Breakout", sticky=0.25, frames=400, life_loss=True)
    assert task.spec.obs_dtype == "uint8" and task.spec.obs_shape == (84, 84, 4) and task.spec.limit == 100
    actions = np.random.default_rng(0).integers(0, 4, 150)
    a, b = (play_atari(task, 5, actions) for _ in range(2))
    assert all(np.array_equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True))
    # The second game of one batch is the first of another: neither slot nor history matters.
    c = play_atari(task, 6, actions)
    for one, two in zip(a[:60], c[:60], strict=True):
        assert all(np.array_equal(x[1], y[0]) for x, y in zip(one, two, strict=True))
    last = np.array([Rows(*row).last for row in a])
    first = np.array([Rows(*row).first for row in a])
    assert last.any() and (first[1:] == last[:-1]).all()


@pytest.mark.parametrize(("game", "grey"), [("Breakout", True), ("MsPacman", True), ("Pong", False)])
def test_atari_beside_ale(game: str, grey: bool) -> None:
    """Frames, rewards and endings are those of ale-py's own vector environment, to the bit.

    A game that ends within a frame skip is shown by a stale frame there; the newest frame of that row is not compared.
    """
    need("ale_py", "cv2")
    from ale_py.vector_env import AtariVectorEnv

    task = task_of(f"atari:{game}", clip_rewards=False, grey=grey, noop_max=0)
    player = Player(task)
    names = {"Breakout": "breakout", "MsPacman": "ms_pacman", "Pong": "pong"}
    raw = AtariVectorEnv(names[game], 1, num_threads=1, reward_clipping=False, grayscale=grey, noop_max=0)

    def stacked(obs: np.ndarray) -> np.ndarray:
        return np.moveaxis(obs[0], 0, -1) if grey else np.concatenate(list(obs[0]), axis=-1)

    obs, _ = raw.reset(seed=np.array([player.seed]))
    np.testing.assert_array_equal(player.rows.obs[0, 0], stacked(obs))
    rewarded = endings = 0
    for action, row in player.walk(STEPS + 100):
        if action is None:
            obs, _ = raw.reset(seed=np.array([player.seed]))
            check_first(row)
        else:
            obs, reward, terminated, truncated, _ = raw.step(action.astype(np.int32))
            assert row.reward[0] == reward[0] and row.last == (terminated[0] or truncated[0])
            assert row.discount[0] == (not terminated[0])
            rewarded, endings = rewarded + bool(reward[0]), endings + row.last
        newest = -(1 if grey else 3) if row.last else None
        np.testing.assert_array_equal(row.obs[0, ..., :newest], stacked(obs)[..., :newest])
    assert rewarded and (endings or game != "Breakout")


def test_atari_life_loss_and_score() -> None:
    need("ale_py", "cv2")
    actions = np.random.default_rng(1).integers(0, 4, 400)
    plain = [Rows(*r) for r in play_atari(task_of("atari:Breakout", clip_rewards=False), 3, actions, envs=1)]
    lives = [Rows(*r) for r in play_atari(task_of("atari:Breakout", life_loss=True), 3, actions, envs=1)]
    cut = [t for t, row in enumerate(lives) if not row.discount[0, 0]]
    ends = [t for t, row in enumerate(lives) if row.last[0]]
    assert ends == [t for t, row in enumerate(plain) if not row.discount[0, 0]]
    assert len(cut) >= 5 and set(ends) < set(cut), "a lost life ends the return, not the episode"
    score = sum(float(row.reward[0, 0]) for row in plain[: ends[0] + 1])
    assert lives[ends[0]].success[0] == score and abs(lives[0].reward).max() <= 1
    assert all(np.array_equal(x.obs, y.obs) for x, y in zip(plain, lives, strict=True))


def test_atari_color_and_limit() -> None:
    need("ale_py", "cv2")
    task = task_of("atari:pong", grey=False, stack=2, size=42, frames=10, frame_skip=3, full_actions=True)
    assert task.spec.obs_shape == (42, 42, 6) and task.spec.action.sizes == (18,) and task.spec.limit == 4
    rows = [Rows(*r) for r in play_atari(task, 1, np.zeros(6, np.int32), envs=1)]
    assert [bool(r.last[0]) for r in rows] == [False, False, False, False, True, False, False]
    assert all(r.discount[0, 0] == 1 for r in rows), "the frame limit is a truncation"
    assert rows[0].obs.std() > 0


def test_atari_ids_imply_what_ale_py_registers() -> None:
    """Every id of ale-py's own registry. Gym's ram and Deterministic ids are registered no longer: by hand."""
    need("ale_py", "cv2")
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    ids = [name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("ale_py.")]
    assert len(ids) > 300
    for name in ids:
        said, task = gymnasium.registry[name].kwargs, find_task(f"atari:{name}")
        skip = (task.frame_skip_min, task.frame_skip + 1) if task.frame_skip_min else task.frame_skip
        assert said["frameskip"] == skip and said["repeat_action_probability"] == task.sticky, name
        assert said["max_num_frames_per_episode"] == task.frames and said["full_action_space"] == task.full_actions
        assert said["game"] == rom(task.game) and task.observe == "screen"
    for name, expected in {
        "PongDeterministic-v0": {"game": "Pong", "sticky": 0.25, "frame_skip": 4},
        "SpaceInvadersDeterministic-v4": {"game": "SpaceInvaders", "frame_skip": 3},
        "Pong-ram-v4": {"game": "Pong", "frame_skip_min": 2, "observe": "ram", "stack": 1},
        "Alien-ramNoFrameskip-v0": {"game": "Alien", "sticky": 0.25, "frame_skip": 1, "observe": "ram", "stack": 1},
    }.items():
        assert find_task(f"atari:{name}") == Atari(**expected), name


def test_atari_memory_and_crop() -> None:
    need("ale_py", "cv2")
    import cv2
    import gymnasium

    actions = np.random.default_rng(2).integers(0, 6, 20)
    ram = [Rows(*r) for r in play_atari(task_of("atari:Pong-ramNoFrameskip-v4", noop_max=0), 1, actions, envs=1)]
    raw = gymnasium.make("ALE/Pong-v5", obs_type="ram", frameskip=1, repeat_action_probability=0.0)
    seen, _ = raw.reset(seed=1)
    raw = raw.unwrapped
    for row, action in zip(ram, [1, *actions], strict=True):  # Pong knows fire, which opens an episode
        seen, *_ = raw.step(int(action))
        np.testing.assert_array_equal(row.obs[0, 0], seen)
    # A crop is a part of the larger screen.
    whole, part = (
        [Rows(*r) for r in play_atari(task_of("atari:Pong", **changes), 1, actions[:6], envs=1)]
        for changes in ({"noop_max": 0}, {"noop_max": 0, "resize_height": 110, "crop_top": 18})
    )
    screen = np.zeros((210, 160), np.uint8)
    game = task_of("atari:Pong", noop_max=0).make()
    row = Rows(*(field[0] for field in empty_rows(game.spec, 1)))
    game.reset(1, row)
    game._ale.getScreenGrayscale(screen)
    expected = cv2.resize(screen, (84, 110), interpolation=cv2.INTER_AREA)[18:102]
    np.testing.assert_array_equal(part[0].obs[0, 0, ..., -1], expected)
    assert whole[0].obs.shape == part[0].obs.shape and not np.array_equal(whole[0].obs, part[0].obs)
    for wrong in ({"crop_top": 1}, {"resize_height": 80}, {"frame_skip_min": 5}):
        with pytest.raises(ConfigError, match=r"task\.(crop_top|frame_skip_min)"):
            task_of("atari:Pong", **wrong)


def test_atari_random_frame_skip_ends_by_frames() -> None:
    need("ale_py", "cv2")
    task = task_of("atari:Pong-v4", frames=40, size=42, stack=1)
    assert task.spec.limit == 20 and task.spec.frames == 1
    rows = [Rows(*r) for r in play_atari(task, 4, np.zeros(60, np.int32), envs=1)]
    ends = np.flatnonzero([r.last[0] for r in rows])
    lengths = np.diff([-1, *ends]) - 1
    assert len(ends) >= 3 and all(10 <= n <= 20 for n in lengths) and len(set(lengths)) > 1


# --- learning


def _trained() -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    """Task -> packages and settings, of all that are compared above (gather has too many agents for a test)."""
    found: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {}
    for case, (packages, values, _) in GYMNASIUM.items():
        found[f"gymnasium:{case}"] = packages, values
    for name, package in (("Foraging-8x8-2p-3f-v3", "lbforaging"), ("rware-tiny-2ag-v2", "rware")):
        found[f"gymnasium:{name}"] = (package,), {}
    for case, (packages, kwargs) in PARALLEL.items():
        if "gather" not in case:
            found[f"pettingzoo:{case}"] = ("pettingzoo", "pygame", *packages), {"kwargs": json.dumps(kwargs)}
    for name in ("tictactoe_v3", "connect_four_v3"):
        found[f"pettingzoo:pettingzoo.classic.{name}"] = ("pettingzoo", "pygame"), {}
    return found | {"atari:Breakout": (("ale_py", "cv2"), {"size": 20})}


TRAINED = _trained()


@pytest.mark.parametrize("case", TRAINED)
def test_learning(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rollouts of the real environment are learned from: everything stays finite and the weights move."""
    monkeypatch.setattr(compiler, "_accepted", lambda once: compiler.ONCE)  # compiling is all that takes long
    packages, values = TRAINED[case]
    need("gymnasium", *packages)
    task = task_of(case.split()[0], **values)
    algo = replace(PRESETS["ippo"].small(), collect=Collect(envs=2, length=12), epochs=1, minibatches=1)
    with closing(HostEngine(RunConfig("ippo", case, algo, task, workers=Workers(count=0)))) as engine:
        state = engine.init()
        before = [np.array(x) for x in jax.tree.leaves(state.members.algo.nets)]
        state, report = engine.chunk(state, 2)
        after = [np.asarray(x) for x in jax.tree.leaves(state.members.algo.nets)]
    assert 2 * 2 * 12 - 2 * 12 < int(state.members.steps[0]) <= 2 * 2 * 12
    assert np.isfinite(np.asarray(report.sums.values)).all()
    assert any(not np.array_equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(np.isfinite(x).all() for x in after)


@pytest.mark.parametrize("preset", ["maddpg", "hyper_mappo", "happo"])
def test_learning_of_agents_of_different_sizes(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A speaker and a listener: families that need several agents, with centralized critics of padded views."""
    monkeypatch.setattr(compiler, "_accepted", lambda once: compiler.ONCE)
    need("pettingzoo", "mpe2")
    task = task_of("pettingzoo:mpe2.simple_speaker_listener_v4", limit=6)
    assert len(set(task.spec.obs_sizes)) == len(set(task.spec.action_sizes)) == 2
    algo = PRESETS[preset].small()
    with closing(HostEngine(RunConfig(preset, task.spec.name, algo, task, workers=Workers(count=0)))) as engine:
        state = engine.init()
        before = [np.array(x) for x in jax.tree.leaves(engine.policies(state).last)]
        state, report = engine.chunk(state, algo.warmup() + 1)
        after = [np.asarray(x) for x in jax.tree.leaves(engine.policies(state).last)]
    assert np.isfinite(np.asarray(report.sums.values)).all()
    assert any(not np.array_equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(np.isfinite(x).all() for x in after)
