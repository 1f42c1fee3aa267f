"""Named settings. Plain names are our own, meant to reach a score soon on two CPU cores; a suffix names whose published
settings a preset has, as far as they are settings of the algorithm and not of a task."""

from __future__ import annotations

from dataclasses import replace

from rookery.algorithms.ddpg import DDPG
from rookery.algorithms.ppo import PPO
from rookery.algorithms.q import Q
from rookery.core.registry import PRESETS
from rookery.core.types import Collect
from rookery.mechanisms.action_critic import ActionCritic
from rookery.mechanisms.action_head import Entropy, Smoothing
from rookery.mechanisms.credit import Credit
from rookery.mechanisms.critic import Value
from rookery.mechanisms.hyper import Hyper
from rookery.mechanisms.share import Share
from rookery.memory.replay import Replay
from rookery.nets.agent import Net
from rookery.nets.encoder import Encoder
from rookery.nets.mixers import Mixer
from rookery.nets.optimiser import Optimiser, Schedule
from rookery.nets.target import Target
from rookery.ops.gumbel import Gumbel

# -- the Q family ---------------------------------------------------------------------------------------------------
# Feed-forward agents and 32 environments of 32 transitions: a GRU costs three times as much per gradient step and the
# tasks we tuned on are won without memory. td_lambda makes up for the short horizon of a one-step target. Rate and
# target: of the settings in studies/choose_presets.toml, the best or near it on each task (docs/results.md).
_iql = Q(
    net=Net("mlp", width=64, layers=2),
    collect=Collect(envs=32, length=32),
    replay=Replay(capacity=2048, batch=32, start=64, steps_per_sequence=0.25),
    target=Target(every=1, tau=0.02),
    optimiser=Optimiser("adam", lr=2e-3, decay="linear", clip=10.0, eps=1e-8),
    epsilon=Schedule(1.0, 0.05, steps=50_000),
    gamma=0.97,
    td_lambda=0.6,
    last_action=False,
)
PRESETS["iql"] = _iql
PRESETS["dqn"] = replace(_iql, agent_id=False)
PRESETS["vdn"] = replace(_iql, mixer=Mixer("vdn"))
PRESETS["qmix"] = replace(_iql, mixer=Mixer("qmix", gain=0.1))

# PyMARL (Samvelyan et al. 2019): one environment, one gradient step per episode, a new target every 200 of them.
_qmix_pymarl = Q(
    mixer=Mixer("qmix", embed=32, hyper=64, initializer="torch"),
    net=Net("gru", width=64, layers=1, initializer="torch"),
    collect=Collect(envs=1, restart=True),
    replay=Replay(capacity=5000, batch=32, start=32, steps_per_sequence=1.0),
    target=Target(every=200),
    optimiser=Optimiser("rmsprop", lr=5e-4, clip=10.0, eps=1e-5, rms_decay=0.99),
    epsilon=Schedule(1.0, 0.05, steps=50_000),
    gamma=0.99,
)
PRESETS["qmix_pymarl"] = _qmix_pymarl
# PyMARL2 (Hu et al. 2021): eight environments, one gradient step for eight episodes, on a larger batch; a new target
# every 200 episodes, which are 25 gradient steps. Its loss is half the squared error, so that its largest gradient
# norm of 10 is 20 here.
PRESETS["qmix_pymarl2"] = replace(
    _qmix_pymarl,
    collect=Collect(envs=8, restart=True),
    replay=Replay(capacity=5000, batch=128, start=128, steps_per_sequence=0.125),
    target=Target(every=25),
    optimiser=Optimiser("adam", lr=1e-3, clip=20.0, eps=1e-8),
    epsilon=Schedule(1.0, 0.05, steps=100_000),
    td_lambda=0.6,
)
# JaxMARL's QMIX on MPE (Rutherford et al. 2024): it sums rewards over agents and learns from 10,000 steps on.
PRESETS["qmix_jaxmarl"] = Q(
    mixer=Mixer("qmix", embed=32, hyper=128, gain=0.001),
    net=Net("gru", width=64, layers=1),
    collect=Collect(envs=8, restart=True),
    replay=Replay(capacity=5000, batch=32, start=400, steps_per_sequence=0.125),
    target=Target(every=200),
    optimiser=Optimiser("radam", lr=5e-3, decay="linear", clip=25.0, eps=1e-8),
    epsilon=Schedule(1.0, 0.05, steps=0, share=0.1),
    gamma=0.9,
    team_reward="sum",
    last_action=False,
)

