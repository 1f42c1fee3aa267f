"""Atari games on ale-py's emulator: `atari:MsPacman`.

Not on ale-py's vector environment: there a reset from a seed loads the ROM anew, which takes as long as 200 steps, and
a reset without one depends on all that was played before. Here the emulator's state after its first reset is kept and
restored, and everything random (no-ops, sticky actions) is drawn from the episode's seed, so the same seed and actions
give the same rows. Frames are those of the vector environment to the bit, but for the frame of a game that ended within
a frame skip: there it repeats an old one, and here the last one is seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rookery.core.errors import ConfigError, suggest
from rookery.core.host import Rows
from rookery.core.ranges import Count, Fraction, Whole
from rookery.core.registry import TASK_FAMILIES, family
from rookery.tasks.host import base
from rookery.tasks.host.gymnasium_task import make_spec
from rookery.tasks.host.spaces import Actions, Observations


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Atari(base.MadeTask):
    """An Atari game. Observations are uint8 [height, width, channel], or [byte] of memory.

    The last axis holds the last frames, oldest first; before an episode's first frame there are zeros. Only
    processes step emulators in parallel: they hold Python's lock.
    """

    family: Literal["atari"] = "atari"
    game: str = "Pong"
    """Name of the game, MsPacman or ms_pacman. A task name may also be an id such as PongNoFrameskip-v4 (see
    `settings_of`)."""
    frame_skip: Count = 4
    """Emulator frames per action."""
    frame_skip_min: Whole = 0
    """Fewest emulator frames per action: each action lasts from so many to `frame_skip` frames, drawn uniformly; 0:
    always `frame_skip`."""
    maxpool: bool = True
    """Observe the maximum of the last two frames of a frame skip, against flicker."""
    sticky: Fraction = 0.0
    """Probability that the emulator repeats the previous action (0.25 in Machado et al. 2018)."""
    noop_max: Whole = 30
    """An episode begins with 1 to so many no-op frames, drawn from its seed; 0: none."""
    fire_reset: bool = True
    """Press fire for one frame at the beginning of an episode, in games that know this button alone."""
    observe: Literal["screen", "ram"] = "screen"
    """What is seen of a moment: the screen, or the machine's 128 bytes of memory."""
    grey: bool = True
    """Grey frames; otherwise three color channels per frame."""
    size: Count = 84
    """Height and width of a frame."""
    resize_height: Whole = 0
    """Rows that the screen is resized to before `size` of them are kept, from `crop_top` on (110 in Mnih et al. 2013);
    0: `size`, nothing is cropped."""
    crop_top: Whole = 0
    """First row that is kept of a screen of `resize_height` rows."""
    stack: Count = 4
    """Frames (or memories) in one observation."""
    clip_rewards: bool = True
    """Clip rewards to -1..1. `success` then holds the game's score without clipping, which is what episodes are scored
    by."""
    life_loss: bool = False
    """The return ends when a life is lost: the discount of that row is 0, though the game goes on without `last`."""
    full_actions: bool = False
    """All 18 actions instead of those that the game knows."""
    frames: Count = 108_000
    """Emulator frames after which an episode is truncated."""

    def __post_init__(self) -> None:
        if self.frame_skip_min > self.frame_skip:
            raise ConfigError(
                f"task.frame_skip_min ({self.frame_skip_min}) must be at most task.frame_skip ({self.frame_skip})."
            )
        rows = self.resize_height or self.size
        if self.crop_top + self.size > rows:
            raise ConfigError(
                f"task.crop_top ({self.crop_top}) and task.size ({self.size}) must fit into the {rows} rows of the "
                "resized screen; set --task.resize-height (110 in Mnih et al. 2013)."
            )

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Of what is seen of one moment."""
        return (128,) if self.observe == "ram" else (self.size, self.size, 1 if self.grey else 3)

    @property
    def protocol(self) -> dict[str, bool | int | float | str]:
        """What a table of Atari scores must say."""
        return {
            "sticky actions": self.sticky,
            "life loss": self.life_loss,
            "clipped rewards": self.clip_rewards,
            "frames of an episode": self.frames,
        }

    @property
    def frames_per_step(self) -> float:
        """Emulator frames per action."""
        return (self.frame_skip + (self.frame_skip_min or self.frame_skip)) / 2

    @property
    def score_unit(self) -> str:
        """What `Step.success` counts: the return, where rewards are clipped."""
        return "return without clipping" if self.clip_rewards else "success"

    def make(self) -> AtariGame:
        """One game."""
        return AtariGame(self)


class AtariGame:
    """One emulator that writes rows."""

    def __init__(self, config: Atari) -> None:
        from gymnasium.spaces import Box, Discrete

        name = f"atari:{config.game}"
        ale_py = base.import_module("ale_py", name)
        self._cv2 = base.import_module("cv2", name)
        self._cv2.setNumThreads(1)  # a frame is too small to share; one process per core steps the games
        self._config = config = replace(config)
        self._ale = _emulator(ale_py, config.game)
        self._start = self._ale.cloneState()
        minimal = self._ale.getMinimalActionSet()
        self._set = list(self._ale.getLegalActionSet() if config.full_actions else minimal)
        self._noop, fire = ale_py.Action.NOOP, ale_py.Action.FIRE
        self._fire = fire if config.fire_reset and fire in minimal else None
        *area, depth = config.frame_shape
        shape = (*area, config.stack * depth)
        self.actions = Actions(name, ["agent"], [Discrete(len(self._set))])
        self.observations = Observations(name, ["agent"], [Box(0, 255, shape, np.uint8)])
        self.spec = make_spec(
            name,
            ["agent"],
            self.actions,
            self.observations,
            limit=-(-config.frames // (config.frame_skip_min or config.frame_skip)),
            score="success" if config.clip_rewards else "return",
            frames=config.stack,
        )
        self._pair = np.zeros((2, *self._ale.getScreenDims(), *([] if config.grey else [3])), np.uint8)
        self._look = self._ale.getScreenGrayscale if config.grey else self._ale.getScreenRGB
        if config.observe == "ram":
            self._look = lambda screen: None  # nobody sees the screen
        self._stack: list[np.ndarray] = []
        self._rng, self._pressed = np.random.default_rng(0), self._noop
        self._skip, self._frames, self._lives, self._score = config.frame_skip, 0, 0, 0.0

    def reset(self, seed: int, row: Rows) -> None:
        """Begin a game."""
        self._rng, self._pressed = np.random.default_rng(seed), self._noop
        self._ale.restoreState(self._start)
        noops = int(self._rng.integers(1, self._config.noop_max + 1)) if self._config.noop_max else 0
        for action in [*[self._noop] * noops, *([self._fire] if self._fire is not None else [])]:
            self._ale.act(action)
            if self._ale.game_over(with_truncation=False):
                self._ale.restoreState(self._start)
        self._frames, self._lives, self._score = 0, self._ale.lives(), 0.0
        self._look(self._pair[0])
        self._stack = [np.zeros(self._config.frame_shape, np.uint8)] * self._config.stack
        self._show(self._pair[0], row)

    def step(self, action: Any, row: Rows) -> None:
        """Hold an action for a frame skip."""
        chosen, config = self._set[action[0]], self._config
        reward, over, pooled = 0.0, False, False
        if config.frame_skip_min:
            self._skip = int(self._rng.integers(config.frame_skip_min, config.frame_skip + 1))
        for frame in range(self._skip):
            if not config.sticky or self._rng.random() >= config.sticky:
                self._pressed = chosen
            reward += self._ale.act(self._pressed)
            if frame == self._skip - 2 and config.maxpool:
                self._look(self._pair[1])
                pooled = True  # not in a game that ended before: the other frame would be an old one
            over = self._ale.game_over(with_truncation=False)
            if over:
                break
        self._look(self._pair[0])
        self._show(np.maximum(*self._pair, out=self._pair[1]) if pooled else self._pair[0], row)
        self._frames += self._skip
        self._score += reward
        row.reward[0] = min(max(reward, -1.0), 1.0) if config.clip_rewards else reward
        lives = self._ale.lives()
        row.discount[0] = not (over or (config.life_loss and lives < self._lives))
        self._lives = lives
        if over or self._frames >= config.frames:
            row.last[...] = True
            row.success[...] = self._score if config.clip_rewards else 0.0

    def close(self) -> None:
        """Nothing to release: the emulator goes with its last reference."""

    def _frame(self, screen: np.ndarray) -> np.ndarray:
        """What is kept of this moment."""
        config = self._config
        if config.observe == "ram":
            return self._ale.getRAM()
        resized = (config.size, config.resize_height or config.size)  # OpenCV's order: width, height
        screen = self._cv2.resize(screen, resized, interpolation=self._cv2.INTER_AREA)
        return screen[config.crop_top : config.crop_top + config.size]

    def _show(self, screen: np.ndarray, row: Rows) -> None:
        """Write the last frames as channels, oldest first; OpenCV interleaves them in a quarter of numpy's time."""
        self._stack = [*self._stack[1:], self._frame(screen)]
        if self._config.observe == "ram":
            np.concatenate(self._stack, out=row.obs[0])
        else:
            self._cv2.merge(self._stack, row.obs[0])


