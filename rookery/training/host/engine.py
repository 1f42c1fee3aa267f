"""Environments in numpy around a compiled policy and learner."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from rookery.core.errors import RunError
from rookery.core.host import HostTask
from rookery.core.keys import stream
from rookery.core.types import Arrays
from rookery.training.compiled.compiler import jit
from rookery.training.config import RunConfig
from rookery.training.engine import Layout, Timing
from rookery.training.host.collector import Collector
from rookery.training.host.evaluate import Player
from rookery.training.host.packing import Packing
from rookery.training.host.program import Acting, HostProgram, Progress
from rookery.training.host.steppers import InProcess, Stepper
from rookery.training.state import ChunkReport, Episodes, Member, Policies, RunState, iterations_per_chunk


class HostEngine:
    """See `Engine`. Environments are opened when they are first needed."""

    def __init__(self, config: RunConfig, begun: Layout | None = None) -> None:
        self.config = config
        self.layout = _layout(begun)
        self.program = program = HostProgram(config)
        self.shapes: RunState = jax.eval_shape(program.init)
        self.notes: tuple[str, ...] = ()
        self._player = Player(program, self._open)
        self._tape: Any = None
        self._act = jit(program.act, donate_argnums=1)
        self._learn = jit(program.learn, donate_argnums=(0, 1, 2))
        self._report = jit(program.report, once=True)
        self._keep_best = jit(program.keep_best, once=True)
        self._policies = jax.jit(program.policies)

    def _open(self, packing: Packing) -> Stepper:
        return InProcess(cast(HostTask, self.config.task), packing)

    @cached_property
    def _collector(self) -> Collector:
        return Collector(self.program, self._open(self.program.packing))

    def prepare(self, *, fresh: bool, iterations: int = 0) -> None:
        """Open the environments."""
        _ = self._collector

    def init(self) -> RunState:
        """A fresh state."""
        state = jit(self.program.init, once=True)()
        progress = self._collector.begin()
        return self._state(state.members, state.members.algo, self._acting(state, state.members.worlds.carry), progress)

    def restore(self, state: RunState) -> RunState:
        """The state with environments that run: those of a saved one are rebuilt."""
        carry, progress = self._collector.attach(state.members)
        if self._collector.resumed.startswith("fresh"):
            self.notes += (f"Not resumed bit for bit: {self._collector.resumed}.",)
        return self._state(state.members, state.members.algo, self._acting(state, carry), progress)

    def chunk(self, state: RunState, iterations: int = 0) -> tuple[RunState, ChunkReport]:
        """Iterations of every member; 0: as many as training takes at once."""
        carry, progress = self._collector.attach(state.members)
        acting = self._acting(state, carry)
        leaves = tuple(jax.tree.leaves(state.members.algo))
        found = []
        for _ in range(iterations or iterations_per_chunk(self.config)):
            acting, rows = self._collector.collect(self._act, leaves, acting)
            leaves, acting, progress, report = self._learn(leaves, acting, progress, rows)
            found.append(report)
        report = self._report(jax.tree.map(lambda *x: jnp.stack(x), *found))
        return self._state(state.members, jax.tree.unflatten(self.program.structure, leaves), acting, progress), report

    def evaluate(self, state: RunState) -> tuple[RunState, Episodes]:
        """Greedy episodes of every member; the state keeps each member's best policy."""
        m = state.members
        keys = jnp.stack([stream(key, "evaluate", state.iteration) for key in m.key])
        when = (state.iteration, m.steps, state.budget)
        episodes = self._player.play(m.algo, m.swept, keys, when, live=True)
        best = self._keep_best(replace(m, worlds=()), episodes)
        return eqx.tree_at(lambda s: (s.members.best, s.members.best_score), state, best), episodes

    def policies(self, state: RunState) -> Policies:
        """Everything that acting needs of the state."""
        return self._policies(replace(state, members=replace(state.members, worlds=())))

    def play(self, policies: Policies, keys: Array) -> dict[str, Episodes]:
        """Greedy episodes of every member's last and best policy."""
        when = (policies.iteration, policies.steps, policies.budget)
        sources = {"last": policies.last, "best": policies.best}
        return {name: self._player.play(source, policies.swept, keys, when) for name, source in sources.items()}

    def profile(self) -> list[Timing]:
        """Seconds of the pieces of one iteration."""
        return []

    def record(self) -> dict[str, Any]:
        """The device, and how environments are stepped and were brought back."""
        device = jax.devices()[0]
        facts: dict[str, Any] = {"devices": [f"{device.platform}:{device.id} {device.device_kind}"]}
        if "_collector" in vars(self) and self._collector.resumed:
            facts["environments_resumed"] = self._collector.resumed
        return facts

    def close(self) -> None:
        """Close all environments."""
        self._player.close()
        if "_collector" in vars(self):
            self._collector.stepper.close()

    def _acting(self, state: RunState, carry: Any) -> Acting:
        # Donated to every call and handed back; made anew if a call failed.
        tape, self._tape = self.program.tape() if self._tape is None else self._tape, None
        m = state.members
        return Acting(m.key, m.swept, m.steps, state.iteration, state.budget, jnp.int32(0), carry, tape)

    def _state(self, before: Member, algo: Arrays, acting: Acting, progress: Progress) -> RunState:
        self._tape = acting.tape
        worlds = self._collector.worlds(acting, progress)
        members = Member(acting.key, acting.swept, algo, worlds, acting.steps, before.best, before.best_score)
        return RunState(members, acting.iteration, acting.budget)


def _layout(begun: Layout | None) -> Layout:
    here = Layout("host", jax.default_backend(), 1, 1)
    if begun is not None and begun != here:
        raise RunError(
            f"this run was begun on {begun.engine} {begun.platform}, but this process computes on {here.platform}: its "
            "numbers would change. Resume it on a machine with such a device."
        )
    return here


def trace_host(config: RunConfig) -> None:
    """Trace everything that the run computes, abstractly."""
    program = HostProgram(config)
    state = jax.eval_shape(program.init)
    leaves = tuple(jax.tree.leaves(state.members.algo))
    acting = jax.eval_shape(program.acting, state)
    row = jax.ShapeDtypeStruct((program.packing.nbytes,), jnp.uint8)
    rows = jax.ShapeDtypeStruct((program.length + 1, program.packing.nbytes), jnp.uint8)
    jax.eval_shape(program.act, leaves, acting, row)
    jax.eval_shape(program.learn, leaves, acting, jax.eval_shape(program.progress), rows)
    player = Player(program, lambda packing: InProcess(cast(HostTask, config.task), packing))
    player.trace(state)
