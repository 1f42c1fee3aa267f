"""Bring environments back to where they were: reset from the seed, then the same actions again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rookery.training.host.steppers import Stepper


def replay(
    stepper: Stepper,
    seeds: np.ndarray,
    actions: np.ndarray,
    counts: np.ndarray,
    look: Callable[[np.ndarray], None],
) -> None:
    """Leave each environment `counts` [env] actions after its reset. `look` is called with every block of rows.

    Environments are stepped together, so one with few actions goes through them several times: it is reset whenever it
    has none left, such that its last pass ends together with the longest one.
    """
    longest, period = int(counts.max()), counts + 1
    ahead = (longest - counts) % period  # rows before its first whole pass
    envs = np.arange(len(counts))
    stepper.reset(seeds)
    look(stepper.block)
    for row in range(1, longest + 1):
        position = np.where(row < ahead, row, (row - ahead) % period)
        stepper.rows.last[position == 0] = True
        stepper.send(actions[envs, np.maximum(position - 1, 0)], seeds)
        stepper.wait()
        look(stepper.block)
