"""Individual credit from a team's TD error (DIFFER, Hu et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.errors import ConfigError
from rookery.core.ranges import NonNegative
from rookery.core.types import Clock, Collect, Mean, Metrics, team_discount
from rookery.mechanisms.agent_values import Weights
from rookery.memory.learning import Minibatch
from rookery.memory.replay import proportional
from rookery.nets.optimiser import Optimiser, Schedule


class Experience(eqx.Module):
    """Individual transitions: what an agent's own TD error was made of."""

    q: Float[Array, "time batch agent"]
    error: Float[Array, "time batch agent"]
    reward: Float[Array, "time batch agent"]
    discount: Float[Array, "time batch agent"]
    lived: Bool[Array, "time batch agent"]
    """Which of them a living agent chose: others may learn from these."""
    weight: Float[Array, "time batch agent"]
    """How much each counts in its agent's own loss; whoever else learns from it weighs it alike."""


@dataclass(frozen=True)
class Credit:
    """DIFFER: the mixer learns from the team's TD error, each agent from its own share of it.

    With delta_tot = Q_tot - y, agent i's TD error is g_i * delta_tot, g_i = dQ_tot / dQ_i. Its reward is what makes
    this its one-step TD error: r_i = Q_i - gamma (1 - d_i) Qbar_i - g_i delta_tot. The target y may be of any kind,
    also TD(lambda): what is taken from it is delta_tot alone.
    """

    kind: Literal["none", "differ"] = "none"
    """none: agents learn through the mixer's gradient. differ: from individual TD errors."""
    select: Literal["all", "greedy", "greedy_weight", "per", "per_weight"] = "per_weight"
    """Which individual transitions of a batch are learnt from: all; the largest |TD errors|; those, weighted by how
    much they exceed the smallest chosen; drawn by priority; drawn, with importance weights."""
    fraction: Schedule = field(default_factory=lambda: Schedule(0.8, 1.0, steps=0, share=0.6))
    """Share of the transitions that is chosen, or draws per transition."""
    alpha: NonNegative = 0.8
    """Draws: chance ~ (|TD error| + eps) to this power."""
    eps: NonNegative = 0.1
    """Draws: added to |TD errors|, so that every transition can be drawn."""
    eps_relative: bool = True
    """Whether `eps` is a multiple of the batch's mean |TD error|. An absolute one (as published) outweighs all errors
    where rewards are small."""
    beta: Schedule = field(default_factory=lambda: Schedule(0.6, 1.0, steps=0, share=1.0))
    """Draws: power of the importance weights."""
    clip: NonNegative = 10.0
    """Largest |dQ_tot / dQ_i|; 0: no limit."""
    mixer_optimiser: Optimiser = field(default_factory=Optimiser)
    """How the mixer learns (the agents: `optimiser`)."""

    @property
    def on(self) -> bool:
        """Whether agents learn from individual TD errors."""
        return self.kind != "none"

    def check(self, mixer: str, collect: Collect) -> None:
        """Refuse configs without a team TD error, and shards, which see part of a batch."""
        if self.on and mixer == "none":
            raise ConfigError(
                f"algo.credit.kind '{self.kind}' divides a team's TD error among its agents; mixer 'none' has none to "
                "divide. Use --algo.mixer.kind vdn or qmix."
            )
        if self.on and collect.shards > 1:
            raise ConfigError(
                "algo.credit chooses among all transitions of a batch, which several shards do not see; use "
                "--algo.collect.shards 1."
            )

    # -- optimisers ---------------------------------------------------------------------------------------------
    def init(self, optimiser: Optimiser, weights: Weights) -> Any:
        """Optimiser states: the agents' and the mixer's; without credit, one of all weights."""
        if not self.on:
            return optimiser.init(weights)
        return optimiser.init(weights.agent), self.mixer_optimiser.init(weights.mixer)

    def step(
        self, optimiser: Optimiser, weights: Weights, grads: Weights, opt: Any, progress: Float[Array, ""]
    ) -> tuple[Weights, Any]:
        """Weights and optimiser states after a gradient step."""
        if not self.on:
            return optimiser.step(weights, grads, opt, progress)
        agent, opt_agent = optimiser.step(weights.agent, grads.agent, opt[0], progress)
        mixer, opt_mixer = self.mixer_optimiser.step(weights.mixer, grads.mixer, opt[1], progress)
        return Weights(agent, mixer), (opt_agent, opt_mixer)

    # -- losses -------------------------------------------------------------------------------------------------
    def learn(
        self,
        mix: Callable[[Array], Array],
        q: Float[Array, "time batch agent"],
        v: Float[Array, "time batch agent"],
        delta: Float[Array, "time batch team"],
        gamma: float,
        sees: Minibatch,
    ) -> tuple[Experience, Mean, Metrics]:
        """Individual transitions, and the mean squared TD error of those that are chosen.

        `mix` gives the team's value of agents' values; `q` and `v` are each agent's value of what it did and (target)
        of where it came to; `delta` is the team's TD error, or without credit the agents' own.
        """
        batch, lived = sees.batch, sees.batch.active
        if not self.on:
            discount = jnp.broadcast_to(gamma * team_discount(batch.step)[1:, :, None], q.shape)
            # Dead rows too: with the team's discount their values are bootstrapped from.
            valid = jnp.broadcast_to(batch.filled[..., None], q.shape)
            mine = Experience(q, delta, batch.step.reward[1:], discount, lived, valid.astype(jnp.float32))
            own = Mean.of(sees.draw.weigh(delta**2), valid)
            return jax.lax.stop_gradient(mine), own, {"own_loss": own}
        error = self.errors(mix, q, delta)
        target, discount = jax.lax.stop_gradient(q - error), gamma * batch.step.discount[1:]
        chosen, metrics = self.weights(sees.key("credit"), jax.lax.stop_gradient(error), lived, sees.clock)
        mine = jax.lax.stop_gradient(Experience(q, error, target - discount * v, discount, lived, chosen))
        metrics |= {
            "credit_error": Mean.of(jnp.abs(mine.error), lived),
            "credit_reward": Mean.of(mine.reward, lived),
        }
        own = Mean.of(sees.draw.weigh(chosen * (q - target) ** 2), lived)
        return mine, own, {**metrics, "own_loss": own}

    def errors(
        self, mix: Callable[[Array], Array], q: Float[Array, "*b agent"], delta: Float[Array, "*b team"]
    ) -> Float[Array, "*b agent"]:
        """Individual TD errors g_i * delta_tot."""
        slope = jax.grad(lambda q: jnp.sum(mix(q)))(q)
        if self.clip:
            slope = jnp.clip(slope, -self.clip, self.clip)
        return slope * delta

    def weights(
        self, key: Array, error: Float[Array, "*b"], valid: Bool[Array, "*b"], clock: Clock
    ) -> tuple[Float[Array, "*b"], Metrics]:
        """How much each individual transition counts in the loss: 0 where it was not chosen."""
        fraction = self.fraction.at(clock.steps, clock.budget)
        size, mask = jnp.abs(error).reshape(-1), valid.reshape(-1)
        n = jnp.sum(mask)
        chosen = jnp.ceil(fraction * n).astype(jnp.int32)
        if self.select == "all":
            weight = mask.astype(jnp.float32)
        elif self.select in ("greedy", "greedy_weight"):
            weight = self._greedy(size, mask, chosen)
        else:
            weight = self._drawn(key, size, mask, n, chosen, clock)
        spread = jnp.sum(weight) ** 2 / jnp.maximum(jnp.sum(weight**2), 1e-9)
        metrics = {
            "credit_fraction": Mean.of(fraction),
            "credit_used": Mean.of((weight > 0).astype(jnp.float32), mask),
            "credit_ess": Mean.of(spread / jnp.maximum(n, 1)),
        }
        return weight.reshape(error.shape), metrics

    def _greedy(self, size: Array, mask: Array, chosen: Array) -> Float[Array, "n"]:
        """The `chosen` largest."""
        order = jnp.argsort(jnp.where(mask, -size, jnp.inf))
        top = jnp.zeros(size.shape, bool).at[order].set(jnp.arange(size.size) < chosen)
        if self.select == "greedy":
            return top.astype(jnp.float32)
        pivot = jnp.min(jnp.where(top, size, jnp.inf))
        beyond = jnp.where(top, size - pivot, 0.0)
        most = jnp.max(beyond)
        # Where all are equal, none exceeds another: they count alike.
        return jnp.where(top, jnp.where(most > 0, beyond / jnp.maximum(most, 1e-9), 1.0), 0.0)

    def _drawn(self, key: Array, size: Array, mask: Array, n: Array, chosen: Array, clock: Clock) -> Float[Array, "n"]:
        """How often each was drawn, with replacement, times its importance weight."""
        unit = jnp.sum(size * mask) / jnp.maximum(n, 1) if self.eps_relative else 1.0
        # The tiny number is for a batch without any error: everything is drawn alike.
        mass = jnp.where(mask, (size + self.eps * unit + 1e-12) ** self.alpha, 0.0)
        # As many draws as there are places, of which the first `chosen` count: shapes are fixed, fractions are not.
        index = proportional(key, mass, size.size)
        count = jnp.zeros(size.shape).at[index].add((jnp.arange(size.size) < chosen).astype(jnp.float32))
        count = jnp.where(mask, count, 0.0)  # rounding of cumulative sums must not let padding in
        if self.select == "per":
            return count
        beta = self.beta.at(clock.steps, clock.budget)
        weight = (n * mass / jnp.sum(mass)) ** -beta
        return jnp.where(count > 0, count * weight / jnp.max(jnp.where(count > 0, weight, 0.0)), 0.0)
