"""Algorithm families and their presets."""

from rookery.algorithms import presets, teams  # noqa: F401  (fill the registries)
