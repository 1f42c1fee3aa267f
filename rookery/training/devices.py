"""Which devices a run is spread over: its parts, then groups of its members."""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.core import parts
from rookery.training.config import RunConfig
from rookery.training.loop import Program, RunState, member_infos
from rookery.training.provenance import usable_cores


def spread(config: RunConfig) -> Program:
    """The program of a run on the devices that there are; too few for its parts, and they share one."""
    devices = jax.devices()
    rows, columns = _grid(config, len(devices))
    if rows * columns == 1:
        return Program(config)
    grid = np.asarray(devices[: rows * columns]).reshape(rows, columns)
    return Program(config, Mesh(grid, ("member", parts.AXIS)))


def _grid(config: RunConfig, devices: int) -> tuple[int, int]:
    """Groups of members, and parts, that get a device of their own."""
    columns = config.algo.collect.parts
    if columns > devices:
        return 1, 1
    return math.gcd(len(member_infos(config)), devices // columns), columns


def claim_cores(config: RunConfig) -> None:
    """Make cores the devices of a run in parts, one thread each; to be called before JAX is used for anything.

    XLA splits single operations between threads, which gains little where they are small; parts meet once in a
    gradient step. A number of devices that is set already stays.
    """
    columns = config.algo.collect.parts
    cores = int(os.environ.get("NPROC", 0)) or usable_cores()
    told = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if columns == 1 or cores < columns or told or getattr(jax.config, "jax_num_cpu_devices", 0) > 0:
        return
    try:
        jax.config.update("jax_num_cpu_devices", columns)
    except RuntimeError:
        return  # JAX is in use, with the devices that it has
    os.environ["NPROC"] = str(cores // columns)


def placed(program: Program) -> RunState:
    """The shapes of a run's state, each with the devices that it is spread over."""
    shapes = jax.eval_shape(program.init)
    if program.mesh is None:
        return shapes
    mesh = program.mesh

    def place(shape: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(place, shapes, program.specs(shapes))


def shardings(shapes: RunState) -> Any:
    """Where each array of the state lives; None if there is one device only."""
    return jax.tree.map(lambda x: x.sharding, shapes) if shapes.iteration.sharding else None
