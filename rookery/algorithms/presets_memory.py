"""Named settings of memory agents. Plain names are our own; `_published` says whose settings a preset has."""

from __future__ import annotations

from dataclasses import replace

from rookery.algorithms import presets  # noqa: F401  (per is a dqn)
from rookery.algorithms.episodic import Act, Episodic, Learn, Write
from rookery.algorithms.memory_actor import MemoryActor
from rookery.core.registry import PRESETS
from rookery.core.types import Collect
from rookery.mechanisms.encode import Encoder, Vae
from rookery.mechanisms.gnn import Gnn
from rookery.mechanisms.reflect import Abstract, Reconstruct
from rookery.mechanisms.remember import Remember
from rookery.memory.dictionary import Dictionary
from rookery.memory.graph import Graph
from rookery.nets.optimiser import Optimiser, Schedule

# Prioritized replay (Schaul et al. 2016) on our own DQN.
PRESETS["per"] = replace(PRESETS["dqn"], replay=replace(PRESETS["dqn"].replay, priority=0.6, importance=0.4))

# A second target from what is remembered, on our own DQN: the best return (EMDQN, Lin et al. 2018; their weight), and
# values propagated backward over a graph of states (ERLAM, Zhu et al. 2020).
PRESETS["emdqn"] = replace(PRESETS["dqn"], remember=Remember("best", weight=0.1))
PRESETS["erlam"] = replace(PRESETS["dqn"], remember=Remember("graph", weight=0.1))

# -- tables ---------------------------------------------------------------------------------------------------------
# A table is a memory that reads the very state or nothing. One environment, a memory that is up to date at every step.
_EXACT = 1e-4
"""Distance below which two keys are one state: far below what tells two cells of a maze apart."""
_q = Episodic(
    memory="dictionary",
    dictionary=Dictionary(capacity=1024, tables="shared", neighbors=1, rate=0.5, reach=_EXACT),
    acting=Act(Schedule(0.03, 0.03)),
    gamma=0.9,
)
PRESETS["q"] = _q

# -- dictionaries ---------------------------------------------------------------------------------------------------
# MFEC (Blundell et al. 2016): the best return so far of every state and action, keys are random projections. Returns
# are sums of rewards: a value that was bootstrapped too high would stay. What comes after 1000 of them weighs 4e-5.
PRESETS["mfec"] = Episodic(
    memory="dictionary",
    dictionary=Dictionary(capacity=10_000, neighbors=11, update="max"),
    encoder=Encoder("random", dim=64),
    write=Write(n=1000, drain=4, bootstrap=False),
    acting=Act(Schedule(1.0, 0.005, steps=5_000)),
    collect=Collect(envs=4, length=4),
)
# NEC (Pritzel et al. 2017): one gradient step for 16 transitions.
PRESETS["nec"] = Episodic(
    memory="dictionary",
    dictionary=Dictionary(capacity=10_000, neighbors=50, update="average", rate=0.1),
    encoder=Encoder("mlp", dim=64),
    write=Write(n=100, drain=4),
    acting=Act(Schedule(1.0, 0.01, steps=5_000)),
    learn=Learn(optimiser=Optimiser("rmsprop", lr=1e-4), capacity=100_000, batch=32, start=1000),
    collect=Collect(envs=4, length=4),
)

# -- graphs ---------------------------------------------------------------------------------------------------------
_gq = replace(
    _q, memory="graph", graph=Graph(capacity=1024, edges_per_node=8, neighbors=1, value_rate=0.5, reach=_EXACT)
)
PRESETS["gq"] = _gq
# Reconstruction spends at most 64 backups a step on average, whichever way it chooses them.
_paths = Reconstruct("key_paths", every=10, paths=20, length=32)
PRESETS["gcmr"] = replace(_gq, abstract=Abstract("cluster", nodes=16), reconstruct=_paths)
PRESETS["gbmr"] = replace(_gq, abstract=Abstract("gnn", nodes=16), reconstruct=_paths)
PRESETS["gqsi"] = replace(_gq, abstract=Abstract("degree", nodes=16), reconstruct=_paths)
PRESETS["gqil"] = replace(_gq, abstract=Abstract("common", nodes=16), reconstruct=_paths)
PRESETS["gbmr_sweep"] = replace(_gq, reconstruct=Reconstruct("sweep", every=10, backups=640))
# Exploration directed by the graph instead of at random.
PRESETS["gbmr_frontier"] = replace(PRESETS["gbmr"], acting=replace(_gq.acting, explore="frontier"))

