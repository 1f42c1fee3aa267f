"""Playing host tasks beside the raw environments, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rookery.core.host import HostEnvs, Rows, empty_rows
from rookery.core.types import Spec
from rookery.tasks.host.base import EXTRAS


def need(*packages: str) -> None:
    """Skip, naming the extra, unless the packages are installed."""
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'rookery[{EXTRAS[package]}]'")


def random_action(spec: Spec, legal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Uniformly random legal actions [env, agent, ...]."""
    shape = (*legal.shape[:2], *spec.action.shape)
    if spec.action.kind == "box":
        low, high = (np.clip(bound, -10, 10) for bound in spec.action.bounds)
        return rng.uniform(np.broadcast_to(low, shape), np.broadcast_to(high, shape)).astype(np.float32)
    if spec.action.kind == "multi_binary":
        return rng.random(shape) < 0.5
    parts = np.split(legal, np.cumsum(spec.action.sizes)[:-1], axis=-1)
    chosen = [np.argmax(np.where(part, rng.random(part.shape), -1), axis=-1) for part in parts]
    return np.stack(chosen, axis=-1).astype(np.int32).reshape(shape)


class Player:
    """One environment behind rows; episode k has seed `seed + k`."""

    def __init__(self, task: Any, seed: int = 100, prefer: range = range(0)) -> None:
        self.spec: Spec = task.spec
        self.envs: HostEnvs = task.open(1)
        self.rows = empty_rows(self.spec, 1)
        self.seed, self.rng, self.prefer = seed, np.random.default_rng(seed), prefer
        self.envs.reset(np.array([seed]), self.rows)

    def walk(self, steps: int) -> Iterator[tuple[np.ndarray | None, Rows]]:
        """The action (None for a reset) and the row that it led to, `steps` times."""
        for _ in range(steps):
            reset = bool(self.rows.last[0])
            self.seed += reset
            action = random_action(self.spec, self.rows.legal, self.rng)
            if self.prefer:  # more often than chance
                wanted = self.rng.integers(self.prefer.start, self.prefer.stop, action.shape)
                action = np.where(self.rng.random(action.shape) < 0.6, wanted, action).astype(np.int32)
            self.envs.step(action, np.array([self.seed]), self.rows)
            check_row(self.spec, self.rows)
            yield (None if reset else action[0]), Rows(*(field[0] for field in self.rows))
        self.envs.close()


def check_row(spec: Spec, rows: Rows) -> None:
    """What holds for every row of every task."""
    assert np.isfinite(rows.obs).all() and np.isfinite(rows.reward).all()
    assert rows.legal.any(-1).all()
    assert np.isin(rows.discount, (0, 1)).all()
    assert (rows.alive | (rows.discount == 0)).all(), "the absent have discount 0"
    assert not (rows.first & rows.last).any()
    for i, size in enumerate(spec.obs_sizes):
        assert not rows.obs[:, i, size:].any()
    for i, size in enumerate(spec.action_sizes):
        if spec.action.kind == "discrete":
            assert not rows.legal[:, i, size:].any()


def check_first(row: Rows) -> None:
    """The row of a reset brings nothing."""
    assert row.first and not row.last and not row.reward.any() and row.success == 0
    assert ((row.discount == 1) == row.alive).all()
