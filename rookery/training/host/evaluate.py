"""Episodes on environments of their own."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rookery.core.errors import TrainingError
from rookery.core.keys import stream
from rookery.core.types import Action, Arrays, Carry, Clock, Step
from rookery.training.compiled.compiler import Executable, jit
from rookery.training.compiled.program import over_members
from rookery.training.compiled.rollout import LONGEST
from rookery.training.host.packing import Packing
from rookery.training.host.program import HostProgram, playable
from rookery.training.host.records import Leaves, leaves_of
from rookery.training.host.steppers import Stepper
from rookery.training.host.worlds import mix
from rookery.training.state import Episodes

When = tuple[Array, Array, Array]
"""Iteration, steps of each member, budget."""
_LOSSES = 3  # times that one episode may begin again
_OPEN = zlib.crc32(b"open")


class Player:
    """Plays every member's policy side by side. Environments are opened at the first call, and stay open."""

    def __init__(self, program: HostProgram, open_envs: Callable[[Packing], Stepper]) -> None:
        self._program, self._open_envs = program, open_envs
        self._episodes, self._greedy = program.config.evaluation.episodes, not program.config.evaluation.sampled
        self._packing = Packing(program.spec, program.members * self._episodes)
        self._stepper: Stepper | None = None
        self._acts: dict[bool, Executable] = {}
        self._carry = jit(self.carry)

    @property
    def restarts(self) -> int:
        """Workers that were restarted so far."""
        return self._stepper.restarts if self._stepper is not None else 0

    def carry(self, swept: Any, keys: Array) -> Carry:
        """Fresh carries of all members."""
        program, episodes = self._program, self._episodes
        return over_members(lambda swept, _: program.algo(swept).carry(program.spec, episodes), swept, keys)

    def act(
        self, source: Arrays, now: tuple[Carry, Array], swept: Any, keys: Array, when: When, row: Array, live: bool
    ) -> tuple[tuple[Carry, Array], Action]:
        """Actions for one row, as the environments take them. `source`: policies, or (`live`) whole states."""
        program, (carry, t), (iteration, taken, budget) = self._program, now, when
        step = self._packing.step(row, members=program.members)

        def one(source: Arrays, carry: Carry, swept: Any, key: Array, steps: Array, step: Step) -> tuple[Carry, Action]:
            clock = Clock(iteration, steps, budget)
            key = stream(key, "act", t)
            algo = program.algo(swept)
            policy = algo.policy(source) if live else source
            carry, action, _ = algo.act(program.spec, policy, carry, step, clock, key, greedy=self._greedy)
            return carry, action

        carry, action = over_members(one, source, carry, swept, keys, taken, step)
        return (carry, t + 1), playable(program.spec.action, action, step.legal).reshape(-1, *action.shape[2:])

    def trace(self) -> None:
        """Trace what playing computes, abstractly."""
        jax.eval_shape(partial(self.act, live=True), *self._arguments(live=True))

    def executable(self, *, live: bool = True) -> Executable:
        """`act` for the states of a run, or for policies, of flat tuples: what stays the same, what acting returns."""
        if live not in self._acts:
            source, now, *others, row = self._arguments(live=live)
            of_fixed, of_now = jax.tree.structure((source, *others)), jax.tree.structure(now)

            def act(fixed: Leaves, now: Leaves, row: Array) -> tuple[Leaves, Action]:
                source, swept, keys, when = jax.tree.unflatten(of_fixed, fixed)
                after, action = self.act(source, jax.tree.unflatten(of_now, now), swept, keys, when, row, live=live)
                return leaves_of(after), action

            flat = leaves_of((source, *others)), leaves_of(now), row
            self._acts[live] = Executable(jit(act, donate_argnums=1).lower(*flat))
        return self._acts[live]

    def _arguments(self, *, live: bool) -> tuple[Any, ...]:
        """Shapes of what `act` is given."""
        state = self._program.shapes
        m, row = state.members, jax.ShapeDtypeStruct((self._packing.nbytes,), jnp.uint8)
        now = jax.eval_shape(self.carry, m.swept, m.key), jax.ShapeDtypeStruct((), jnp.int32)
        when = (state.iteration, m.steps, state.budget)
        return m.algo if live else m.best, now, m.swept, m.key, when, row

    def play(
        self,
        source: Arrays,
        swept: Any,
        keys: Array,
        when: When,
        *,
        live: bool = False,
        plays: np.ndarray | None = None,
        seconds: float = float("inf"),
    ) -> Episodes:
        """Episodes of every member [member, episode, ...]; see `act`. Start states depend on the member's key only.

        Episodes of members that `plays` leaves out are not waited for. What is not over after so many seconds is cut.
        """
        program, spec = self._program, self._program.spec
        stepper = self._stepper = self._stepper or self._open_envs(self._packing)
        words = np.asarray(keys).astype(np.uint64)
        seeds = mix(_OPEN, words[:, :1], words[:, 1:], np.arange(self._episodes)).reshape(-1)
        rows, n = stepper.rows, self._packing.envs
        returns, length = np.zeros((n, spec.n_agents), np.float32), np.zeros(n, np.int32)
        success, going = np.zeros(n, np.float32), np.ones(n, bool)
        if plays is not None:
            going = np.repeat(plays, self._episodes)
        fixed = leaves_of((source, swept, keys, when))
        now = leaves_of((self._carry(swept, keys), jnp.int32(0)))
        act = self.executable(live=live)
        stepper.reset(seeds)
        end = time.perf_counter() + seconds
        left, losses = np.full(n, spec.limit or LONGEST), np.zeros(n, int)
        while (going & (left > 0)).any():
            # A copy: the device may still read it when the environments have moved on.
            now, action = act(fixed, now, stepper.block.copy())
            stepper.send(np.asarray(action), seeds)
            lost = stepper.wait()
            left -= 1
            if lost is not None:  # their episodes begin again, and last as long as others
                again = lost & going
                returns[again], length[again], left[again] = 0.0, 0, spec.limit or LONGEST
                losses += again
                if losses.max() > _LOSSES:
                    raise TrainingError(
                        f"an episode of an evaluation on {spec.name} was lost {losses.max()} times with its worker. "
                        "Train with --workers.on-failure stop to see why."
                    )
            # Environments whose episode is over play on; what they do is not counted.
            returns[going] += rows.reward[going]
            length += going & ~rows.first
            success[going] = rows.success[going]
            going &= ~rows.last
            if time.perf_counter() > end:
                break
        played = {"returns": returns, "length": length, "success": success}
        shape = (program.members, self._episodes)
        return {name: jnp.asarray(x.reshape(*shape, *x.shape[1:])) for name, x in played.items()}

    def close(self) -> None:
        """Close the environments."""
        if self._stepper is not None:
            self._stepper.close()
