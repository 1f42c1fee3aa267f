"""Environments in numpy around a compiled policy and learner."""

from __future__ import annotations

from rookery.core.errors import ConfigError
from rookery.training.config import RunConfig
from rookery.training.engine import Engine, Layout


def HostEngine(config: RunConfig, begun: Layout | None = None) -> Engine:  # noqa: N802
    """Not available yet."""
    raise ConfigError("host environments cannot be trained on yet.")


def trace_host(config: RunConfig) -> None:
    """Not available yet."""
    raise ConfigError("host environments cannot be trained on yet.")