# Individual credit (DIFFER, Hu et al. 2023) on our own settings; the mixer learns as the agents do.
_differ = Credit("differ", mixer_optimiser=_iql.optimiser)
PRESETS["differ_vdn"] = replace(PRESETS["vdn"], credit=_differ)
PRESETS["differ_qmix"] = replace(PRESETS["qmix"], credit=_differ)
PRESETS["differ_transformer"] = replace(PRESETS["differ_qmix"], net=Net("transformer", width=32, layers=1))
# DIFFER's published settings: PyMARL's, and a priority eps that does not depend on the size of errors. Its importance
# weights are relative to the largest of all transitions of a batch, here to the largest of those that were drawn.
PRESETS["differ_qmix_published"] = replace(
    _qmix_pymarl, credit=Credit("differ", eps=0.01, eps_relative=False, mixer_optimiser=_qmix_pymarl.optimiser)
)
# Sharing. SUPER (Gerstgrasser et al. 2023) is independent DQN with prioritised replay; INSPIRE shares on DIFFER. On our
# own settings each agent reads one sender per sequence, sequences have priorities, and importance weights become full.
_super = Share("quantile", bandwidth=0.1, window=1500)
PRESETS["super_dqn"] = replace(
    PRESETS["dqn"],
    net=replace(_iql.net, weights="per_agent"),
    replay=replace(_iql.replay, priority=0.6, importance=0.4),
    share=_super,
)
# SUPER's published settings on its pursuit task: sequences of one transition, so that transitions have priorities, one
# gradient step for four of them, offers to all others. What differs: transitions have one priority for all agents, not
# one for each; receivers learn from offers in the minibatch and do not keep them; the loss is squared, not Huber; there
# are no dueling heads and no convolutions; the gradient's norm is limited over all agents, not for each.
PRESETS["super_dqn_published"] = Q(
    net=Net("mlp", width=64, layers=2, weights="per_agent", initializer="torch"),
    collect=Collect(envs=4, length=1),
    replay=Replay(
        capacity=120_000,
        batch=32,
        start=1000,
        steps_per_sequence=0.25,
        priority=0.6,
        importance=0.4,
        importance_end=0.4,
        eps=1e-6,
        eps_relative=False,
    ),
    target=Target(every=250),
    optimiser=Optimiser("adam", lr=1.6e-4, clip=40.0, eps=1e-8),
    share=replace(_super, max_partners=0),
    epsilon=Schedule(0.1, 0.001, steps=100_000),
    agent_id=False,
    last_action=False,
)
# Individual rewards are made of their sender's values: receivers that take all of them drift (docs/results.md).
PRESETS["super_qmix"] = replace(PRESETS["differ_qmix"], share=replace(_super, accept="closer"))
PRESETS["inspire_qmix"] = replace(
    PRESETS["differ_qmix"], share=replace(_super, select="gaussian", partners="range", accept="closer")
)

# -- the PPO family -------------------------------------------------------------------------------------------------
_mappo = PPO(
    actor=Net("mlp", width=64, layers=2, activation="tanh"),
    critic=Net("mlp", width=64, layers=2, activation="tanh"),
    collect=Collect(envs=32, length=32),
    optimiser=Optimiser("adam", lr=4e-3, decay="linear", clip=10.0),
    gamma=0.97,
    epochs=4,
    minibatches=4,
    entropy=0.01,
)
# Of the settings in studies/choose_presets.toml, the soonest at a good score (docs/results.md).
PRESETS["mappo"] = _mappo
PRESETS["ippo"] = replace(_mappo, value=Value(sees="obs"))
PRESETS["ppo"] = replace(PRESETS["ippo"], agent_id=False)
PRESETS["a2c"] = replace(
    _mappo,
    optimiser=replace(_mappo.optimiser, lr=2e-3),
    value=Value(sees="obs", clip=0.0),
    collect=Collect(envs=32, length=8),
    clip=0.0,
    epochs=1,
    minibatches=1,
    gae_lambda=1.0,
)
# A3C (Mnih et al. 2016): the same gradients, by learners that do not wait for each other, with shared RMSprop
# statistics. Two learners, one for each of our two cores; each takes steps of its own, so that they are twice as many.
PRESETS["a3c"] = replace(
    PRESETS["a2c"],
    optimiser=replace(PRESETS["a2c"].optimiser, kind="rmsprop", rms_eps="in_root"),
    collect=Collect(envs=32, length=8, learners=2),
)
# A2C's published settings for Atari (OpenAI's Baselines, after Mnih et al. 2016). Actor and critic have encoders of
# their own, not a common one, and their gradients are limited one by one. The optimizer is TensorFlow's RMSprop.
_atari_net = Net("mlp", layers=0, encoder=Encoder("nature", width=512))
_tensorflow_rmsprop = Optimiser(
    "rmsprop", lr=7e-4, decay="linear", clip=0.5, eps=1e-5, rms_decay=0.99, rms_start=1.0, rms_eps="in_root"
)
PRESETS["a2c_atari"] = PPO(
    actor=_atari_net,
    critic=_atari_net,
    value=Value(sees="obs", loss="mse", clip=0.0, weight=0.5, normalise="none"),
    collect=Collect(envs=16, length=5),
    optimiser=_tensorflow_rmsprop,
    gamma=0.99,
    gae_lambda=1.0,
    clip=0.0,
    epochs=1,
    minibatches=1,
    entropy=0.01,
    advantages="raw",
    agent_id=False,
)
# The paper has sixteen learners of one environment each: --algo.collect.learners 16. Its RMSprop starts at 0.
PRESETS["a3c_atari"] = replace(
    PRESETS["a2c_atari"],
    collect=Collect(envs=16, length=5, learners=2),
    optimiser=replace(_tensorflow_rmsprop, rms_start=0.0),
)

