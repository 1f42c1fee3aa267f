"""Before the first gradient step of PPO the new policy is the old one, for all nets and across episode boundaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import chunk_of, init_of, small_config

from rookery.algorithms.ppo import PPO
from rookery.core.types import Collect
from rookery.mechanisms.critic import Value
from rookery.mechanisms.explore import Explore
from rookery.mechanisms.hyper import Hyper
from rookery.nets.agent import Net
from rookery.nets.optimiser import Optimiser

GRU = Net("gru", width=8, layers=1)
TRANSFORMER = Net("transformer", width=8, layers=1, heads=2)
# Steps as large as these move the policy far from where it began: a carry or a reset that is not repeated shows.
BASE = replace(PPO().small(), optimiser=Optimiser(lr=3e-2), collect=Collect(envs=4, length=12))
_SMALL = {"width": 8, "heads": 2, "features": 3, "window": 3, "lr": 3e-2}
CASES: dict[str, PPO] = {
    "mlp": BASE,
    "gru": replace(BASE, actor=GRU, critic=GRU),
    "gru-chunk-minibatches": replace(BASE, actor=GRU, critic=GRU, bptt_length=3, minibatches=2),
    "transformer-chunk": replace(BASE, actor=TRANSFORMER, critic=TRANSFORMER, value=Value(sees="obs"), bptt_length=6),
    "gru-actor-only-per-agent": replace(BASE, actor=replace(GRU, weights="per_agent"), bptt_length=6),
    # Actors with hypernetworks, in every form; agents that learn in turn; noise on weights.
    "hyper-last-team": replace(BASE, hyper=Hyper("last", per_agent=False, **_SMALL), minibatches=2, bptt_length=3),
    "hyper-lstm-accumulate": replace(
        BASE, hyper=Hyper("all", history="lstm", increment="accumulate", scope="local", **_SMALL), bptt_length=6
    ),
    "hyper-gru-actor-gru": replace(BASE, actor=GRU, hyper=Hyper("all", history="gru", **_SMALL), bptt_length=4),
    "hyper-window-fusion": replace(
        BASE,
        hyper=Hyper("last", history="window", fusion="kl", target="anchor", critic=True, **_SMALL),
        bptt_length=4,
        align=0.05,
    ),
    "hyper-gru-layers-after": replace(
        BASE, actor=replace(GRU, layers_after=1), hyper=Hyper("all", critic=True, **_SMALL), bptt_length=6
    ),
    "hypermarl": replace(BASE, hyper=Hyper("embedding", width=8, embed=4)),
    "hypermarl-after-gru": replace(
        BASE, actor=replace(GRU, layers_after=1), hyper=Hyper("embedding_after", width=8, embed=4), bptt_length=6
    ),
    "happo": replace(BASE, actor=replace(BASE.actor, weights="per_agent"), order="sequential", minibatches=2),
    "parameter-noise": replace(BASE, explore=Explore(parameter_noise=0.1)),
}
ONE_AGENT = ("mlp", "gru", "gru-chunk-minibatches", "transformer-chunk", "gru-actor-only-per-agent")


@pytest.mark.parametrize("name", list(CASES))
def test_the_first_ratio_is_one(name: str) -> None:
    """Episodes of at most 3 transitions, so that every rollout and every chunk of it spans boundaries."""
    task = "maze/static" if name in ONE_AGENT else "mpe/simple_spread"
    config = small_config("ippo", task, algo=CASES[name])
    _, report = chunk_of(config, 6)(init_of(config))
    assert float(report.means["train/episode_length"].value[0]) <= 3
    assert float(report.means["check/first_ratio_error"].value[0]) < 1e-5
    # The policy did move in between: later ratios are not 1.
    assert float(report.means["kl"].value[0]) > 1e-4
    assert np.all(np.isfinite(np.asarray(report.means["policy_loss"].total)))
