"""Devices of a compiled run: its shards, then groups of its members."""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.core import shards
from rookery.core.errors import RunError
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig
from rookery.training.engine import Layout
from rookery.training.provenance import usable_cores
from rookery.training.state import RunState, member_infos


def claim_devices(count: int) -> None:
    """On CPUs, make JAX offer `count` devices and divide the cores' threads between them.

    XLA splits single operations between threads, which gains little where they are small; shards meet once in a
    gradient step. Shards keep a device each where there are fewer cores, so that results are equal bit for bit. A
    number of devices that is already set stays. Once JAX is in use nothing can be claimed; `grid_layout` then tells.
    """
    told = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if count < 2 or told or getattr(jax.config, "jax_num_cpu_devices", 0) > 0:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # JAX is in use with the devices that it has
    cores = int(os.environ.get("NPROC", 0)) or usable_cores()
    os.environ["NPROC"] = str(max(1, cores // count))


def grid_layout(config: RunConfig, begun: Layout | None) -> Layout:
    """How the run is laid out on the devices that there are; raises `RunError` if it was `begun` on another layout."""
    devices, platform = len(jax.devices()), jax.default_backend()
    if begun is None:
        return Layout("compiled", platform, *_grid(config, devices))
    if begun.engine != "compiled" or begun.platform != platform or begun.devices > devices:
        raise RunError(
            f"this run was begun on {begun.devices} {begun.platform} device(s), but this process has {devices} "
            f"{platform} device(s): its numbers would change. Resume it from the shell with `rookery resume`, on a "
            "machine with such devices, in a process that has not used JAX for anything else."
        )
    return begun


def _grid(config: RunConfig, devices: int) -> tuple[int, int]:
    """Groups of members, and shards, that get a device of their own."""
    columns = config.algo.collect.shards
    if columns > devices:
        return 1, 1
    return math.gcd(len(member_infos(config)), devices // columns), columns


def spread(config: RunConfig, layout: Layout) -> Program:
    """The program of a run on the devices of its layout."""
    if layout.devices == 1:
        return Program(config)
    grid = np.asarray(jax.devices()[: layout.devices]).reshape(layout.members, layout.shards)
    return Program(config, Mesh(grid, ("member", shards.AXIS)))


def placed(program: Program) -> RunState:
    """The shapes of a run's state, each with its sharding."""
    shapes = jax.eval_shape(program.init)
    if program.mesh is None:
        return shapes
    mesh = program.mesh

    def place(shape: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(place, shapes, program.specs(shapes))


def shardings(shapes: RunState) -> Any:
    """The sharding of each array of the state; None on a single device."""
    return jax.tree.map(lambda x: x.sharding, shapes) if shapes.iteration.sharding else None
