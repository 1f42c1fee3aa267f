"""Published settings: the values that their sources have, so that no change of a default moves them."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

import rookery.algorithms  # noqa: F401  (fills the registry)
from rookery.core.registry import PRESETS

PYMARL = {
    "gamma": 0.99,
    "double": True,
    "agent_id": True,
    "last_action": True,
    "net.kind": "gru",
    "net.width": 64,
    "net.initializer": "torch",
    "mixer.embed": 32,
    "mixer.hyper": 64,
    "mixer.initializer": "torch",
    "replay.capacity": 5000,
    "replay.priority": 0.0,
}
ONE_ENVIRONMENT = {
    "collect.envs": 1,
    "replay.batch": 32,
    "replay.steps_per_sequence": 1.0,
    "target.every": 200,
    "target.tau": 1.0,
    "optimiser.kind": "rmsprop",
    "optimiser.lr": 5e-4,
    "optimiser.eps": 1e-5,
    "optimiser.rms_decay": 0.99,
    "optimiser.clip": 10.0,
    "epsilon.start": 1.0,
    "epsilon.end": 0.05,
    "epsilon.steps": 50_000,
    "td_lambda": 0.0,
}
SOURCES: dict[str, dict[str, Any]] = {
    "qmix_pymarl": PYMARL | ONE_ENVIRONMENT,
    # A copy every 200 episodes, eight of which are collected for each gradient step; torch's Adam.
    "qmix_pymarl2": PYMARL
    | {
        "collect.envs": 8,
        "replay.batch": 128,
        "replay.steps_per_sequence": 1 / 8,
        "target.every": 200 // 8,
        "optimiser.kind": "adam",
        "optimiser.lr": 1e-3,
        "optimiser.eps": 1e-8,
        "epsilon.steps": 100_000,
        "td_lambda": 0.6,
    },
    "differ_qmix_published": PYMARL
    | ONE_ENVIRONMENT
    | {
        "credit.select": "per_weight",
        "credit.alpha": 0.8,
        "credit.eps": 0.01,
        "credit.eps_relative": False,
        "credit.beta.start": 0.6,
        "credit.beta.end": 1.0,
        "credit.fraction.start": 0.8,
        "credit.fraction.end": 1.0,
        "credit.fraction.share": 0.6,
    },
    "super_dqn_published": {
        "replay.priority": 0.6,
        "replay.importance": 0.4,
        "replay.importance_end": 0.4,
        "replay.eps": 1e-6,
        "replay.eps_relative": False,
        "share.select": "quantile",
        "share.bandwidth": 0.1,
        "share.window": 1500,
        "share.partners": "everyone",
        "share.accept": "everything",
        "share.max_partners": 0,
        "net.weights": "per_agent",
        "net.initializer": "torch",
    },
    "mappo_onpolicy": {
        "actor.activation": "tanh",
        "actor.layer_norm": True,
        "critic.activation": "tanh",
        "critic.layer_norm": True,
        "clip": 0.2,
        "gae_lambda": 0.95,
        "gamma": 0.99,
        "epochs": 10,
        "minibatches": 1,
        "entropy": 0.01,
        "optimiser.lr": 7e-4,
        "optimiser.eps": 1e-5,
        "optimiser.clip": 10.0,
        "value.loss": "huber",
        "value.clip": 0.2,
        "value.normalise": "running",
    },
    "maddpg_openai": {
        "replay.batch": 1024,
        "optimiser.lr": 1e-2,
        "optimiser.clip": 0.5,
        "gamma": 0.95,
        "target.tau": 0.01,
        "logit_penalty": 1e-3,
        "actor.width": 64,
    },
    "maddpg_tilbury": {
        "replay.batch": 512,
        "optimiser.lr": 5e-4,
        "optimiser.eps": 1e-3,
        "optimiser.clip": 1.0,
        "gamma": 0.95,
        "gumbel.kind": "st",
        "gumbel.temperature": 0.6,
        "logit_penalty": 0.01,
        "actor.width": 128,
    },
    "der": {
        "n_step": 10,
        "replay.batch": 32,
        "replay.start": 1600,
        "replay.priority": 0.5,
        "replay.importance": 0.4,
        "replay.importance_end": 1.0,
        "target.every": 2000,
        "optimiser.lr": 1e-4,
        "optimiser.eps": 1.5e-4,
        "values.atoms": 51,
        "values.dueling": True,
        "net.encoder.kind": "data_efficient",
    },
    "nec_atari": {
        "write.n": 100,
        "gamma": 0.99,
        "dictionary.neighbors": 50,
        "dictionary.delta": 1e-3,
        "dictionary.rate": 0.1,
        "learn.batch": 32,
        "learn.capacity": 100_000,
    },
}


@pytest.mark.parametrize("preset", SOURCES)
def test_published_settings_have_the_values_of_their_source(preset: str) -> None:
    found = {path: reduce(getattr, path.split("."), PRESETS[preset]) for path in SOURCES[preset]}
    assert found == SOURCES[preset]
