"""How speed and memory grow: with seeds, agents, environments, shards, replayed episodes and the length of a run.

    python benchmarks/scaling.py [--only seeds agents envs shards replay length] [--out FILE]

Every figure comes from a process of its own. Rates are environment steps per second of all members together, learning
included, after compiling.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from common import Row, add_out, save

SPREAD = "mpe/simple_spread"


def rate(
    preset: str,
    task: str = SPREAD,
    seeds: int = 1,
    seconds: float = 5.0,
    iterations: int = 10,
    *,
    full: bool = False,
    **values: Any,
) -> dict[str, Any]:
    """Steps per second of one process over `seconds`, so many iterations at once (as in training), and peak memory.

    With `full`, all slots of the memory are in use from the start.
    """
    import jax

    import rookery
    from rookery.training.compiled.compiler import use_compilation_cache
    from rookery.training.engine import open_engine

    use_compilation_cache()
    config = rookery.config(preset, task, seeds=seeds, **values)
    engine = open_engine(config)
    state = fill_memory(engine.init()) if full else engine.init()
    # A store must hold enough to learn from before the clock starts.
    for _ in range(2 + -(-config.algo.warmup() // iterations)):
        state, _ = engine.chunk(state, iterations)
    before, start = int(state.members.steps.sum()), time.perf_counter()
    while time.perf_counter() - start < seconds:
        state, report = engine.chunk(state, iterations)
        jax.block_until_ready(report)
    steps = int(state.members.steps.sum()) - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"steps_per_second": round(steps / (time.perf_counter() - start)), "peak_mib": peak}


def fill_memory(state: Any) -> Any:
    """The state with all slots of its memory in use, as late in a long run; a state without a memory as it is."""
    import equinox as eqx
    import jax

    where = _memory_of(state.members.algo)
    if where is None:
        return state
    memory = where(state.members.algo)
    axes = memory.merges.ndim  # members
    filled = in_use
    for _ in range(axes):
        filled = jax.vmap(filled)
    return eqx.tree_at(lambda s: where(s.members.algo), state, filled(memory))


def _memory_of(algo: Any) -> Callable[[Any], Any] | None:
    """Where the state of an algorithm has its memory: a memory agent's own, or what a value network is told by."""
    if hasattr(algo, "view"):
        return lambda algo: algo.view.memory
    return (lambda algo: algo.remembered.memory) if getattr(algo, "remembered", None) is not None else None


