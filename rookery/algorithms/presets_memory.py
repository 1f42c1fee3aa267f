"""Named settings of memory agents. Plain names are our own; `_published` says whose settings a preset has."""

from __future__ import annotations

from dataclasses import replace

from rookery.algorithms import presets  # noqa: F401  (per is a dqn)
from rookery.algorithms.episodic import Act, Episodic, Learn, Write
from rookery.core.registry import PRESETS
from rookery.core.types import Collect
from rookery.mechanisms.encode import Encoder
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
# MFEC (Blundell et al. 2016): the best return so far of every state and action, keys are random projections.
PRESETS["mfec"] = Episodic(
    memory="dictionary",
    dictionary=Dictionary(capacity=10_000, neighbors=11, update="max"),
    encoder=Encoder("random", dim=64),
    write=Write(n=100, drain=4),
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
