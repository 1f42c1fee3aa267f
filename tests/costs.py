"""Counts of the work in each preset's program. No clock is read, so an accidental doubling is seen on any machine.

XLA's own cost analysis counts the body of a loop once, whatever its length: it would miss twice the epochs. So the
traced program is walked instead, every loop times its length. A loop whose length depends on data (a search that ends
with a table's last entry) counts once. Nothing is compiled.

    python tests/costs.py     # record the counts of all presets anew
"""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from screens import Screens

import rookery.algorithms
import rookery.tasks  # noqa: F401  (both fill the registries)
from rookery.core.errors import ConfigError
from rookery.core.registry import PRESETS, TASKS
from rookery.training.compiled.program import Program
from rookery.training.config import RunConfig

RECORD = Path(__file__).parent / "contracts" / "costs.json"
COMMAND = ".venv/bin/python tests/costs.py"
TASK = "mpe/simple_spread"
ALONE = "maze/gbmr"
"""For algorithms that train a single agent; those that read images have screens as large as Atari's."""


def program_of(preset: str) -> Program:
    """The program of one member, at the preset's real sizes."""
    algo = PRESETS[preset]
    tasks = {TASK: TASKS[TASK], ALONE: TASKS[ALONE], "screens": Screens(size=84, limit=1000)}
    task = next(name for name, task in tasks.items() if _accepts(algo, task))
    return Program(RunConfig(preset, task, algo, tasks[task]))


def traced_iteration(program: Program, start: Any) -> jax.stages.Traced:
    """One iteration (collect, update), traced from a state of these shapes."""
    return jax.jit(partial(program.chunk, iterations=1)).trace(start)


def costs_of(iteration: jax.stages.Traced) -> dict[str, int]:
    """What a traced iteration costs."""
    return {name: int(n) for name, n in sorted(count(iteration.jaxpr.jaxpr).items())}


def _accepts(algo: Any, task: Any) -> bool:
    try:
        algo.check(task.spec)
    except ConfigError:
        return False
    return True


def count(jaxpr: Jaxpr) -> Counter[str]:
    """FLOPs of matrix products, bytes that all operations write (before any fusion), and operations in the text."""
    total: Counter[str] = Counter()
    for eqn in jaxpr.eqns:
        inner = [count(body) for body in _bodies(eqn)]
        if not inner:
            total += _cost_of(eqn)
        elif eqn.primitive.name == "cond":
            total += max(inner, key=lambda c: c["bytes"])
        else:
            # The length of a `while` is not known: its body counts once.
            times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            for body in inner:
                total += Counter({k: n if k == "operations" else n * times for k, n in body.items()})
    return total


def _bodies(eqn: Any) -> list[Jaxpr]:
    """The programs that an operation runs: a loop's body, a branch, a called function."""
    if eqn.primitive.name == "custom_vjp_call":
        return [eqn.params["call_jaxpr"].jaxpr]
    found = [x for value in eqn.params.values() for x in (value if isinstance(value, tuple | list) else [value])]
    return [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in found if isinstance(x, ClosedJaxpr | Jaxpr)]


def _cost_of(eqn: Any) -> Counter[str]:
    written = sum(math.prod(out.aval.shape) * out.aval.dtype.itemsize for out in eqn.outvars)
    flops = 0
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        summed = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        flops = 2 * math.prod(eqn.outvars[0].aval.shape) * summed
    return Counter({"bytes": written, "flops": flops, "operations": 1})


if __name__ == "__main__":
    programs = {preset: program_of(preset) for preset in sorted(PRESETS)}
    costs = {name: costs_of(traced_iteration(p, jax.eval_shape(p.init))) for name, p in programs.items()}
    RECORD.write_text(json.dumps(costs, indent=1) + "\n")
    print(f"recorded {len(PRESETS)} presets in {RECORD}")
