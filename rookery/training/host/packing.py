"""One row of all environments as one block of bytes, so that it is copied, shared and transferred in one piece."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from rookery.core.host import Rows, layout
from rookery.core.types import Spec, Step

_ALIGN = 64  # bytes; every field begins at a multiple, so that numpy and XLA can vectorize


@dataclass(frozen=True)
class Field:
    """Where a field of all environments is in the block."""

    name: str
    start: int
    shape: tuple[int, ...]
    """Of one environment."""
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Bytes of one environment."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Packing:
    """The fields of `Rows` of `envs` environments one after the other, each contiguous."""

    spec: Spec
    envs: int

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        found, end = [], 0
        for name, (shape, dtype) in layout(self.spec).items():
            found.append(Field(name, end, shape, dtype))
            end += -(-found[-1].size * self.envs // _ALIGN) * _ALIGN
        return tuple(found)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one row of all environments."""
        return sum(-(-field.size * self.envs // _ALIGN) * _ALIGN for field in self.fields)

    def empty(self, *lead: int) -> np.ndarray:
        """Blocks of zeros [*lead, nbytes], aligned."""
        size = math.prod(lead) * self.nbytes
        raw = np.zeros(size + _ALIGN, np.uint8)
        start = -raw.ctypes.data % _ALIGN
        return raw[start : start + size].reshape(*lead, self.nbytes)

    def rows(self, blocks: np.ndarray) -> Rows:
        """Views [*lead, env, ...] of the fields in blocks [*lead, nbytes]."""
        lead = blocks.shape[:-1]
        views = {}
        for field in self.fields:
            part = blocks[..., field.start : field.start + field.size * self.envs]
            views[field.name] = _view(part, field.dtype, (*lead, self.envs, *field.shape))
        return Rows(**views)

    def step(self, blocks: UInt8[Array, "*lead nbytes"], *, members: int) -> Step:
        """The blocks as a `Step` [*lead, member, env of the member, ...], for use in a compiled function."""
        lead = blocks.shape[:-1]
        fields = {}
        for field in self.fields:
            part = blocks[..., field.start : field.start + field.size * self.envs]
            shape = (*lead, members, self.envs // members, *field.shape)
            fields[field.name] = _cast(part, field.dtype).reshape(shape)
        return Step(**fields)


def _view(part: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A view, also where there is nothing to see: numpy cannot cast the type of an empty axis."""
    if not part.shape[-1]:
        return np.zeros(shape, dtype)
    found = part.view(dtype)
    # Splitting the last axis of a strided array never copies.
    return found.reshape(shape, copy=False)


def _cast(part: Array, dtype: np.dtype) -> Array:
    if dtype == np.uint8:
        return part
    if dtype == np.bool_:
        return part != 0
    groups = part.reshape(*part.shape[:-1], -1, dtype.itemsize)
    return jax.lax.bitcast_convert_type(groups, jnp.dtype(dtype))
