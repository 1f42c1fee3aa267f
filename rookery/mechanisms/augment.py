"""Augmentation of replayed observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array

from rookery.core.errors import ConfigError
from rookery.core.types import Mean, Metrics, Spec
from rookery.memory.sequences import Sequence
from rookery.ops import images


def check_shift(spec: Spec, most: int) -> None:
    """Refuse shifts of what is not an image."""
    if most and len(spec.obs_shape) != 3:
        raise ConfigError(
            f"algo.shift moves images [height, width, channel]; observations of {spec.name} have shape "
            f"{spec.obs_shape}. Use --algo.shift 0."
        )


def shifted(batch: Sequence, most: int, key: Callable[[str], Array]) -> tuple[Sequence, Metrics]:
    """The batch with every observation shifted by up to `most` pixels, each on its own; 0: as it is."""
    if not most:
        return batch, {}
    obs = batch.step.obs
    moved, by = images.random_shifts(key("shift"), obs.reshape(-1, *obs.shape[-3:]), most)
    metrics = {"shift": Mean.of(jnp.mean(jnp.abs(by).astype(jnp.float32)))}
    return replace(batch, step=replace(batch.step, obs=moved.reshape(obs.shape))), metrics
