"""What is refused before anything is written or compiled for long."""

from __future__ import annotations

from dataclasses import replace

from rookery.core import config as configs
from rookery.core.errors import ConfigError
from rookery.core.ranges import check_ranges
from rookery.training.config import RunConfig, Workers


def check(config: RunConfig) -> None:
    """Raise `ConfigError` unless the config can be trained."""
    check_ranges(config, "")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        raise ConfigError(f"seeds must be different from each other, at least one; got {list(config.seeds)}.")
    config.algo.collect.check(config.task.spec)
    config.algo.check(config.task.spec)
    _check_workers(config)
    if config.algo.collect.learners:
        _check_learners(config)
    if config.sweep:
        _check_sweep(config)


def _check_workers(config: RunConfig) -> None:
    from rookery.training.engine import is_host

    workers, collect, name = config.workers, config.algo.collect, config.task.spec.name
    if not is_host(config):
        if workers != Workers():
            raise ConfigError(f"{name} is compiled, so there is nothing for workers to step; leave out --workers.")
        return
    if collect.shards > 1:
        raise ConfigError(
            f"algo.collect.shards is {collect.shards}, but {name} is stepped outside XLA, where one device learns from "
            "all environments; use --algo.collect.shards 1."
        )
    if workers.overlap and (collect.envs % 2 or workers.count == 0):
        raise ConfigError(
            f"workers.overlap steps one half of the environments in workers while the other half acts: "
            f"algo.collect.envs ({collect.envs}) must be even and workers.count not 0."
        )


def _check_learners(config: RunConfig) -> None:
    from rookery.core.types import GradientAlgorithm
    from rookery.training.engine import is_host

    workers, name = config.workers, config.task.spec.name
    if not is_host(config):
        raise ConfigError(
            f"algo.collect.learners: {name} is compiled, and what is compiled learns in one program; use it with host "
            "tasks (gymnasium:, atari:, ...), or set --algo.collect.learners 0."
        )
    if not isinstance(config.algo, GradientAlgorithm):
        raise ConfigError(
            f"algo.collect.learners: {config.preset} does not learn by one gradient step for each rollout. Use the "
            "PPO family (a3c, or ppo with --algo.epochs 1 --algo.minibatches 1), or set --algo.collect.learners 0."
        )
    if replace(workers, timeout=Workers().timeout) not in (Workers(), Workers(count=0)):
        raise ConfigError(
            "algo.collect.learners: each learner steps its environments in its own process; leave out "
            "--workers.count, --workers.overlap and --workers.on-failure."
        )


def _check_sweep(config: RunConfig) -> None:
    floats = [f"algo.{path}" for path, value in configs.leaves(config.algo).items() if isinstance(value, float)]
    for sweep in config.sweep:
        kind = configs.type_of(config, sweep.path)
        if sweep.path not in floats:
            name = getattr(kind, "__name__", kind)
            raise ConfigError(f"cannot sweep {sweep.path} ({name}); what can be swept: {', '.join(floats)}.")
        for value in sweep.values:
            check_ranges(configs.set_path(config, sweep.path, value), "")
        if not sweep.values or [other.path for other in config.sweep].count(sweep.path) > 1:
            raise ConfigError(f"sweep of {sweep.path}: give every entry once, with at least one value.")
    _trace(config)


def _trace(config: RunConfig) -> None:
    """A swept entry becomes an array in the program: it must not decide what is computed."""
    import jax

    from rookery.training.engine import trace

    try:
        trace(config)
    except jax.errors.ConcretizationTypeError as error:
        paths = " or ".join(sweep.path for sweep in config.sweep)
        raise ConfigError(
            f"{paths} decides what is compiled, so its values cannot be swept in one program. "
            "Train one run for each value."
        ) from error
