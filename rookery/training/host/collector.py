"""The environments of a run while it trains: rollouts, and the way from a saved state back to running environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rookery.training.compiled.compiler import jit
from rookery.training.host.program import Acting, HostProgram, Leaves, Progress
from rookery.training.host.rebuild import replay
from rookery.training.host.steppers import Stepper
from rookery.training.host.worlds import HostWorlds, Journal
from rookery.training.state import Member, member_infos

Act = Callable[[Leaves, Acting, np.ndarray], tuple[Acting, Array]]


class Collector:
    """All environments of all members, moved together."""

    def __init__(self, program: HostProgram, stepper: Stepper) -> None:
        spec, collect, packing = program.spec, program.config.algo.collect, program.packing
        self.program, self.stepper = program, stepper
        self.resumed = ""
        """How the environments of a saved state were brought back; empty if there was none."""
        self.journal = Journal(
            spec, [info.seed for info in member_infos(program.config)], collect.envs, restart=collect.restart
        )
        # Two rollouts: learning may still read one while the next is being collected.
        self._blocks = [packing.empty(program.length + 1) for _ in range(2)]
        self._rows = [packing.rows(blocks) for blocks in self._blocks]
        self._actions = np.zeros((program.length, packing.envs, spec.n_agents, *spec.action.shape), spec.action.dtype)
        self._restart = collect.restart
        self._look = jit(program.look)
        self._checksum: np.ndarray | None = None  # of the newest state that was handed out

    def collect(self, act: Act, leaves: Leaves, acting: Acting) -> tuple[Acting, np.ndarray]:
        """One rollout; returns its rows as blocks [time + 1, bytes]."""
        stepper, journal, actions = self.stepper, self.journal, self._actions
        self._blocks.reverse()
        self._rows.reverse()
        blocks, rows = self._blocks[0], self._rows[0]
        if self._restart:
            self._begin_all()
        block, last = stepper.block, stepper.rows.last
        for t in range(self.program.length):
            blocks[t] = block
            acting, action = act(leaves, acting, blocks[t])
            actions[t] = action
            begins = last.copy()
            lost = stepper.step(actions[t], journal.next_seed)
            if lost is not None:
                rows.last[t, lost] = True  # as if the episode had been cut here
                begins |= lost
            if begins.any():
                journal.begin(begins)
        blocks[-1] = block
        journal.record(rows.first, actions)
        return acting, blocks

    def _begin_all(self) -> None:
        self.journal.begin(np.ones(self.program.packing.envs, bool))
        self.journal.count[:] = 0
        self.stepper.reset(self.journal.seed)

    def begin(self) -> Progress:
        """First episodes everywhere."""
        self.stepper.reset(self.journal.seed)
        return self._begun()

    def _begun(self) -> Progress:
        """Scores and checksums after a reset of all environments."""
        fresh = self.program.progress()
        return Progress(fresh.tally, self._look(fresh.checksum, self.stepper.block.copy()))

    def worlds(self, acting: Acting, progress: Progress) -> HostWorlds:
        """What a state holds of the environments."""
        self._checksum = np.asarray(progress.checksum)
        return HostWorlds(**self.journal.arrays(), checksum=progress.checksum, carry=acting.carry, tally=progress.tally)

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
            self.resumed = "every rollout begins with a reset"
            return kept
        return self._rebuild(member, *kept)

    def _rebuild(self, member: Member, carry: Any, progress: Progress) -> tuple[Any, Progress]:
        journal, envs = self.journal, self.program.packing.envs
        long = journal.count > journal.actions.shape[1]
        if long.any():
            journal.begin(long)
            journal.count[long] = 0
        checksum = np.asarray(self._replay())
        shape = checksum.shape[:2]
        same = (checksum == np.asarray(progress.checksum)).all(axis=-1).reshape(-1)
        if not (same | long).all():
            self.resumed = (
                f"fresh episodes: {np.sum(~(same | long))} of {envs} environments did not show the same "
                "observations again when their actions were repeated"
            )
            self._begin_all()
            return self.program.carries(member.swept, member.key), self._begun()
        if not long.any():
            self.resumed = f"bit for bit: {envs} environments repeated their actions and showed the same observations"
            return carry, progress
        self.resumed = (
            f"fresh episodes in {np.sum(long)} of {envs} environments, whose episodes had more than "
            f"{journal.actions.shape[1]:,} actions; the others repeated theirs and showed the same observations"
        )
        begun = jnp.asarray(long.reshape(shape))
        tally = eqx.tree_at(
            lambda t: (t.returns, t.length),
            progress.tally,
            (
                jnp.where(begun[..., None], 0.0, progress.tally.returns),
                jnp.where(begun, 0, progress.tally.length),
            ),
        )
        return carry, Progress(tally, jnp.asarray(checksum))

    def _replay(self) -> Array:
        """Repeat the actions of all environments; returns the checksums of what they showed."""
        checksum = self.program.progress().checksum

        def look(block: np.ndarray) -> None:
            nonlocal checksum
            checksum = self._look(checksum, block.copy())

        journal = self.journal
        replay(self.stepper, journal.seed, journal.actions, journal.count, look)
        return checksum
