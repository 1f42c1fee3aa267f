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


def claim_devices(config: RunConfig) -> None:
    """On CPUs, a device for each part, and as many threads for all as there are cores; before JAX is used for anything.

    XLA splits single operations between threads, which gains little where they are small; parts meet once in a
    gradient step. Parts keep a device each where there are fewer cores: results are then the same to the bit. A
    number of devices that is set already stays.
    """
    count = config.algo.collect.parts
    told = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if count < 2 or told or getattr(jax.config, "jax_num_cpu_devices", 0) > 0:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # JAX is in use, with the devices that it has
    cores = int(os.environ.get("NPROC", 0)) or usable_cores()
    os.environ["NPROC"] = str(max(1, cores // count))


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
