"""Algorithm families and their presets."""

from rookery.algorithms import presets, presets_memory  # noqa: F401  (fill the registry)
