"""Algorithm families and their presets."""

from rookery.algorithms import about, presets, presets_atari, presets_memory, teams  # noqa: F401  (fills the registry)
