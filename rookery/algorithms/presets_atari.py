"""Named settings for Atari. What belongs to a protocol (clipping, life loss, sticky actions) is set with the task."""

from __future__ import annotations

from dataclasses import replace

from rookery.algorithms.q import Q
from rookery.core.registry import PRESETS
from rookery.core.types import Collect
from rookery.mechanisms.values import Values
from rookery.memory.replay import Replay
from rookery.nets.agent import Net
from rookery.nets.encoder import Encoder
from rookery.nets.optimiser import Optimiser, Schedule
from rookery.nets.target import Target

# DQN (Mnih et al. 2015): one environment, one gradient step for four transitions, a million frames, a new target every
# 10,000 gradient steps. Adam with the rate of Hessel et al. 2018 instead of centered RMSprop, as in all later work. The
# loss is twice Huber's, so that the largest gradient norm and eps are twice those of others.
_dqn = Q(
    net=Net("mlp", layers=0, encoder=Encoder("nature", width=512), initializer="torch"),
    collect=Collect(envs=1, length=4),
    replay=Replay(capacity=250_000, batch=32, unit="transition", start=12_500, steps_per_sequence=1.0),
    target=Target(every=10_000),
    optimiser=Optimiser("adam", lr=6.25e-5, clip=20.0, eps=3e-4),
    epsilon=Schedule(1.0, 0.1, steps=250_000),
    gamma=0.99,
    double=False,
    huber=1.0,
    agent_id=False,
    last_action=False,
)
PRESETS["dqn_atari"] = _dqn
# Prioritized replay (Schaul et al. 2016, proportional), on double DQN.
_per = {"importance": 0.4, "eps": 1e-6, "eps_relative": False}
PRESETS["per_atari"] = replace(_dqn, double=True, replay=replace(_dqn.replay, priority=0.6, **_per))

# -- Atari 100k -----------------------------------------------------------------------------------------------------
# One gradient step per transition from the 1,600th on; the store holds everything that is collected.
_steps = {"collect": Collect(envs=1, length=1), "agent_id": False, "last_action": False}
_replay = Replay(capacity=100_000, batch=32, unit="transition", start=1600, steps_per_sequence=1.0)
_adam = Optimiser("adam", lr=1e-4, clip=10.0, eps=1.5e-4)
# Data-efficient Rainbow (van Hasselt et al. 2019) with n = 10 and the epsilon of Agarwal et al. 2021. What the former
# do not change has Rainbow's values (Hessel et al. 2018, table 1): noise 0.5, priority exponent 0.5, importance 0.4 to
# 1. The DER of Agarwal et al. (Dopamine) differs: noise 0.1, importance 0.5 throughout, DQN's encoder with 512 units.
PRESETS["der"] = Q(
    **_steps,
    net=Net(
        "mlp", width=256, layers=0, layers_after=1, encoder=Encoder("data_efficient", width=0), initializer="torch"
    ),
    replay=replace(_replay, priority=0.5, **_per),
    target=Target(every=2000),
    optimiser=_adam,
    values=Values(dueling=True, atoms=51, low=-10.0, high=10.0, noisy=0.5),
    epsilon=Schedule(1.0, 0.01, steps=3600),
    n_step=10,
)
# DrQ(eps) (Agarwal et al. 2021; DrQ: Kostrikov et al. 2021): random shifts, and no target network of its own. The loss
# is twice Huber's (see above).
PRESETS["drq"] = Q(
    **_steps,
    net=Net("mlp", width=512, layers=0, layers_after=1, encoder=Encoder("nature", width=0), initializer="torch"),
    replay=_replay,
    target=Target(every=1),
    optimiser=replace(_adam, clip=20.0, eps=3e-4),
    values=Values(dueling=True),
    epsilon=Schedule(1.0, 0.01, steps=6600),
    n_step=10,
    huber=1.0,
    shift=4,
)
