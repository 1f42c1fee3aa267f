"""Compiled particle worlds beside the originals: policies that were trained on compiled MPE play mpe2.

    python benchmarks/originals.py [SCENARIO...] [--preset ippo] [--steps 100000] [--seeds 2] [--episodes 512] [--out F]

Each scenario is trained with all seeds in one run. Every seed's last policy then plays greedy episodes in both worlds.
Printed for each team: the mean return per agent in each world, and the difference with its 95% interval (episodes of
all seeds; the interval is what two samples of equal means would rarely leave). Start states are drawn by each world.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import rookery
from rookery.core.keys import stream
from rookery.core.registry import find_task
from rookery.training.compiled.compiler import use_compilation_cache
from rookery.training.config import RunConfig, Workers
from rookery.training.engine import open_engine
from rookery.training.state import Policies

ORIGINALS = {
    "simple_spread": "mpe2.simple_spread_v3",
    "simple_speaker_listener": "mpe2.simple_speaker_listener_v4",
    "simple_reference": "mpe2.simple_reference_v3",
    "simple_adversary": "mpe2.simple_adversary_v3",
    "simple_tag": "mpe2.simple_tag_v3",
    "simple_push": "mpe2.simple_push_v3",
}


def main() -> None:
    """A line of a table for each team of each chosen scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(ORIGINALS))
    parser.add_argument("--preset", default="ippo")
    parser.add_argument("--steps", type=int, default=100_000, help="of training, for each seed")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=512, help="of each seed in each world")
    parser.add_argument("--out", type=Path, help="JSON file; what it holds of other scenarios is kept")
    given = parser.parse_args()
    results = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    print("| scenario | team | compiled | mpe2 | difference | 95% interval |\n|---|---|---|---|---|---|")
    for scenario in given.scenarios or ORIGINALS:
        results[scenario] = compare(scenario, given.preset, given.steps, given.seeds, given.episodes)
        for team, found in results[scenario].items():
            means = " | ".join(f"{found[name]:.2f}" for name in ("compiled", "mpe2", "difference"))
            print(f"| {scenario} | {team} | {means} | ±{found['interval']:.2f} |", flush=True)
        if given.out:
            given.out.write_text(json.dumps(results, indent=1))


def compare(scenario: str, preset: str, steps: int, seeds: int, episodes: int) -> dict[str, dict[str, float]]:
    """Train on the compiled world, play both; returns the mean returns of each team."""
    use_compilation_cache()
    values: dict[str, Any] = {"evaluation.points": 1, "evaluation.episodes": min(episodes, 128), "evaluation.final": 1}
    config = rookery.config(preset, f"mpe/{scenario}", steps=steps, seeds=seeds, **values)
    with tempfile.TemporaryDirectory() as folder:
        policies = rookery.train(config, folder).policies
    name = f"pettingzoo:{ORIGINALS[scenario]}"
    original = replace(config, task_name=name, task=find_task(name), workers=Workers(count=0))
    for fact in ("agents", "obs_shape", "action"):
        ours, theirs = getattr(config.task.spec, fact), getattr(original.task.spec, fact)
        if ours != theirs:
            raise SystemExit(f"{scenario}: {fact} differ: {ours} and {theirs}.")
    compiled, played = (returns(c, policies, episodes) for c in (config, original))
    spec = original.task.spec
    teams = spec.teams or ("all",) * spec.n_agents
    found = {}
    for team in dict.fromkeys(teams):
        members = np.array([t == team for t in teams])
        a, b = (x[:, members].mean(axis=1) for x in (compiled, played))
        spread = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
        means = {"compiled": float(a.mean()), "mpe2": float(b.mean()), "difference": float(b.mean() - a.mean())}
        found[team] = {**means, "interval": float(1.96 * spread)}
    return found


def returns(config: RunConfig, policies: Policies, episodes: int) -> np.ndarray:
    """Returns [episode, agent] of the last policies of all seeds."""
    played = []
    with closing(open_engine(config)) as engine:
        for call in range(-(-episodes // config.evaluation.episodes)):
            keys = jnp.stack([stream(key, "originals", call) for key in policies.key])
            found = np.asarray(engine.play(policies, keys)["last"]["returns"])
            played.append(found.reshape(-1, found.shape[-1]))
    return np.concatenate(played)


if __name__ == "__main__":
    main()
