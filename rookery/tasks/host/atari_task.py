"""Atari games on ale-py's vector environment: `atari:MsPacman`.

ale-py steps all games in threads and does the preprocessing. It resets a finished game by itself, from no seed of
ours, when it is next stepped; it is then reset again from the episode's seed. Only that second reset is seen, so the
same seed and actions give the same rows whatever was played before, at the price of two resets per episode.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from rookery.core.errors import ConfigError, suggest
from rookery.core.host import HostEnvs, Rows
from rookery.core.registry import TASK_FAMILIES, family
from rookery.core.types import ActionSpec, Spec
from rookery.tasks.host import base

_SEEDS = 2**31 - 1  # ale-py takes non-negative int32


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Atari:
    """An Atari game. Observations are uint8 [height, width, channel]: the last frames, oldest first."""

    family: Literal["atari"] = "atari"
    game: str = "Pong"
    """Name of the game, MsPacman or ms_pacman. Settings that ids such as PongNoFrameskip-v4 imply are fields here."""
    frame_skip: int = 4
    """Emulator frames per action."""
    maxpool: bool = True
    """Observe the maximum of the last two frames of a frame skip, against flicker."""
    sticky: float = 0.0
    """Probability that the emulator repeats the previous action (0.25 in Machado et al. 2018)."""
    noop_max: int = 30
    """Up to so many no-op frames, drawn from the seed, at the beginning of an episode."""
    fire_reset: bool = True
    """Press fire at the beginning of an episode in games that wait for it."""
    grey: bool = True
    """Grey frames; otherwise three color channels per frame."""
    size: int = 84
    """Height and width of a frame."""
    stack: int = 4
    """Frames in one observation."""
    clip_rewards: bool = True
    """Clip rewards to -1..1. `success` then holds the game's score without clipping, which is what episodes are scored
    by."""
    life_loss: bool = False
    """The return ends when a life is lost: the discount of that row is 0, though the game goes on without `last`."""
    full_actions: bool = False
    """All 18 actions instead of those that the game knows."""
    frames: int = 108_000
    """Emulator frames after which an episode is truncated."""
    threads: int = 0
    """Threads that step the games of one process; 0: as many as it may use cores. Without effect on results."""

    def __post_init__(self) -> None:
        for name, low in (("frame_skip", 1), ("noop_max", 0), ("size", 1), ("stack", 1), ("frames", 1), ("threads", 0)):
            if getattr(self, name) < low:
                raise ConfigError(f"task.{name} must be at least {low}, not {getattr(self, name)}.")
        if not 0 <= self.sticky < 1:
            raise ConfigError(f"task.sticky must be from 0 to below 1, not {self.sticky}.")

    @property
    def spec(self) -> Spec:
        """The static facts of the game."""
        return _spec(self)

    def open(self, envs: int) -> HostEnvs:
        """So many games, stepped by threads."""
        return AtariEnvs(self, envs)

    def vector(self, envs: int) -> Any:
        """ale-py's vector environment with these settings."""
        name = f"atari:{self.game}"
        module = base.import_module("ale_py.vector_env", name)
        cores = len(os.sched_getaffinity(0))
        return module.AtariVectorEnv(
            rom(self.game),
            envs,
            num_threads=min(self.threads or cores, envs),
            max_num_frames_per_episode=self.frames,
            repeat_action_probability=self.sticky,
            full_action_space=self.full_actions,
            img_height=self.size,
            img_width=self.size,
            grayscale=self.grey,
            stack_num=self.stack,
            frameskip=self.frame_skip,
            maxpool=self.maxpool and self.frame_skip > 1,
            noop_max=self.noop_max,
            reward_clipping=False,  # done here, because the score needs the rewards as they are
            use_fire_reset=self.fire_reset,
        )


class AtariEnvs:
    """`HostEnvs` of Atari games."""

    def __init__(self, config: Atari, envs: int) -> None:
        self._config, self._env = config, config.vector(envs)
        self._lives, self._score = np.zeros(envs, np.int64), np.zeros(envs, np.float32)

    def reset(self, seeds: np.ndarray, rows: Rows) -> None:
        """Begin an episode in every game."""
        obs, info = self._env.reset(seed=_seeds(seeds))
        rows.legal[...] = True
        rows.alive[...] = True
        rows.reward[...] = 0
        rows.discount[...] = 1
        rows.first[...] = True
        rows.last[...] = False
        rows.success[...] = 0
        self._lives[...], self._score[...] = info["lives"], 0
        self._write(obs, rows.obs)

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        """Move every game by one row; one whose current row is `last` begins an episode."""
        rows.first[...] = begin = rows.last.copy()
        chosen = np.where(begin, 0, action[:, 0]).astype(np.int32)
        obs, reward, terminated, truncated, info = self._env.step(chosen)
        if begin.any():
            obs, info = self._env.reset(seed=_seeds(seeds[begin]), options={"reset_mask": begin})
        reward, ended = np.where(begin, 0, reward), terminated & ~begin
        self._score = np.where(begin, 0, self._score + reward).astype(np.float32)
        rows.last[...] = (terminated | truncated) & ~begin
        over = ended | (~begin & (info["lives"] < self._lives)) if self._config.life_loss else ended
        rows.discount[:, 0] = ~over
        rows.reward[:, 0] = np.clip(reward, -1, 1) if self._config.clip_rewards else reward
        rows.success[...] = np.where(rows.last, self._score, 0) if self._config.clip_rewards else 0
        self._lives[...] = info["lives"]
        self._write(obs, rows.obs)

    def close(self) -> None:
        """Release the emulators."""
        self._env.close()

    def _write(self, obs: np.ndarray, out: np.ndarray) -> None:
        """Frames [env, stack, height, width(, color)] as channels; plane by plane, which is five times a transpose."""
        channels = 1 if self._config.grey else 3
        for frame in range(self._config.stack):
            for color in range(channels):
                plane = obs[:, frame] if self._config.grey else obs[:, frame, ..., color]
                out[:, 0, ..., frame * channels + color] = plane


@cache
def _spec(config: Atari) -> Spec:
    env = config.vector(1)
    actions = int(env.single_action_space.n)
    env.close()
    return Spec(
        name=f"atari:{config.game}",
        agents=("agent",),
        obs_shape=(config.size, config.size, config.stack * (1 if config.grey else 3)),
        action=ActionSpec("discrete", (actions,)),
        limit=-(-config.frames // config.frame_skip),
        score="success" if config.clip_rewards else "return",
        obs_dtype="uint8",
    )


def rom(game: str) -> str:
    """ale-py's name of a game; case and underscores do not matter."""
    known = base.import_module("ale_py.roms", f"atari:{game}").get_all_rom_ids()
    plain = {name.replace("_", ""): name for name in known}
    found = plain.get(game.replace("_", "").lower())
    if found is None and "-v" in game:
        raise ConfigError(
            f"atari:{game}: give the bare name of the game. What an id implies is set by fields: v5 is --task.sticky "
            "0.25, v4 is --task.sticky 0, NoFrameskip is --task.frame-skip 1 without a preprocessing wrapper."
        )
    if found is None:
        raise ConfigError(f"unknown Atari game '{game}'.{suggest(game.lower(), known)}")
    return found


def _seeds(seeds: np.ndarray) -> np.ndarray:
    return (np.asarray(seeds).astype(np.int64) % _SEEDS).astype(np.int32)
