"""What the compiled functions of a host run hand to each other."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, UInt

from rookery.core.types import Action, Carry, Extra
from rookery.training.compiled.rollout import Tally

Leaves = tuple[Array, ...]
"""The arrays of a module. What is called for every row takes and returns flat tuples: modules are taken apart and put
together in Python, which took more than half of the time of a call that acts for one CartPole."""


def leaves_of(tree: Any) -> tuple[Any, ...]:
    """The arrays of a tree (or their shapes)."""
    return tuple(jax.tree.leaves(tree))


class Tape(eqx.Module):
    """What acting leaves for learning, written in place row by row."""

    action: Action  # [time, member, env, agent, ...]
    extra: Extra  # [time, member, env, ...]
    carry: Carry  # [interval + 1, member, env, ...]; the last is for carries that nobody needs


class Shared(eqx.Module):
    """What acting reads of all members besides their algorithms' states."""

    key: UInt[Array, "member 2"]
    swept: dict[str, Float[Array, "member"]]
    steps: UInt[Array, "member"]
    iteration: Int[Array, ""]
    budget: Float[Array, ""]


class Acting(eqx.Module):
    """What one call of `act` hands to the next; each half of the environments has its own."""

    t: Int[Array, ""]
    """Row of the rollout."""
    half: Int[Array, ""]
    carry: Carry  # [member, env, ...]
    tape: Tape


class Progress(eqx.Module):
    """Scores and checksums of the episodes under way [member, env, ...]."""

    tally: Tally
    checksum: UInt[Array, "*member env two"]