# The on-policy code base's script for MPE simple_spread (Yu et al. 2022), but feed-forward (its mappo, not rmappo). The
# script's --use_ReLU switches ReLU off.
_onpolicy_net = Net("mlp", width=64, layers=2, activation="tanh", layer_norm=True)
PRESETS["mappo_onpolicy"] = PPO(
    actor=_onpolicy_net,
    critic=_onpolicy_net,
    collect=Collect(envs=128, length=26),
    optimiser=Optimiser("adam", lr=7e-4, clip=10.0, eps=1e-5),
    gamma=0.99,
    epochs=10,
    minibatches=1,
    entropy=0.01,
    agent_id=False,
)
# JaxMARL's MAPPO-RNN and IPPO-FF on MPE. Its SMAX script differs in: 128 environments, entropy 0, clip 0.25, agent id.
_jaxmarl_value = Value(sees="state", loss="mse", clip=0.2, weight=0.5, normalise="none")
_jaxmarl_net = Net("gru", width=128, layers=1, layers_after=1)
PRESETS["mappo_jaxmarl"] = PPO(
    actor=_jaxmarl_net,
    critic=_jaxmarl_net,
    value=_jaxmarl_value,
    collect=Collect(envs=16, length=128),
    optimiser=Optimiser("adam", lr=2e-3, decay="linear", clip=0.5, eps=1e-5),
    epochs=4,
    minibatches=4,
    entropy=0.01,
    advantages="minibatch",
    agent_id=False,
)
PRESETS["ippo_jaxmarl"] = replace(
    PRESETS["mappo_jaxmarl"],
    actor=Net("mlp", width=64, layers=2, activation="tanh"),
    critic=Net("mlp", width=64, layers=2, activation="tanh"),
    value=replace(_jaxmarl_value, sees="obs"),
    optimiser=Optimiser("adam", lr=2.5e-4, decay="linear", clip=0.5, eps=1e-5),
)

# Hypernetworks. Increments of the actor's weights, from what the team (or, `local`, the agent) sees. The alignment term
# is ten times the notes': with theirs, updates are no smoother than MAPPO's (docs/results.md).
_ALIGN = 0.5
PRESETS["hyper_mappo"] = replace(_mappo, hyper=Hyper("all"), align=_ALIGN)
PRESETS["hyper_mappo_last"] = replace(_mappo, hyper=Hyper("last"), align=_ALIGN)
PRESETS["hyper_mappo_local"] = replace(_mappo, hyper=Hyper("all", scope="local"), align=_ALIGN)
# The lab notes' own setting, on the settings that they took from the on-policy code base: one hidden layer, as many
# features as it has units, and a target hypernetwork.
PRESETS["hyper_mappo_notes"] = replace(
    PRESETS["mappo_onpolicy"],
    actor=Net("mlp", width=64, layers=1),
    hyper=Hyper("all", features=64, modes="full", width=64, target="anchor", every=100),
    align=0.05,
)
# Rivals: weights generated from agent embeddings (HyperMARL, Tessera et al. 2025; its SMAX form generates what stands
# after the GRU), weights of one's own, and sequential updates of those (HAPPO, Kuba et al. 2022).
PRESETS["hypermarl"] = replace(_mappo, hyper=Hyper("embedding", width=64))
PRESETS["hypermarl_smax"] = replace(PRESETS["mappo_jaxmarl"], hyper=Hyper("embedding_after", width=64))
PRESETS["mappo_per_agent"] = replace(_mappo, actor=replace(_mappo.actor, weights="per_agent"))
PRESETS["happo"] = replace(PRESETS["mappo_per_agent"], order="sequential")

