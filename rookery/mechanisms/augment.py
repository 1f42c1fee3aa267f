"""Augmentation of replayed observations."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from rookery.core.errors import ConfigError
from rookery.core.types import Mean, Metrics, Spec
from rookery.memory.learning import Minibatch
from rookery.ops import images


def check_shift(spec: Spec, most: int) -> None:
    """Refuse shifts of what is not an image."""
    if most and len(spec.obs_shape) != 3:
        raise ConfigError(
            f"algo.shift moves images [height, width, channel]; observations of {spec.name} have shape "
            f"{spec.obs_shape}. Use --algo.shift 0."
        )


def shifted(sees: Minibatch, most: int) -> tuple[Minibatch, Metrics]:
    """The minibatch with every observation shifted by up to `most` pixels, each on its own; 0: as it is."""
    if not most:
        return sees, {}
    step = sees.batch.step
    moved, by = images.random_shifts(sees.key("shift"), step.obs.reshape(-1, *step.obs.shape[-3:]), most)
    metrics = {"shift": Mean.of(jnp.mean(jnp.abs(by).astype(jnp.float32)))}
    step = replace(step, obs=moved.reshape(step.obs.shape))
    return replace(sees, batch=replace(sees.batch, step=step)), metrics
