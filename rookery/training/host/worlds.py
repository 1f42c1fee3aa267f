"""What a checkpoint holds of environments that live outside XLA: each episode's seed and its actions so far."""

from __future__ import annotations

import zlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from rookery.core.types import Carry, Spec, Step
from rookery.training.compiled.rollout import LONGEST, Tally

_LOG_BYTES = 64 << 20  # of all environments together, where a task has no step limit
_TRAIN = zlib.crc32(b"train")


class HostWorlds(eqx.Module):
    """Environments between two steps [env, ...]: a reset from `seed` and `actions` bring them to where they were."""

    episode: UInt32[Array | np.ndarray, "*member env"]
    """Episodes that were begun before the one under way."""
    seed: UInt32[Array | np.ndarray, "*member env"]
    """Of the episode under way."""
    count: Int[Array | np.ndarray, "*member env"]
    """Actions since its reset; if there are more than `actions` can hold, the episode cannot be rebuilt."""
    actions: Any  # [env, capacity, agent, ...]
    checksum: UInt32[Array, "*member env two"]
    """Of everything that was seen since the reset; if every rollout begins with one, of what the next one showed."""
    carry: Carry
    tally: Tally


def capacity(spec: Spec, envs: int, *, restart: bool) -> int:
    """Actions that are kept of each of `envs` environments; none if every rollout begins with a reset."""
    if restart:
        return 0
    if spec.limit:
        return spec.limit
    one = spec.n_agents * int(np.prod(spec.action.shape)) * spec.action.dtype.itemsize
    return max(1, min(LONGEST, _LOG_BYTES // (envs * one)))


def digest(step: Step) -> UInt32[Array, "*b two"]:
    """A number for everything in a row of one environment."""
    batch = step.first.shape
    total = jnp.zeros((*batch, 2), jnp.uint32)
    for place, leaf in enumerate(jax.tree.leaves(step)):
        total = total + _digest(leaf.reshape(*batch, -1), place)
    return total


def fold(
    checksum: UInt32[Array, "*b two"], digests: UInt32[Array, "*b two"], first: Bool[Array, "*b"]
) -> UInt32[Array, "*b two"]:
    """The checksum with one more row in it. A row with `first` begins anew."""
    before = jnp.where(first[..., None], jnp.uint32(0), checksum)
    # Multiplication by an odd number loses nothing, so an earlier row still shows after any number of rows.
    mixed = before * jnp.asarray([0x9E3779B1, 0x85EBCA77], jnp.uint32) + digests
    return mixed ^ (mixed >> 15)


def _digest(x: Array, place: int) -> UInt32[Array, "*b two"]:
    """A sum of the entries' scrambled words, and one in which each is multiplied by an odd number of its own."""
    words = _words(x)
    index = jnp.arange(words.shape[-1], dtype=jnp.uint32) + jnp.uint32(place * 0x01000193 + 1)
    mixed = _scramble(words + _scramble(index))
    return jnp.stack([jnp.sum(mixed, axis=-1), jnp.sum(mixed * (index * 2 + 1), axis=-1)], axis=-1)


def _words(x: Array) -> UInt32[Array, "*b n"]:
    """The entries' bits; four bytes are one word, because of images every pixel is read for every row."""
    if x.dtype == jnp.uint8 and x.shape[-1] % 4 == 0:
        return jax.lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, 4), jnp.uint32)
    return jax.lax.bitcast_convert_type(x, jnp.uint32) if x.dtype == jnp.float32 else x.astype(jnp.uint32)


def _scramble(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def mix(*words: Any) -> np.ndarray:
    """A number below 2**31 for every tuple of words (broadcast): seeds that depend on nothing but the words."""
    state = np.zeros(np.broadcast_shapes(*(np.shape(word) for word in words)), np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            # The finalizer of splitmix64, by Steele, Lea and Flood.
            state = (state ^ np.asarray(word, np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return np.asarray(state >> np.uint64(33), np.uint32)


class Journal:
    """The episodes of all environments of a run [member * env]: seeds, and the actions that led to where they are."""

    def __init__(self, spec: Spec, seeds: list[int], envs: int, *, restart: bool, first: int = 0) -> None:
        n = len(seeds) * envs
        shape = (n, capacity(spec, n, restart=restart), spec.n_agents, *spec.action.shape)
        self._seed, self._env = np.repeat(np.asarray(seeds, np.uint64), envs), np.tile(np.arange(envs), len(seeds))
        self._env += first
        self._members = len(seeds)
        self.episode, self.count = np.zeros(n, np.uint32), np.zeros(n, np.int32)
        self.actions = np.zeros(shape, spec.action.dtype)
        self.seed = self._seeds(self.episode)
        self.next_seed = self._seeds(self.episode + 1)

    def _seeds(self, episode: np.ndarray) -> np.ndarray:
        return mix(_TRAIN, self._seed, self._env, episode)

    def begin(self, which: np.ndarray) -> None:
        """These environments [env] have begun their next episode."""
        self.episode[which] += 1
        self.seed[which] = self.next_seed[which]
        self.next_seed[which] = mix(_TRAIN, self._seed[which], self._env[which], self.episode[which] + 1)

    def open_at(self, episode: np.ndarray) -> None:
        """Let these episodes [env] be the ones under way."""
        self.episode[:], self.count[:] = episode, 0
        self.seed, self.next_seed = self._seeds(self.episode), self._seeds(self.episode + 1)

    def record(self, first: np.ndarray, actions: np.ndarray) -> None:
        """Take in a rollout: `first` of its rows [time + 1, env] and its actions [time, env, ...]."""
        room, time = self.actions.shape[1], actions.shape[0]
        if not room:
            return
        reset = first[1:].any(axis=0)
        start = np.where(reset, time - np.argmax(first[:0:-1], axis=0), 0)  # the row of the newest reset
        self.count[reset] = 0
        for env, (begin, count) in enumerate(zip(start.tolist(), self.count.tolist(), strict=True)):
            kept = min(time - begin, max(room - count, 0))
            self.actions[env, count : count + kept] = actions[begin : begin + kept, env]
        self.count += (time - start).astype(np.int32)

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of the journal's share of `HostWorlds` [member, env, ...]."""
        fields = {"episode": self.episode, "seed": self.seed, "count": self.count, "actions": self.actions}
        return {
            name: x.reshape(self._members, len(x) // self._members, *x.shape[1:]).copy() for name, x in fields.items()
        }

    def load(self, worlds: HostWorlds) -> None:
        """Go on from a state."""
        for name in ("episode", "seed", "count", "actions"):
            own: np.ndarray = getattr(self, name)
            own[...] = np.asarray(getattr(worlds, name)).reshape(own.shape)
        self.next_seed = self._seeds(self.episode + 1)

    def holds(self, worlds: HostWorlds) -> bool:
        """Whether the state is the journal's own."""
        return all(
            np.array_equal(getattr(self, name), np.asarray(getattr(worlds, name)).reshape(-1))
            for name in ("episode", "seed", "count")
        )
