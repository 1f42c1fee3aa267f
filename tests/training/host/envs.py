"""Host tasks for tests: gymnasium's CartPole behind the protocol, and a counter whose every row is known."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rookery.core.errors import ConfigError
from rookery.core.host import HostEnvs, HostTask, Rows
from rookery.core.registry import TASK_FAMILIES, family
from rookery.core.types import ActionSpec, Spec


class CartPoles:
    """Single environments in a loop."""

    def __init__(self, envs: int) -> None:
        import gymnasium

        self.envs = [gymnasium.make("CartPole-v1").unwrapped for _ in range(envs)]
        self.age = [0] * envs

    def reset(self, seeds: np.ndarray, rows: Rows) -> None:
        for i, seed in enumerate(seeds.tolist()):
            self._reset(i, seed, rows)

    def _reset(self, i: int, seed: int, rows: Rows) -> None:
        rows.obs[i, 0], _ = self.envs[i].reset(seed=seed)
        rows.legal[i], rows.alive[i], rows.reward[i], rows.discount[i] = True, True, 0.0, 1.0
        rows.first[i], rows.last[i], rows.success[i] = True, False, 0.0
        self.age[i] = 0

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        for i, env in enumerate(self.envs):
            if rows.last[i]:
                self._reset(i, int(seeds[i]), rows)
                continue
            obs, reward, terminated, _, _ = env.step(int(action[i, 0]))
            self.age[i] += 1
            rows.obs[i, 0], rows.reward[i], rows.discount[i] = obs, reward, 1.0 - terminated
            rows.first[i], rows.last[i] = False, terminated or self.age[i] == 500

    def close(self) -> None:
        for env in self.envs:
            env.close()


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class CartPole(HostTask):
    family: Literal["test-cartpole"] = "test-cartpole"

    @property
    def spec(self) -> Spec:
        return Spec("test/cartpole", ("agent",), (4,), ActionSpec("discrete", (2,)), limit=500)

    def open(self, envs: int) -> HostEnvs:
        return CartPoles(envs)


class Counters:
    """Rows that tell seed, age and the sum of all actions; an episode ends after as many steps as its seed says."""

    def __init__(self, task: Counter, envs: int) -> None:
        self.task, self.noise = task, np.random.default_rng() if task.random else None
        self.seed, self.age, self.total = (np.zeros(envs, np.int64) for _ in range(3))

    def reset(self, seeds: np.ndarray, rows: Rows) -> None:
        self._reset(np.ones(len(seeds), bool), seeds, rows)

    def _reset(self, which: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        self.seed[which], self.age[which], self.total[which] = seeds[which], 0, 0
        rows.legal[which], rows.alive[which], rows.reward[which], rows.discount[which] = True, True, 0.0, 1.0
        rows.first[which], rows.last[which], rows.success[which] = True, False, 0.0
        self._show(which, rows)

    def _show(self, which: np.ndarray, rows: Rows) -> None:
        seen = np.stack([self.seed % 251, self.age, self.total], axis=-1)[:, None]
        if self.noise is not None:
            seen = seen + self.noise.integers(0, 5, seen.shape)
        rows.obs[which] = (seen if self.task.obs_dtype == "uint8" else seen / 100.0)[which]

    def length(self) -> np.ndarray:
        return self.task.shortest + self.seed % (self.task.longest - self.task.shortest + 1)

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        over = rows.last.copy()
        self.age += 1
        self.total = (self.total + action.reshape(len(seeds), -1).sum(axis=-1)) % 200
        rows.reward[:] = self.total[:, None] / 10.0
        rows.first[:], rows.last[:] = False, self.age >= self.length()
        rows.discount[:] = np.where(rows.last & (self.seed % 2 == 0), 0.0, 1.0)[:, None]
        rows.success[:] = rows.last & (self.total % 2 == 0)
        self._show(~over, rows)
        if over.any():
            self._reset(over, seeds, rows)

    def close(self) -> None:
        pass


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Counter(HostTask):
    family: Literal["test-counter"] = "test-counter"
    shortest: int = 3
    longest: int = 9
    limit: int = 9
    random: bool = False
    obs_dtype: str = "float32"
    kind: Literal["discrete", "box"] = "discrete"
    unused: int = 0

    @property
    def spec(self) -> Spec:
        action: Any = ActionSpec("discrete", (3,)) if self.kind == "discrete" else ActionSpec("box", (2,))
        return Spec("test/counter", ("a",), (3,), action, limit=self.limit, obs_dtype=self.obs_dtype)

    def open(self, envs: int) -> HostEnvs:
        return Counters(self, envs)


class SlowEnvs(Counters):
    """A counter whose every environment takes its time."""

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        time.sleep(0.002 * len(seeds))
        super().step(action, seeds, rows)


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Slow(HostTask):
    family: Literal["test-slow"] = "test-slow"

    @property
    def spec(self) -> Spec:
        return replace(Counter().spec, name="test/slow")

    def open(self, envs: int) -> HostEnvs:
        return SlowEnvs(Counter(), envs)


class FaultyEnvs(Counters):
    """A counter that fails at some step of its second environment."""

    def __init__(self, task: Faulty, envs: int) -> None:
        if task.how == "refuse":
            raise ConfigError("the task cannot be opened here.")
        super().__init__(Counter(), envs)
        self.faulty, self.steps, self.server = task, 0, None
        if task.server:
            self.server = subprocess.Popen(["sleep", "100"])
            Path(task.server, str(self.server.pid)).touch()

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()

    def step(self, action: np.ndarray, seeds: np.ndarray, rows: Rows) -> None:
        if self.steps >= self.faulty.at and self._now(seeds):
            self._fail()
        self.steps += 1
        super().step(action, seeds, rows)

    def _now(self, seeds: np.ndarray) -> bool:
        if not self.faulty.once:
            return True
        try:
            os.close(os.open(self.faulty.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _fail(self) -> None:
        how = self.faulty.how
        if how == "raise":
            raise ValueError("the environment broke")
        if how == "abort":
            os.abort()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(3)
        time.sleep(0.5 if how == "sleep" else 1000)


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Faulty(HostTask):
    family: Literal["test-faulty"] = "test-faulty"
    how: str = "raise"
    at: int = 0
    once: str = ""
    """A file that is made by the one failure there is; empty: every step from `at` on fails."""
    server: str = ""
    """A folder with a file for each process that environments started, named by its id; empty: they start none."""

    @property
    def spec(self) -> Spec:
        return replace(Counter().spec, name="test/faulty")

    def open(self, envs: int) -> HostEnvs:
        return FaultyEnvs(self, envs)