# -- published ------------------------------------------------------------------------------------------------------
# The settings behind the published maze counts: rate .01, gamma .9, greedy .97, a new edge starts at its reward.
# Canopies: 120 and 100 pixels of 40 a cell, in cells of a 10x10 maze whose positions go from 0 to 1.
_LR = 0.01
PRESETS["q_published"] = replace(_q, dictionary=replace(_q.dictionary, rate=_LR), write=Write(first="zero"))
# The maze has 91 cells.
_gq_published = replace(_gq, graph=replace(_gq.graph, capacity=128, value_rate=_LR), write=Write(first="reward"))
PRESETS["gq_published"] = _gq_published
PRESETS["gcq_published"] = replace(
    _gq_published,
    abstract=Abstract("cluster", nodes=16, t1=3 / 9, t2=2.5 / 9),
    reconstruct=Reconstruct("key_paths", every=20, paths=272, length=32),
)

# -- Atari ----------------------------------------------------------------------------------------------------------
# 16 environments and a memory that is up to date at every step; 1e5 keys. The papers do not clip rewards: play with
# --task.no-clip-rewards. Epsilon falls over 100,000 steps. A step writes one row of each environment: at an episode's
# end the last n follow one by one, where the papers write them all.
_atari = Collect(envs=16, length=1)
_explore = Act(Schedule(1.0, 0.01, steps=100_000))
PRESETS["mfec_atari"] = Episodic(
    memory="dictionary",
    dictionary=Dictionary(capacity=100_000, neighbors=11, update="max"),
    encoder=Encoder("random", dim=64),
    write=Write(n=1000, drain=1, bootstrap=False),
    acting=replace(_explore, epsilon=Schedule(1.0, 0.005, steps=100_000)),
    collect=_atari,
)
# NEC (Pritzel et al. 2017): one gradient step for 16 frames, which are four steps. RMSprop with DQN's constants; DQN
# also subtracts the gradient's mean.
_dqn_rmsprop = Optimiser("rmsprop", lr=1e-5, rms_decay=0.95, eps=0.01, rms_eps="in_root")
PRESETS["nec_atari"] = Episodic(
    memory="dictionary",
    dictionary=Dictionary(capacity=100_000, neighbors=50, update="average", rate=0.1),
    encoder=Encoder("conv", dim=64, width=256),
    write=Write(n=100, drain=1),
    acting=_explore,
    learn=Learn(optimiser=_dqn_rmsprop, capacity=100_000, steps=4),
    collect=_atari,
)
# Graphs: one table of nodes for all actions, keys are random projections. Values start at n-step targets, as above,
# and then follow the values of the next nodes.
_gq_atari = Episodic(
    memory="graph",
    graph=Graph(capacity=100_000, edges_per_node=8, neighbors=11, value_rate=0.1),
    encoder=Encoder("random", dim=64),
    write=Write(n=100, drain=1, later="one_step"),
    acting=_explore,
    collect=_atari,
)
PRESETS["gq_atari"] = _gq_atari
# Paths are searched through all nodes, so that a call takes as long as hundreds of steps.
_atari_paths = Reconstruct("key_paths", every=256, paths=32, length=64)
PRESETS["gqsi_atari"] = replace(_gq_atari, abstract=Abstract("degree", nodes=16), reconstruct=_atari_paths)
PRESETS["gqil_atari"] = replace(_gq_atari, abstract=Abstract("common", nodes=16, length=2048), reconstruct=_atari_paths)
PRESETS["gbmr_atari"] = replace(_gq_atari, abstract=Abstract("gnn", nodes=16), reconstruct=_atari_paths)

# -- the complete framework of the notes ----------------------------------------------------------------------------
# A variational encoder with a value head, a directed graph of its features whose keys follow it slowly, key nodes,
# reconstruction, and a policy fused from state, episode and memory, which learns by A2C. For images and other
# observations, small or large.
PRESETS["gbmr_framework"] = Episodic(
    memory="graph",
    graph=Graph(capacity=16_384, edges_per_node=8, neighbors=11, merge=0.5, key_rate=0.1, value_rate=0.5),
    encoder=Encoder("vae", dim=32, vae=Vae(kl=1e-2, value=1.0)),
    write=Write(n=16, drain=2, later="one_step"),
    actor=MemoryActor("fused"),
    abstract=Abstract("gnn", nodes=16, gnn=Gnn(steps=8)),
    reconstruct=Reconstruct("key_paths", every=16, paths=32, length=32),
    learn=Learn(optimiser=Optimiser("adam", lr=5e-4), capacity=50_000, start=500, steps=4),
    collect=Collect(envs=16, length=8),
)
