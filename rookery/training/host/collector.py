"""The environments of a run while it trains: rollouts, and the way from a saved state back to running environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rookery.training.compiled.compiler import jit
from rookery.training.host.program import HostProgram
from rookery.training.host.rebuild import replay
from rookery.training.host.records import Acting, Leaves, Progress, Shared
from rookery.training.host.steppers import Stepper
from rookery.training.host.worlds import HostWorlds, Journal
from rookery.training.state import Member, member_infos

Act = Callable[[Leaves, Leaves, Leaves, np.ndarray], tuple[Leaves, Array]]
"""See `HostProgram.lowered_act`."""


class _Half:
    """Environments that are stepped together, and room for two rollouts of them."""

    def __init__(self, program: HostProgram, stepper: Stepper, index: int) -> None:
        spec, packing = program.spec, program.packing
        self.stepper = stepper
        of_run = np.arange(program.members * program.envs).reshape(program.members, program.halves, program.together)
        self.envs = of_run[:, index].reshape(-1)
        """Which environments of the run they are."""
        # Two rollouts: learning may still read one while the next is being collected.
        self._blocks = [packing.empty(program.length + 1) for _ in range(2)]
        self._rows = [packing.rows(blocks) for blocks in self._blocks]
        self.actions = np.zeros((program.length, packing.envs, spec.n_agents, *spec.action.shape), spec.action.dtype)
        self.turn()

    def turn(self) -> None:
        """Use the other rollout."""
        self._blocks.reverse()
        self._rows.reverse()
        self.blocks, self.rows = self._blocks[0], self._rows[0]


class Collector:
    """All environments of all members; `first` is the number of a member's first one in the run."""

    def __init__(self, program: HostProgram, steppers: list[Stepper], first: int = 0) -> None:
        collect, seeds = program.config.algo.collect, [info.seed for info in member_infos(program.config)]
        self.program = program
        self.journal = Journal(program.spec, seeds, collect.envs, restart=collect.restart, first=first)
        self.halves = [_Half(program, stepper, i) for i, stepper in enumerate(steppers)]
        self.resumed = ""
        """How the environments of a saved state were brought back; empty if there was none."""
        self._restart = collect.restart
        self._look = jit(program.look)
        self._checksum: np.ndarray | None = None  # of the newest state that was handed out

    @property
    def restarts(self) -> int:
        """Workers that were restarted so far."""
        return sum(half.stepper.restarts for half in self.halves)

    def close(self) -> None:
        """Close all environments."""
        for half in self.halves:
            half.stepper.close()

    def collect(
        self, act: Act, leaves: Leaves, shared: Shared, acting: tuple[Acting, ...]
    ) -> tuple[tuple[Acting, ...], tuple[np.ndarray, ...]]:
        """One rollout; returns the rows of each half as blocks [time + 1, bytes]."""
        halves, (of_state, of_shared, of_acting) = self.halves, self.program.parts
        read, fixed, now = of_state.take(leaves), of_shared.take(shared), [of_acting.take(half) for half in acting]
        for half in halves:
            half.turn()
        for t in range(self.program.length):
            for i, half in enumerate(halves):
                if t:
                    self._arrive(half, t)
                half.blocks[t] = half.stepper.block
                # The environments of the other half move while this one acts.
                now[i], action = act(read, fixed, now[i], half.blocks[t])
                half.actions[t] = action
                half.stepper.send(half.actions[t], self._next_seed(half))
        for half in halves:
            self._arrive(half, self.program.length)
            half.blocks[-1] = half.stepper.block
        self._record()
        if self._restart:
            self._begin_all()
        acted = tuple(of_acting.put(half) for half in now)
        return acted, tuple(half.blocks for half in halves)

    def _next_seed(self, half: _Half) -> np.ndarray:
        return self.journal.next_seed if len(self.halves) == 1 else self.journal.next_seed[half.envs]

    def _arrive(self, half: _Half, row: int) -> None:
        """Wait for the row, and take note of the episodes that begin with it."""
        lost = half.stepper.wait()
        if lost is not None:
            half.rows.last[row - 1, lost] = True  # as if their episodes had been cut here
        begins = half.rows.last[row - 1]
        if begins.any():
            self.journal.begin(half.envs[begins])

    def _record(self) -> None:
        if len(self.halves) == 1:
            self.journal.record(self.halves[0].rows.first, self.halves[0].actions)
            return
        order = np.argsort(np.concatenate([half.envs for half in self.halves]))
        first = np.concatenate([half.rows.first for half in self.halves], axis=1)[:, order]
        self.journal.record(first, np.concatenate([half.actions for half in self.halves], axis=1)[:, order])

    def _begin_all(self) -> None:
        """The next episode of every environment."""
        self.journal.begin(np.arange(len(self.journal.seed)))
        self.journal.count[:] = 0
        self._reset()

    def _reset(self) -> None:
        for half in self.halves:
            half.stepper.reset(self.journal.seed[half.envs])

    def begin(self) -> Progress:
        """First episodes everywhere."""
        self._reset()
        if self._restart:
            self._begin_all()
        return self._begun()

    def _begun(self) -> Progress:
        """Scores and checksums after a reset of all environments."""
        fresh = self.program.progress()
        sums = self.program.split(fresh.checksum)
        looked = [self._look(x, half.stepper.block.copy()) for x, half in zip(sums, self.halves, strict=True)]
        return Progress(fresh.tally, jnp.concatenate(looked, axis=1))

    def worlds(self, acting: tuple[Acting, ...], progress: Progress) -> HostWorlds:
        """What a state holds of the environments."""
        if self._restart:  # of what the next rollout begins with
            progress = replace(progress, checksum=self._begun().checksum)
        self._checksum = np.asarray(progress.checksum)
        carry = self.program.join([half.carry for half in acting])
        return HostWorlds(**self.journal.arrays(), checksum=progress.checksum, carry=carry, tally=progress.tally)

    # -- from a state -----------------------------------------------------------------------------------------------
    def attach(self, member: Member) -> tuple[Any, Progress]:
        """Carries and scores of the state's environments, which are rebuilt unless they are the ones that run here."""
        worlds: HostWorlds = member.worlds
        kept = worlds.carry, Progress(worlds.tally, worlds.checksum)
        here = self._checksum is not None and np.array_equal(self._checksum, np.asarray(worlds.checksum))
        if here and self.journal.holds(worlds):
            return kept
        self.journal.load(worlds)
        if self._restart:
            return worlds.carry, self._begin_again(kept[1])
        return self._rebuild(member, *kept)

    def _begin_again(self, progress: Progress) -> Progress:
        """The resets that the next rollout begins with. No episode goes on, so that nothing can be rebuilt."""
        self._reset()
        checksum, envs = self._begun().checksum, len(self.journal.seed)
        different = np.sum((np.asarray(checksum) != np.asarray(progress.checksum)).any(axis=-1))
        if different:
            self.resumed = (
                f"fresh episodes: resets of {different} of {envs} environments did not show the same observations "
                "again, though their seeds were the same"
            )
        else:
            self.resumed = (
                f"at a reset: {envs} environments showed the same first observations again; no steps were compared, so "
                "the run goes on bit for bit if its environments depend on nothing but seeds and actions"
            )
        return replace(progress, checksum=checksum)

    def _rebuild(self, member: Member, carry: Any, progress: Progress) -> tuple[Any, Progress]:
        journal, envs = self.journal, len(self.journal.seed)
        room = journal.actions.shape[1]
        long = journal.count > room
        journal.begin(np.flatnonzero(long))
        journal.count[long] = 0
        checksum = self._replay()
        same = (np.asarray(checksum) == np.asarray(progress.checksum)).all(axis=-1).reshape(-1)
        different = np.sum(~(same | long))
        if different:
            self.resumed = (
                f"fresh episodes: {different} of {envs} environments did not show the same observations again when "
                "their actions were repeated"
            )
            self._begin_all()
            return self.program.carries(member.swept, member.key), self._begun()
        if not long.any():
            self.resumed = f"bit for bit: {envs} environments repeated their actions and showed the same observations"
            return carry, progress
        self.resumed = (
            f"fresh episodes in {np.sum(long)} of {envs} environments, whose episodes had more than {room:,} actions; "
            "the others repeated theirs and showed the same observations"
        )
        keep = ~long.reshape(checksum.shape[:2])
        tally = jax.tree.map(lambda x: x * keep.reshape(*keep.shape, *(1,) * (x.ndim - 2)), progress.tally)
        return carry, Progress(tally, checksum)

    def _replay(self) -> Array:
        """Repeat the actions of all environments; returns the checksums of what they showed."""
        journal, sums = self.journal, list(self.program.split(self.program.progress().checksum))
        for i, half in enumerate(self.halves):

            def look(block: np.ndarray, i: int = i) -> None:
                sums[i] = self._look(sums[i], block.copy())

            replay(half.stepper, journal.seed[half.envs], journal.actions[half.envs], journal.count[half.envs], look)
        return jnp.concatenate(sums, axis=1)
