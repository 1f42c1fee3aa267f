"""Algorithm families and their presets."""

from rookery.algorithms import presets  # noqa: F401  (fills the registry)
