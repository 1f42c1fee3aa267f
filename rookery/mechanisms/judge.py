"""Small networks that learn which shared transitions, and whose, reduce the receivers' TD errors."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.types import Arrays, Mean, Metrics
from rookery.nets.layers import Linear, linear
from rookery.nets.optimiser import Optimiser

FEATURES, WIDTH = 5, 16
OPTIMISER = Optimiser("adam", lr=1e-3)


class JudgeParams(eqx.Module):
    score: tuple[Linear, Linear]
    receiver: Linear
    sender: Linear


class Clues(eqx.Module):
    """What can be known of borrowed transitions beforehand."""

    transition: Float[Array, "time column agent feature"]
    receiver: Float[Array, "column agent n"]
    """What the receiver saw on average."""
    sender: Float[Array, "column agent n"]
    """What the sender saw on average."""


class Judge(eqx.Module):
    """A scorer of transitions, and attention between agents (as in TarMAC, Das et al. 2019)."""

    params: JudgeParams
    opt: Arrays

    @staticmethod
    def init(key: Array, n_obs: int) -> Judge:
        """Nothing known: all expectations near 0."""
        k = jax.random.split(key, 4)
        score = (linear(k[0], FEATURES, WIDTH, 2**0.5), linear(k[1], WIDTH, 1, 0.1))
        params = JudgeParams(score, linear(k[2], n_obs, WIDTH, 0.1), linear(k[3], n_obs, WIDTH, 0.1))
        return Judge(params, OPTIMISER.init(params))

    def score(self, transition: Float[Array, "*b feature"]) -> Float[Array, "*b"]:
        """How much a transition is expected to help."""
        return _score(self.params, transition)

    def look(self, obs: Float[Array, "batch agent n"]) -> Float[Array, "batch agent agent"]:
        """How much each receiver is expected to gain from each sender."""
        receiver, sender = self.params.receiver(obs), self.params.sender(obs)
        return jnp.einsum("brw,bsw->brs", receiver, sender) / WIDTH**0.5

    def learn(
        self,
        clues: Clues,
        gain: Float[Array, "time column agent"],
        accepted: Bool[Array, "time column agent"],
        progress: Float[Array, ""],
    ) -> tuple[Judge, Metrics]:
        """One gradient step towards the gains that were seen."""
        of_pair = jnp.sum(gain * accepted, axis=0) / jnp.maximum(jnp.sum(accepted, axis=0), 1)

        def loss(p: JudgeParams) -> tuple[Array, Metrics]:
            pairs = jnp.sum(p.receiver(clues.receiver) * p.sender(clues.sender), axis=-1) / WIDTH**0.5
            transitions = Mean.of((_score(p, clues.transition) - gain) ** 2, accepted)
            partners = Mean.of((pairs - of_pair) ** 2, jnp.any(accepted, axis=0))
            return transitions.value + partners.value, {
                "share_judge_transitions": transitions,
                "share_judge_partners": partners,
            }

        grads, metrics = jax.grad(loss, has_aux=True)(self.params)
        return Judge(*OPTIMISER.step(self.params, grads, self.opt, progress)), metrics


def _score(p: JudgeParams, transition: Array) -> Array:
    return p.score[1](jax.nn.relu(p.score[0](transition)))[..., 0]
