"""Named settings. Plain names are our own, chosen by time to score; a suffix names whose published settings it has."""

from __future__ import annotations

from dataclasses import replace

from rookery.algorithms.ppo import PPO, Value
from rookery.algorithms.q import Q
from rookery.core.registry import PRESETS
from rookery.nets.agent import Net
from rookery.nets.mixers import Mixer

_iql = Q()
PRESETS["iql"] = _iql
PRESETS["dqn"] = replace(_iql, net=Net("mlp"), last_action=False)
PRESETS["vdn"] = replace(_iql, mixer=Mixer("vdn"))
PRESETS["qmix"] = replace(_iql, mixer=Mixer("qmix"))

_mappo = PPO()
PRESETS["mappo"] = _mappo
PRESETS["ippo"] = replace(_mappo, value=Value(sees="obs"))
PRESETS["a2c"] = replace(_mappo, value=Value(sees="obs", clip=0.0), clip=0.0, epochs=1, gae_lambda=1.0)
