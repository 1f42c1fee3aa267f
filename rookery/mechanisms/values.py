"""What a value network's outputs mean: values or distributions of returns, in one stream or two, with noise or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core import shards
from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import NonNegative, Whole
from rookery.core.types import Mean, Metrics, Spec, Step, team_discount
from rookery.nets import noisy
from rookery.nets.agent import Net, Params
from rookery.nets.noisy import Noisy
from rookery.ops import categorical, returns, td


class Aims(eqx.Module):
    """What targets are made of besides values: aligned with the rows that transitions led to."""

    r_t: Float[Array, "time b n"]
    discount_t: Float[Array, "time b n"]
    rows: Int[Array, "time b n"] | None
    """The row that each target bootstraps from; None: its own."""

    @staticmethod
    def of(step: Step, gamma: Any, team: Literal["none", "mean", "sum"], n: int) -> Aims:
        """Of targets that add up the rewards of up to n transitions, of each agent or of what a team makes of them."""
        r_t = step.reward[1:]
        if team != "none":
            r_t = (jnp.mean if team == "mean" else jnp.sum)(r_t, axis=-1, keepdims=True)
        discount_t = jnp.broadcast_to(gamma * team_discount(step)[1:, :, None], r_t.shape)
        return Aims(r_t, discount_t, None) if n == 1 else Aims(*returns.n_step_rows(r_t, discount_t, step.last, n))

    def at(self, x: Float[Array, "time b n *each"]) -> Float[Array, "time b n *each"]:
        """What the rows that targets bootstrap from have of `x`."""
        if self.rows is None:
            return x
        return jnp.take_along_axis(x, self.rows.reshape(*self.rows.shape, *[1] * (x.ndim - 3)), axis=0)


@dataclass(frozen=True)
class Values:
    """Extensions of action values that Rainbow (Hessel et al. 2018) joins."""

    dueling: bool = False
    """Q = V + A - mean A, with a stream of layers of its own for V: `net.layers_after` of them (Wang et al. 2016)."""
    atoms: Whole = 0
    """Atoms of a distribution of returns, learned instead of their mean (C51, Bellemare et al. 2017); 0: none."""
    low: float = -10.0
    """Smallest return of a distribution."""
    high: float = 10.0
    """Largest return of a distribution."""
    noisy: NonNegative = 0.0
    """Deviation at the start, times sqrt(inputs), of learned noise on dense layers while collecting and learning
    (NoisyNet, Fortunato et al. 2018: 0.5); 0: none."""

    def check(self, net: Net, *, alone: bool) -> None:
        """Refuse what does not go together; `alone`: agents learn from nothing but their own returns."""
        if self.atoms and (self.atoms == 1 or not self.low < self.high):
            raise ConfigError(
                f"algo.values needs at least 2 atoms between low and high; got {self.atoms} from {self.low:g} to "
                f"{self.high:g}."
            )
        if self.atoms and not alone:
            raise ConfigError(
                "algo.values.atoms learns the distribution of an agent's own return: it needs --algo.mixer.kind none, "
                "--algo.td-lambda 0, and neither algo.credit nor algo.share nor algo.huber."
            )
        if net.kind == "transformer" and (self.dueling or self.atoms or self.noisy):
            raise ConfigError("algo.values reads one layer of outputs, but a transformer has several: use mlp or gru.")

    @property
    def _each(self) -> int:
        """Outputs for one action."""
        return self.atoms or 1

    @property
    def _atoms(self) -> Float[np.ndarray, "atom"]:
        return categorical.support(self.low, self.high, self.atoms)

    def init(self, net: Net, spec: Spec, n_in: int, key: Array) -> Params | Noisy:
        """Fresh weights."""
        outputs, shapes = spec.action.width * self._each, (spec.entities, spec.obs_shape)
        params = net.init(key, spec.n_agents, n_in, outputs, 0.1, *shapes, aside=self._each if self.dueling else 0)
        return noisy.noisy(params, self.noisy) if self.noisy else params

    def weights(self, agent: Params | Noisy, key: Callable[[], Array] | None) -> Params:
        """The network to be read: with noise, or without a key its mean."""
        if not isinstance(agent, Noisy):
            return agent
        # All shards must draw the same.
        return agent.mean if key is None else noisy.drawn(agent, stream(shards.total(key()), "noise"))

    def read(self, y: Float[Array, "*b n"]) -> Float[Array, "*b action *atom"]:
        """A network's outputs as values of actions, or as the logits of their distributions."""
        each = self._each
        if self.dueling:
            y, value = y[..., :-each], y[..., None, -each:]
            advantage = y.reshape(*y.shape[:-1], -1, each)
            y = value + advantage - jnp.mean(advantage, axis=-2, keepdims=True)
            return y if self.atoms else y[..., 0]
        return y.reshape(*y.shape[:-1], -1, each) if self.atoms else y

    def expected(self, values: Float[Array, "*b action *atom"]) -> Float[Array, "*b action"]:
        """Expected returns."""
        return jax.nn.softmax(values) @ self._atoms if self.atoms else values

    def metrics(
        self, agent: Params | Noisy, y: Float[Array, "row b agent action *atom"], filled: Bool[Array, "time b"]
    ) -> Metrics:
        """What each extension that is on does."""
        found: Metrics = {}
        if isinstance(agent, Noisy):
            found["noise"] = Mean.of(noisy.size(agent))
        if not (self.dueling or self.atoms):
            return found
        y, valid = jax.lax.stop_gradient(y[:-1]), filled[..., None]
        if self.dueling:
            q = self.expected(y)
            found["advantage"] = Mean.of(jnp.max(q, axis=-1) - jnp.mean(q, axis=-1), valid)
        if self.atoms:
            p, z = jax.nn.softmax(y), self._atoms
            found["return_spread"] = Mean.of(jnp.mean(jnp.sqrt(p @ z**2 - (p @ z) ** 2 + 1e-9), axis=-1), valid)
        return found

    # -- distributions ------------------------------------------------------------------------------------------
    def of_action(self, y: Float[Array, "*b action atom"], action: Int[Array, "*b"]) -> Float[Array, "*b atom"]:
        """The logits of one action."""
        by_atom = jnp.swapaxes(y, -1, -2)
        return td.take(by_atom, jnp.broadcast_to(action[..., None], by_atom.shape[:-1]))

    def errors(
        self,
        y: Float[Array, "row b agent action atom"],
        y_target: Float[Array, "row b agent action atom"],
        legal: Bool[Array, "row b agent action"],
        action: Int[Array, "time b agent"],
        aims: Aims,
        *,
        double: bool,
    ) -> Float[Array, "time b agent"]:
        """Cross entropies of the distributions of the actions taken, relative to those that `aims` make of the rows
        that they led to."""
        best = jnp.argmax(td.only_legal(self.expected(y if double else y_target), legal), axis=-1)
        follow = aims.at(self.of_action(y_target, best)[1:])
        z = aims.r_t[..., None] + aims.discount_t[..., None] * self._atoms
        p = jax.lax.stop_gradient(categorical.project(jax.nn.softmax(follow), z, self._atoms))
        return categorical.cross_entropy(p, self.of_action(y[:-1], action))


def check_n_step(n: int, unit: str, *, last_action: bool, other: bool) -> None:
    """Refuse n-step targets beside `other` targets, and where an action would be missing."""
    if n > 1 and other:
        raise ConfigError("algo.n_step needs --algo.td-lambda 0 and --algo.share.select none: both have own targets.")
    if n > 1 and unit == "transition" and last_action:
        raise ConfigError(
            f"algo.n_step ({n}) joins transitions, which leaves no place for the action before the row that they lead "
            "to: use --algo.no-last-action."
        )
