"""Before the first gradient step of PPO the new policy is the old one, for all nets and across episode boundaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import chunk_of, init_of, small_config

from rookery.algorithms.ppo import PPO
from rookery.core.types import Collect
from rookery.nets.agent import Net
from rookery.nets.optimiser import Optimiser

GRU = Net("gru", width=8, layers=1)
TRANSFORMER = Net("transformer", width=8, layers=1, heads=2)
# Steps as large as these move the policy far from where it began: a carry or a reset that is not repeated shows.
BASE = replace(PPO().small(), optimiser=Optimiser(lr=3e-2), collect=Collect(envs=4, length=12))
CASES = {
    "mlp": BASE,
    "gru": replace(BASE, actor=GRU, critic=GRU),
    "gru-chunk": replace(BASE, actor=GRU, critic=GRU, bptt_length=6),
    "gru-chunk-minibatches": replace(BASE, actor=GRU, critic=GRU, bptt_length=3, minibatches=2),
    "transformer-chunk": replace(BASE, actor=TRANSFORMER, critic=TRANSFORMER, bptt_length=6),
    "gru-actor-only-per-agent": replace(BASE, actor=replace(GRU, weights="per_agent"), bptt_length=6),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_first_ratio_is_one(name: str) -> None:
    """Episodes of at most 3 transitions, so that every rollout and every chunk of it spans boundaries."""
    config = small_config("ippo", "maze/static", algo=CASES[name])
    _, report = chunk_of(config, 6)(init_of(config))
    assert float(report.means["train/episode_length"].value[0]) <= 3
    assert float(report.means["check/first_ratio_error"].value[0]) < 1e-5
    # The policy did move in between: later ratios are not 1.
    assert float(report.means["kl"].value[0]) > 1e-4
    assert np.all(np.isfinite(np.asarray(report.means["policy_loss"].total)))
