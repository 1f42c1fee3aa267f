"""Pictures of hypernetworks: how large the increments are, and at whom the agents look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import polars as pl
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rookery.algorithms.ppo import PPO
from rookery.core.types import Carry, Step
from rookery.mechanisms.hyper import HyperActor
from rookery.nets.increments import squared_norm
from rookery.ops import distributions
from rookery.studies.pictures.moment import Moment, episode

_METRIC = "hyper/increment/"


@dataclass(frozen=True)
class Looks:
    """One greedy episode."""

    size: Float[np.ndarray, "time agent"]
    """Norm of the increment that is applied; nan where an agent is dead."""
    attention: Float[np.ndarray, "agent seen"] | None
    """Mean over the rows in which the looking agent lives; None without attention (scope local)."""


def looks_of(moment: Moment) -> Looks:
    """Increments and attention of one greedy episode."""
    algo, spec, policy = moment.algo, moment.config.task.spec, moment.policy
    assert isinstance(algo, PPO)
    actor = algo.hyper.actor(algo.actor, agent_id=algo.agent_id)
    assert isinstance(actor, HyperActor)

    def read(carry: Carry, step: Step, key: Array) -> Any:
        rows = jax.tree.map(lambda x: x[None], step)
        carry, now, aux = actor.read(spec, policy, carry, rows)
        action = distributions.sample(spec.action, now.params[0], now.log_std, step.legal, key, greedy=True)
        size = jnp.sqrt(jnp.maximum(squared_norm(aux["gram"], aux["applied"][0]), 0.0))
        return actor.took(spec, carry, action), action, (size, aux["looks"][0] if "looks" in aux else ())

    step, (size, looks) = episode(moment, read)
    alive = np.asarray(step.alive)
    attention = None if isinstance(looks, tuple) else _mean_looks(looks, alive)
    return Looks(np.where(alive, size, np.nan), attention)


def _mean_looks(looks: np.ndarray, alive: np.ndarray) -> Float[np.ndarray, "agent seen"]:
    weight = alive.astype(float)[..., None]
    return (looks * weight).sum(axis=0) / np.maximum(weight.sum(axis=0), 1.0)


def hyper_figure(moment: Moment) -> Figure:
    """Size of the increments over training and within an episode, and the attention over agents."""
    seen, agents = looks_of(moment), moment.config.task.spec.agents
    panels = 2 if seen.attention is None else 3
    figure = Figure(figsize=(4.6 * panels, 4.2))
    over, within, *rest = (figure.add_subplot(1, panels, i + 1) for i in range(panels))
    history = moment.run.metrics().filter(pl.col("member") == moment.member)
    colors = matplotlib.colormaps["tab10" if len(agents) <= 10 else "turbo"]
    shades = [colors(i if len(agents) <= 10 else i / len(agents)) for i in range(len(agents))]
    for i, name in enumerate(agents):
        over.plot(history["steps"], history[_METRIC + name], color=shades[i], label=name, linewidth=1.4)
        within.plot(seen.size[:, i], color=shades[i], label=name, linewidth=1.4)
    if moment.steps < moment.config.steps:
        over.axvline(moment.steps, color="#888888", linewidth=0.8, linestyle="--")
    over.xaxis.set_major_formatter(EngFormatter(sep=""))
    over.set(title="over training", xlabel="environment steps", ylabel="size of the increment |Δθ|, mean of a chunk")
    within.set(title="in a greedy episode", xlabel="step of the episode", ylabel="size of the increment |Δθ|")
    over.legend(fontsize=7, ncols=1 + len(agents) // 9)
    for axis in (over, within):
        axis.set_ylim(bottom=0)
    for axis in rest:
        assert seen.attention is not None
        _draw_attention(figure, axis, seen.attention, agents)
    figure.suptitle(moment.title)
    return figure


def _draw_attention(figure: Figure, axis: Axes, attention: np.ndarray, agents: tuple[str, ...]) -> None:
    image = axis.imshow(attention, cmap="magma", vmin=0)
    axis.grid(visible=False)
    axis.set_xticks(range(len(agents)), agents, rotation=40, ha="right", fontsize=7)
    axis.set_yticks(range(len(agents)), agents, fontsize=7)
    if len(agents) <= 10:
        dark = attention < 0.6 * attention.max()
        for (i, j), share in np.ndenumerate(attention):
            axis.text(
                j, i, f"{share:.2f}", ha="center", va="center", color="white" if dark[i, j] else "black", fontsize=8
            )
    axis.set(title="attention, mean over the episode", xlabel="looked at", ylabel="looking agent")
    figure.colorbar(image, ax=axis, label="share of attention (mean of heads)", shrink=0.8)
