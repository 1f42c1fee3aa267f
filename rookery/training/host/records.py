"""What the compiled functions of a host run hand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt

from rookery.core.types import Action, Carry, Extra
from rookery.training.compiled.rollout import Tally

Leaves = tuple[Array, ...]
"""The arrays of a module. What is called for every row takes and returns flat tuples: modules are taken apart and put
together in Python, which took more than half of the time of a call that acts for one CartPole."""


def leaves_of(tree: Any) -> tuple[Any, ...]:
    """The arrays of a tree (or their shapes)."""
    return tuple(jax.tree.leaves(tree))


@dataclass(frozen=True)
class Parts:
    """Which arrays of a tree are handed over in calls for every row: each of them costs time, also where it is empty or
    nobody reads it."""

    tree: Any
    """The tree, of shapes."""
    kept: tuple[int, ...]

    @staticmethod
    def filled(tree: Any) -> Parts:
        """All arrays that have entries."""
        return Parts(tree, tuple(i for i, x in enumerate(jax.tree.leaves(tree)) if x.size))

    def take(self, tree: Any) -> tuple[Any, ...]:
        """The arrays of the tree that are handed over (or their shapes)."""
        leaves = jax.tree.leaves(tree)
        return tuple(leaves[i] for i in self.kept)

    def put(self, leaves: Leaves) -> Any:
        """The tree again, with zeros for what was not handed over."""
        given = dict(zip(self.kept, leaves, strict=True))
        shapes, structure = jax.tree.flatten(self.tree)
        every = (given[i] if i in given else jnp.zeros(x.shape, x.dtype) for i, x in enumerate(shapes))
        return jax.tree.unflatten(structure, every)


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
