"""Wrappers that `gymnasium:Vizdoom...` tasks have by themselves."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from rookery.core.errors import ConfigError


class SmallScreen(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The `screen` of a Dict observation, each `shrink` x `shrink` pixels averaged into one; the rest as it is."""

    def __init__(self, env: Any, shrink: int = 4) -> None:
        super().__init__(env)
        space = env.observation_space
        shape = (space.spaces["screen"].shape or ()) if isinstance(space, Dict) and "screen" in space.spaces else ()
        if len(shape) != 3:
            raise ConfigError(f"SmallScreen needs an observation with a `screen` [height, width, color], not {space}.")
        height, width, colors = shape
        if shrink < 1 or height % shrink or width % shrink:
            raise ConfigError(f"SmallScreen: shrink must divide {height} and {width}; got {shrink}.")
        self._blocks = (height // shrink, shrink, width // shrink, shrink, colors)
        small = Box(0, 255, (height // shrink, width // shrink, colors), np.uint8)
        self.observation_space = Dict({**space.spaces, "screen": small})

    def observation(self, observation: Any) -> Any:
        """The observation with its screen made small."""
        screen = observation["screen"].reshape(self._blocks).mean(axis=(1, 3), dtype=np.float32)
        return {**observation, "screen": screen.astype(np.uint8)}


class OwnSettings(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the settings of ViZDoom's engine in a temporary folder; else it writes them into the working directory."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._folder = TemporaryDirectory(prefix="vizdoom-")
        # The engine starts with the first reset, and reads the path then.
        env.unwrapped.game.set_doom_config_path(str(Path(self._folder.name) / "settings.ini"))

    def close(self) -> None:
        """Close the environment, then remove the folder."""
        super().close()
        self._folder.cleanup()