def in_use(memory: Any) -> Any:
    """The memory with random entries in all slots: keys, values, visits, and for graphs edges between random nodes."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from rookery.memory.graph import TERMINAL, GraphState

    a, b, c, d = jax.random.split(jax.random.PRNGKey(0), 4)
    keys = jax.random.normal(a, memory.keys.shape)
    norms, slots = jnp.sum(jnp.square(keys), axis=-1), memory.norms.shape[-1]
    if not isinstance(memory, GraphState):
        values, visits = jax.random.normal(b, memory.values.shape), jnp.ones_like(memory.visits)
        hashes = jax.random.bits(c, memory.hashes.shape, memory.hashes.dtype)
        return eqx.tree_at(
            lambda m: (m.keys, m.norms, m.hashes, m.values, m.visits, m.count),
            memory,
            (keys, norms, hashes, values, visits, jnp.full_like(memory.count, slots)),
        )
    norms = norms.at[TERMINAL].set(jnp.inf)  # it has no key
    shape, real = memory.edges.next.shape, memory.q_visits.at[...].set(1).at[TERMINAL].set(0)
    next = jax.random.randint(b, shape, 0, slots).at[TERMINAL].set(-1)
    into = jnp.zeros(slots, jnp.int32).at[jnp.where(next < 0, slots, next)].add(1, mode="drop")
    edges = eqx.tree_at(
        lambda e: (e.next, e.action, e.visits),
        memory.edges,
        (next, jax.random.randint(c, shape, 0, memory.q.shape[1]), jnp.ones(shape, jnp.int32)),
    )
    return eqx.tree_at(
        lambda m: (m.keys, m.norms, m.visits, m.q, m.q_visits, m.in_degree, m.edges, m.nodes, m.edge_count),
        memory,
        (
            *(keys, norms, jnp.ones(slots, jnp.int32)),
            *(jax.random.normal(d, memory.q.shape).at[TERMINAL].set(0.0), real, into, edges),
            *(jnp.int32(slots - 1), jnp.sum(next >= 0, dtype=jnp.int32)),
        ),
    )


def episode_bytes(preset: str, task: str) -> dict[str, Any]:
    """Bytes of one stored sequence, and of the whole store."""
    import jax

    import rookery
    from rookery.training.engine import open_engine

    config = rookery.config(preset, task)
    store = config.algo.stores(open_engine(config).shapes.members.algo)
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(store))
    capacity = config.algo.replay.capacity
    return {"bytes_per_sequence": total // capacity, "store_mib": round(total / 2**20, 1)}


def long_run(preset: str, task: str, steps: int) -> dict[str, Any]:
    """Rates of the first and of the last tenth of one long run, its first chunk left out."""
    import tempfile

    import rookery

    with tempfile.TemporaryDirectory() as folder:
        run = rookery.train(rookery.config(preset, task, steps=steps, **{"evaluation.episodes": 4}), out=folder)
        timing = run.timing().sort("chunk")[1:]
    tenth = max(1, len(timing) // 10)
    ends = {"first": timing[:tenth], "last": timing[-tenth:]}
    rates = {name: round(rows["steps"].sum() / rows["seconds"].sum()) for name, rows in ends.items()}
    return {**rates, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


WORK: dict[str, Callable[..., dict[str, Any]]] = {"rate": rate, "episode_bytes": episode_bytes, "long_run": long_run}


def apart(work: str, threads: int = 0, **request: Any) -> subprocess.Popen[str]:
    """Start one measurement in a process of its own, with so many threads (0: as many as there are cores)."""
    command = [sys.executable, __file__, "--work", json.dumps([work, request])]
    env = {**os.environ, "NPROC": str(threads)} if threads else None
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What that process measured."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a measurement failed with code {process.returncode}.")
    return json.loads(out.splitlines()[-1])


def by_seeds() -> list[Row]:
    """Seeds in one program, and the same number in processes side by side (as many at a time as there are cores)."""
    found: list[Row] = []
    cores = os.cpu_count() or 1
    for preset in ("mappo", "qmix", "mappo_jaxmarl"):
        for seeds in (1, 4, 16):
            alone = answer(apart("rate", preset=preset, seeds=seeds))
            found.append({"preset": preset, "seeds": seeds, "way": "one program", **alone})
        # More processes than cores wait for each other: the rate of a full machine is the rate of any number of seeds.
        rates = [answer(p) for p in [apart("rate", preset=preset) for _ in range(cores)]]
        together = {k: sum(r[k] for r in rates) for k in rates[0]}
        found.append({"preset": preset, "seeds": cores, "way": "a process each", **together})
    return found


def by_agents() -> list[Row]:
    maps = ("3m", "8m", "25m", "27m_vs_30m")
    return [
        {"preset": "mappo", "task": f"smax/{m}"} | answer(apart("rate", preset="mappo", task=f"smax/{m}", seconds=10.0))
        for m in maps
    ]


def by_envs() -> list[Row]:
    counts = (1, 4, 16, 64, 256, 1024, 4096)
    request = {"preset": "mappo", "algo.minibatches": 1, "iterations": 1}
    return [
        {"preset": "mappo", "envs": n, **answer(apart("rate", **request, **{"algo.collect.envs": n}))} for n in counts
    ]


def by_shards() -> list[Row]:
    """One seed on all cores: by XLA's threads, by one thread, and in a shard for each core."""
    cores = os.cpu_count() or 1
    cells = [(p, t) for p in ("mappo", "qmix") for t in (SPREAD, "smax/2s3z")]
    cells += [("ippo_jaxmarl", SPREAD), ("mappo_jaxmarl", SPREAD), ("mappo_onpolicy", SPREAD)]
    ways = {f"1 shard, {cores} threads": (cores, 1), "1 shard, 1 thread": (1, 1), f"{cores} shards": (cores, cores)}
    return [
        {"preset": p, "task": t, "way": way}
        | answer(apart("rate", threads, preset=p, task=t, **{"algo.collect.shards": shards}))
        for p, t in cells
        for way, (threads, shards) in ways.items()
    ]


def by_replay() -> list[Row]:
    cells = [(p, t) for p in ("qmix", "qmix_pymarl") for t in (SPREAD, "smax/3m", "smax/27m_vs_30m")]
    return [{"preset": p, "task": t, **answer(apart("episode_bytes", preset=p, task=t))} for p, t in cells]


def by_length() -> list[Row]:
    steps = 5_000_000
    return [
        {"preset": preset, "steps": steps, **answer(apart("long_run", preset=preset, task=SPREAD, steps=steps))}
        for preset in ("mappo", "qmix")
    ]


QUESTIONS = {
    "seeds": by_seeds,
    "agents": by_agents,
    "envs": by_envs,
    "shards": by_shards,
    "replay": by_replay,
    "length": by_length,
}


def main() -> None:
    """Answer the chosen questions, one JSON line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    add_out(parser)
    parser.add_argument("--work", help=argparse.SUPPRESS)  # one measurement in this process
    given = parser.parse_args()
    if given.work:
        work, request = json.loads(given.work)
        print(json.dumps(WORK[work](**request)))
        return
    for question in given.only:
        rows = QUESTIONS[question]()
        print("\n".join(json.dumps(row) for row in rows), flush=True)
        save(given.out, question, rows)


if __name__ == "__main__":
    main()