# -- the DDPG family ------------------------------------------------------------------------------------------------
# Lowe et al. 2017 with shared weights, 32 environments and a gradient step for every 128 transitions.
_maddpg = DDPG(
    actor=Net("mlp", width=64, layers=2),
    critic=ActionCritic(Net("mlp", width=64, layers=2)),
    collect=Collect(envs=32, length=32),
    replay=Replay(capacity=8192, batch=512, unit="transition", start=64, steps_per_sequence=0.25),
    target=Target(every=1, tau=0.01),
    optimiser=Optimiser("adam", lr=3e-3, clip=1.0),
)
_own = replace(_maddpg.critic, sees="own")
# Twin critics, delayed actors, smoothed targets (Fujimoto et al. 2018; Ackermann et al. 2019).
_matd3 = replace(
    _maddpg,
    critic=replace(_maddpg.critic, twins=2),
    target=Target(every=2, tau=0.02),
    smoothing=Smoothing(scale=0.2, limit=0.5),
    delay=2,
)
# Haarnoja et al. 2018. Actors have an entropy to keep, so their outputs need no penalty.
_masac = replace(_maddpg, critic=replace(_maddpg.critic, twins=2), entropy=Entropy("auto"), logit_penalty=0.0)
PRESETS["maddpg"] = _maddpg
PRESETS["matd3"] = _matd3
PRESETS["masac"] = _masac
PRESETS["iddpg"] = replace(_maddpg, critic=_own)
PRESETS["ddpg"] = replace(_maddpg, critic=_own, gamma=0.99)
PRESETS["td3"] = replace(_matd3, critic=replace(_own, twins=2), gamma=0.99, random_steps=1000)
PRESETS["sac"] = replace(_masac, critic=replace(_own, twins=2), gamma=0.99, random_steps=1000)
# Own critics, mixed into the team's value; all actors follow its gradient together (Peng et al. 2021).
PRESETS["facmac"] = replace(_maddpg, critic=_own, mixer=Mixer("qmix", gain=0.1))

# OpenAI's script for particle worlds (Lowe et al. 2017): one environment, one gradient step for four episodes of 25
# (and four resets). Critics get relaxed samples, as in that code. Its environment gets them too, and its buffer keeps
# them; here both have the index that they stand for, because an action that no environment could take is no action.
PRESETS["maddpg_openai"] = DDPG(
    actor=Net("mlp", width=64, layers=2, weights="per_agent"),
    critic=ActionCritic(Net("mlp", width=64, layers=2, weights="per_agent")),
    collect=Collect(envs=1, length=104),
    replay=Replay(capacity=10_000, batch=1024, unit="transition", start=256, steps_per_sequence=1.0),
    target=Target(every=1, tau=0.01),
    optimiser=Optimiser("adam", lr=1e-2, clip=0.5, eps=1e-8),
    gumbel=Gumbel("relaxed", temperature=1.0),
    gamma=0.95,
    logit_penalty=1e-3,
    agent_id=False,
)
# Tilbury et al. 2023 on particle worlds, with the straight-through estimator; set algo.gumbel.kind to gst, tags or
# grmck for the others. Their buffer of 2M transitions takes 0.6 GB on simple_spread.
PRESETS["maddpg_tilbury"] = DDPG(
    actor=Net("mlp", width=128, layers=2, weights="per_agent"),
    critic=ActionCritic(Net("mlp", width=128, layers=2, weights="per_agent")),
    collect=Collect(envs=1, length=104),
    replay=Replay(capacity=20_000, batch=512, unit="transition", start=256, steps_per_sequence=1.0),
    target=Target(every=1, tau=0.01),
    optimiser=Optimiser("adam", lr=5e-4, clip=1.0, eps=1e-3),
    gumbel=Gumbel("st", temperature=0.6),
    gamma=0.95,
    logit_penalty=0.01,
    agent_id=False,
)
