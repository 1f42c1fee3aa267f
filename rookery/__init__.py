"""Rookery trains, compares and explains multi-agent and memory-based reinforcement learning."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rookery.app.options import config as config
    from rookery.training.config import RunConfig as RunConfig
    from rookery.training.run import Run as Run
    from rookery.training.run import load as load
    from rookery.training.train import resume as resume
    from rookery.training.train import train as train

_LAZY = {
    "RunConfig": "rookery.training.config",
    "Run": "rookery.training.run",
    "load": "rookery.training.run",
    "train": "rookery.training.train",
    "resume": "rookery.training.train",
    "config": "rookery.app.options",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: `rookery --help` needs no JAX."""
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'rookery' has no attribute '{name}'")
    for package in ("rookery.algorithms", "rookery.tasks"):
        importlib.import_module(package)
    return getattr(importlib.import_module(_LAZY[name]), name)