def _emulator(ale_py: Any, game: str) -> Any:
    """The emulator after its first reset, without randomness of its own."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("max_num_frames_per_episode", 0)
    ale.loadROM(ale_py.roms.get_rom_path(rom(game)))
    ale.reset_game()
    return ale


def rom(game: str) -> str:
    """ale-py's name of a game; case and underscores do not matter."""
    known = base.import_module("ale_py.roms", f"atari:{game}").get_all_rom_ids()
    plain = {name.replace("_", ""): name for name in known}
    found = plain.get(game.replace("_", "").lower())
    if found is None:
        raise ConfigError(f"unknown Atari game '{game}'.{suggest(game.lower(), known)}")
    return found


_ID = re.compile(r"(?P<ale>ALE/)?(?P<game>\w+?)(?P<ram>-ram)?(?P<skip>Deterministic|NoFrameskip)?-v(?P<version>\d+)")
_STICKY = {"0": 0.25, "4": 0.0, "5": 0.25}


def settings_of(name: str) -> dict[str, Any]:
    """Fields of `Atari` that a name implies: of a game, or an id as Gym and ale-py register them.

    An id says how the emulator is stepped and whether its memory is seen. What wrappers do (size, stack, no-ops,
    clipping) keeps its defaults; with the usual wrapper a NoFrameskip id is played with --task.frame-skip 4.
    """
    found = _ID.fullmatch(name)
    if found is None:
        rom(name)
        return {"game": name}
    game, skip, version = found["game"], found["skip"], found["version"]
    rom_id = rom(game)
    modern = version == "5"
    if version not in _STICKY or modern != bool(found["ale"]) or (modern and (skip or found["ram"])):
        raise ConfigError(
            f"atari:{name}: no such id. There are {game}-v0, {game}-v4, {game}-ram-v4, {game}Deterministic-v4, "
            f"{game}NoFrameskip-v4 and ALE/{game}-v5; or give the bare name, atari:{game}, and set --task.sticky and "
            "--task.frame-skip."
        )
    settings: dict[str, Any] = {"game": game, "sticky": _STICKY[version]}
    if skip == "NoFrameskip":
        settings["frame_skip"] = 1
    elif skip == "Deterministic" or modern:
        # Every fourth frame of Space Invaders misses its lasers, which blink (Mnih et al. 2013).
        settings["frame_skip"] = 3 if rom_id == "space_invaders" and not modern else 4
    else:
        settings |= {"frame_skip": 4, "frame_skip_min": 2}
    if found["ram"]:
        settings |= {"observe": "ram", "stack": 1}
    return settings
