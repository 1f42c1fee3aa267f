"""Selective sharing of experience between agents (SUPER, Gerstgrasser et al. 2023, and INSPIRE on DIFFER)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Fraction, Positive, Whole
from rookery.core.types import Collect, Mean, Metrics, Spec, Step
from rookery.mechanisms import measures
from rookery.mechanisms.credit import Experience
from rookery.mechanisms.judge import Clues, Judge
from rookery.memory.learning import Minibatch
from rookery.memory.sequences import Sequence, borrow, columns

PROBE = 8
"""One in so many borrowed sequences is read again after the gradient step, to see what it taught."""


class Recent(eqx.Module):
    """The sharing state: each agent's last |TD errors| as a ring, its role, and how well judgements were."""

    errors: Float[Array, "agent window"]
    seen: Int[Array, "agent"]
    roles: Float[Array, "agent feature"] | None
    """What each agent sees and does on average; None where nobody asks."""
    judge: Judge | None


class Borrowed(eqx.Module):
    """Senders' sequences as their receivers read them; the agent axis is the receiver's."""

    sequence: Sequence
    target: Float[Array, "time column agent"]
    accepted: Bool[Array, "time column agent"]
    before: Float[Array, "time column agent"]
    """Receivers' |TD errors|."""
    clues: Clues | None


class Shared(eqx.Module):
    """What a loss leaves of sharing."""

    recent: Recent
    borrowed: Borrowed | None
    """A few of the sequences that were borrowed; None where tokens were heard instead."""


class Receivers(NamedTuple):
    """How agents read what is shared with them."""

    read: Callable[[Sequence], tuple[Array, Array]]
    """Their values of the actions taken in a sequence, and (target) of the rows that these led to."""
    hear: Callable[[Array, Array], Array]
    """Their values of their own actions, with tokens of these senders, where present."""
    aim: Callable[[Array, Array, Array, Array], Array]
    """Targets from rewards, discounts, values of next rows, and `last`."""
    fresh: bool
    """Whether they begin with an empty memory, because the senders' was made by another network."""


@dataclass(frozen=True)
class Share:
    """Receivers learn from senders' transitions, read with their own weights and id. Five choices, each a setting."""

    select: Literal["none", "quantile", "gaussian", "gaussian_upper", "stochastic", "learned", "all"] = "none"
    """What is offered: nothing; the largest |TD errors|; those outside mean +- z std, or above it only (SUPER); at
    random, the larger the likelier; those expected to help receivers most; everything."""
    partners: Literal["everyone", "team", "range", "similar", "role", "attention"] = "everyone"
    """Whose offers an agent reads: anybody's; its team's; and of these, those near it; with the most similar
    observations; of its role; those that attention picks."""
    accept: Literal["everything", "novel", "closer"] = "everything"
    """What is taken: all; what surprises the receiver more than its own experience; what does so about as much."""
    schedule: Literal["constant", "entropy", "mutual_information"] = "constant"
    """How much is offered: `bandwidth`; or between `floor` and `ceiling`, the more the more even the |TD errors| are,
    or the less agents' observations tell about each other's."""
    form: Literal["transitions", "embeddings"] = "transitions"
    """In what form: transitions, which receivers learn from as from their own; or (transformers) what the sender makes
    of them, a token that the receiver looks at while it learns from its own, and does without when it acts."""
    drop: Fraction = 0.5
    """embeddings: share of the tokens that is left out at random."""
    bandwidth: Fraction = 0.1
    """Share of its transitions that an agent offers."""
    floor: Fraction = 0.02
    """Least share offered by a schedule."""
    ceiling: Fraction = 0.2
    """Largest share offered by a schedule."""
    max_partners: Whole = 1
    """Senders that each agent reads per sequence: the cost. 0: all others (SUPER)."""
    window: Count = 1500
    """Recent |TD errors| of each agent that quantiles, means and deviations are of."""
    radius: Positive = 0.5
    """range: largest distance of positions. role: width of a cluster, in deviations of role features."""
    metric: Literal["l1", "l2"] = "l2"
    """How distances of positions and observations are measured."""
    alone: Literal["skip", "widen"] = "skip"
    """range and role: with nobody in reach, read nobody or the nearest one."""

    # -- what it needs ------------------------------------------------------------------------------------------
    @property
    def on(self) -> bool:
        """Whether anything is shared."""
        return self.select != "none"

    def check(self, spec: Spec, collect: Collect, *, individual: bool, same: bool, tokens: bool) -> None:
        """Refuse what cannot be shared. `individual`: agents have TD errors of their own; `same`: all agents have one
        network and no index; `tokens`: the network can attend to others' tokens."""
        if not self.on:
            return
        if not individual:
            raise ConfigError(
                "algo.share needs individual rewards: --algo.credit.kind differ, or --algo.mixer.kind none (SUPER)."
            )
        if collect.shards > 1:
            raise ConfigError(
                "algo.share chooses among all transitions of a batch, which several shards do not see; use "
                "--algo.collect.shards 1."
            )
        if spec.n_agents < 2:
            raise ConfigError(f"algo.share.select '{self.select}' needs at least two agents; {spec.name} has one.")
        if self.form == "embeddings":
            self._check_embeddings(tokens)
        elif same:
            raise ConfigError(
                "algo.share: with shared weights and no agent id, receivers are their senders. Use --algo.agent-id or "
                "--algo.net.weights per_agent."
            )
        if self.partners == "range" and not spec.position:
            raise ConfigError(
                f"algo.share.partners 'range' needs positions; {spec.name} has none in its observations. Try similar, "
                "team or everyone."
            )
        self._check_layout(spec)
        if not 0 < self.bandwidth < 1 or not 0 < self.floor <= self.ceiling < 1:
            raise ConfigError(
                f"algo.share: bandwidth, floor and ceiling are shares between 0 and 1, floor <= ceiling; got "
                f"{self.bandwidth}, {self.floor}, {self.ceiling}."
            )

    def _check_embeddings(self, tokens: bool) -> None:
        if not tokens:
            raise ConfigError("algo.share.form 'embeddings' needs transformer agents: --algo.net.kind transformer.")
        if self.judged:
            raise ConfigError(
                "algo.share.form 'embeddings' brings no transition whose use could be seen afterwards, so neither "
                "select 'learned' nor partners 'attention' can learn. Use --algo.share.form transitions."
            )
        if not 0 <= self.drop < 1:
            raise ConfigError(f"algo.share.drop is a share from 0 to below 1; got {self.drop}.")

    def _check_layout(self, spec: Spec) -> None:
        """An observation means nothing to an agent of another kind."""
        for sizes in (spec.obs_sizes, spec.action_sizes):
            for i, j in np.argwhere(self._may(spec)):
                if sizes and sizes[i] != sizes[j]:
                    raise ConfigError(
                        f"algo.share: {spec.agents[i]} and {spec.agents[j]} of {spec.name} see or do different things, "
                        f"so neither can learn from the other (partners '{self.partners}')."
                    )

    def _may(self, spec: Spec) -> np.ndarray:
        """Who may read whose offers at all: [receiver, sender]."""
        teams = np.array(spec.teams or [""] * spec.n_agents)
        same = np.ones((spec.n_agents,) * 2, bool) if self.partners == "everyone" else teams[:, None] == teams
        return same & ~np.eye(spec.n_agents, dtype=bool)

    @property
    def judged(self) -> bool:
        """Whether it is learnt what helps."""
        return self.select == "learned" or self.partners == "attention"

    def init(self, spec: Spec, key: Array) -> Recent | None:
        """Nothing seen yet; None where nothing is shared."""
        if not self.on:
            return None
        n = spec.n_agents
        features = spec.obs_size + spec.action.width
        return Recent(
            jnp.zeros((n, self.window)),
            jnp.zeros(n, jnp.int32),
            jnp.zeros((n, features)) if self.partners == "role" else None,
            Judge.init(key, spec.obs_size) if self.judged else None,
        )

    # -- what is offered ----------------------------------------------------------------------------------------
    def remember(self, recent: Recent, spec: Spec, own: Experience, batch: Sequence) -> Recent:
        """Take in a batch: the newest |TD errors| push out the oldest."""
        size, lived = (x.reshape(-1, spec.n_agents).T for x in (jnp.abs(own.error), own.lived))
        place = recent.seen[:, None] + jnp.cumsum(lived, axis=1) - 1
        after = recent.seen + jnp.sum(lived, axis=1)
        # Of more than the ring holds, the newest: every place is written once, and what does not count, nowhere.
        kept = lived & (place >= after[:, None] - self.window)
        column = jnp.where(kept, place % self.window, self.window)
        errors = recent.errors.at[jnp.arange(spec.n_agents)[:, None], column].set(size, mode="drop")
        # Positions in the ring are all that matters of `seen` once it is full: it must not overflow.
        seen = jnp.where(after > self.window, self.window + after % self.window, after)
        return Recent(errors, seen, self._roles(recent, spec, own, batch), recent.judge)

    def _roles(self, recent: Recent, spec: Spec, own: Experience, batch: Sequence) -> Array | None:
        """What each agent sees and does on average: a role without a network, moving slowly."""
        if recent.roles is None:
            return None
        obs = batch.step.obs[:-1].reshape(*own.error.shape, -1).astype(jnp.float32)
        x = jnp.concatenate([obs, jax.nn.one_hot(batch.action, spec.action.width)], axis=-1)
        lived = own.lived[..., None]
        mean = jnp.sum(x * lived, axis=(0, 1)) / jnp.maximum(jnp.sum(lived, axis=(0, 1)), 1)
        return jnp.where(recent.seen[:, None] > 0, 0.9 * recent.roles + 0.1 * mean, mean)

    def moments(self, recent: Recent) -> tuple[Float[Array, "agent"], Float[Array, "agent"]]:
        """Mean and deviation of each agent's recent |TD errors|."""
        known = self._known(recent)
        n = jnp.maximum(jnp.sum(known, axis=1), 1)
        mean = jnp.sum(recent.errors * known, axis=1) / n
        return mean, jnp.sqrt(jnp.sum((recent.errors - mean[:, None]) ** 2 * known, axis=1) / n)

    def _known(self, recent: Recent) -> Bool[Array, "agent window"]:
        return jnp.arange(self.window) < recent.seen[:, None]

    def rate(self, own: Experience, obs: Float[Array, "time batch agent n"]) -> Float[Array, "agent"]:
        """Share of its transitions that each agent offers now."""
        n = own.error.shape[-1]
        if self.schedule == "constant":
            return jnp.full(n, self.bandwidth)
        if self.schedule == "entropy":
            even = measures.evenness(own.error, own.lived)
        else:
            even = measures.independence(obs, own.lived)
        return self.floor + (self.ceiling - self.floor) * even

    def offer(
        self, key: Array, recent: Recent, own: Experience, rate: Float[Array, "agent"], features: Array
    ) -> Bool[Array, "time batch agent"]:
        """Which transitions each agent offers."""
        size = jnp.abs(own.error)
        if self.select == "all":
            return own.lived
        if self.select == "quantile":
            known = self._known(recent)
            below = jnp.ceil((1.0 - rate) * jnp.sum(known, axis=1)).astype(jnp.int32)
            pivot = measures.smallest(jnp.where(known, recent.errors, jnp.inf), jnp.maximum(below, 1))
            return own.lived & (size > pivot)
        if self.select == "gaussian":
            mean, std = self.moments(recent)
            return own.lived & (jnp.abs(size - mean) > measures.z(rate) * std)
        if self.select == "gaussian_upper":
            mean, std = self.moments(recent)
            return own.lived & (size - mean > measures.z(2.0 * rate) * std)
        if self.select == "stochastic":
            # Largest sums of log weight and Gumbel noise: draws without replacement (Efraimidis and Spirakis 2006).
            score = jnp.log(size + 1e-6) + jax.random.gumbel(key, size.shape)
        else:
            assert recent.judge is not None
            score = recent.judge.score(features)
        return measures.largest(score, own.lived, rate)

    # -- with whom ----------------------------------------------------------------------------------------------
    def reach(
        self, key: Array, spec: Spec, recent: Recent, batch: Sequence, offered: Bool[Array, "time batch agent"]
    ) -> tuple[Int[Array, "batch partner agent"], Bool[Array, "time batch partner agent"], Metrics]:
        """Whose sequences each receiver reads, and of which transitions in them it may learn."""
        may = jnp.asarray(self._may(spec))
        near, metrics = may, {}
        if self.partners == "range":
            near = self._within(self._distance(_positions(spec, batch.step)), may)
            # Dead agents have no position.
            near = near & batch.step.alive[:-1][..., None] & batch.step.alive[:-1][..., None, :]
        elif self.partners == "role":
            assert recent.roles is not None
            modes = measures.mean_shift(measures.standard(recent.roles), self.radius)
            gap = jnp.sqrt(jnp.sum((modes[:, None] - modes) ** 2, axis=-1))
            near = self._within(gap, may)
            metrics["share_roles"] = Mean.of(measures.clusters(gap <= self.radius))
        near = jnp.broadcast_to(near, (*offered.shape, spec.n_agents))
        worth = jnp.sum(offered[:, :, None] & near, axis=0).astype(jnp.float32)
        if self.partners in ("similar", "attention"):
            seen = _mean_obs(batch)
            if self.partners == "similar":
                worth = -self._distance(seen)
            else:
                assert recent.judge is not None
                worth = recent.judge.look(seen)
                metrics["share_attention"] = Mean.of(jnp.max(jax.nn.softmax(jnp.where(may, worth, -jnp.inf)), axis=-1))
                worth = worth + jax.random.gumbel(key, worth.shape)
        else:
            worth = worth + jax.random.uniform(key, worth.shape)  # who offers most; ties are broken at random
        k = min(self.max_partners or spec.n_agents, spec.n_agents - 1)
        _, senders = jax.lax.top_k(jnp.where(may, worth, -jnp.inf), k)
        senders = jnp.swapaxes(senders, 1, 2)
        allowed = jnp.take_along_axis(near[:, :, None], senders[None, ..., None], axis=-1)[..., 0]
        return senders, allowed, metrics

    def _distance(self, x: Float[Array, "*b agent n"]) -> Float[Array, "*b agent agent"]:
        gap = x[..., :, None, :] - x[..., None, :, :]
        return jnp.sum(jnp.abs(gap), axis=-1) if self.metric == "l1" else jnp.sqrt(jnp.sum(gap**2, axis=-1))

    def _within(self, distance: Float[Array, "*b agent agent"], may: Bool[Array, "agent agent"]) -> Array:
        """Who is in reach of whom."""
        near = (distance <= self.radius) & may
        if self.alone == "skip":
            return near
        far = jnp.where(may, distance, jnp.inf)
        nearest = (far == jnp.min(far, axis=-1, keepdims=True)) & may
        return near | (nearest & ~jnp.any(near, axis=-1, keepdims=True))

    # -- what is taken ------------------------------------------------------------------------------------------
    def accepts(self, recent: Recent, size: Float[Array, "time column agent"]) -> Bool[Array, "time column agent"]:
        """Which |TD errors| of its own on others' transitions a receiver learns from."""
        mean, std = self.moments(recent)
        if self.accept == "novel":
            return size > mean
        if self.accept == "closer":
            return jnp.abs(size - mean) <= measures.z(jnp.float32(self.bandwidth)) * std
        return jnp.ones(size.shape, bool)

    # -- all of it ----------------------------------------------------------------------------------------------
    def learn(
        self, spec: Spec, recent: Recent, own: Experience, receivers: Receivers, sees: Minibatch
    ) -> tuple[Mean, Shared, Metrics]:
        """Receivers' mean squared TD error on what they take of what is shared, and what is left of it afterwards.

        A transition counts as much for its receiver as for its sender: otherwise a few shared ones outweigh all own
        ones, whose importance weights are far below 1.
        """
        batch, key = sees.batch, sees.key
        recent = self.remember(recent, spec, own, batch)
        obs = batch.step.obs[:-1].reshape(*own.error.shape, -1).astype(jnp.float32)
        rate = self.rate(own, obs)
        features = self._features(recent, own)
        offered = self.offer(key("offer"), recent, own, rate, features)
        senders, allowed, metrics = self.reach(key("partners"), spec, recent, batch, offered)
        of_senders = lambda x: columns(x, senders)  # noqa: E731
        open_to = of_senders(offered) & allowed.reshape(*allowed.shape[:1], -1, spec.n_agents)
        sequence, target, weight = None, own.q - own.error, own.weight
        if self.form == "embeddings":
            kept = jax.random.bernoulli(key("drop"), 1.0 - self.drop, allowed.shape)
            present = open_to.reshape(allowed.shape) & kept
            q, open_to = receivers.hear(senders, present), jnp.any(present, axis=2) & own.lived
        else:
            sequence = borrow(batch, senders, fresh=receivers.fresh)
            q, v = receivers.read(sequence)
            weight = of_senders(own.weight)
            target = receivers.aim(of_senders(own.reward), of_senders(own.discount), v, sequence.step.last)
            target = jax.lax.stop_gradient(target)
        error = q - target
        before = jax.lax.stop_gradient(jnp.abs(error))
        accepted = open_to & self.accepts(recent, before)
        metrics |= {"share_rate": Mean.of(rate), **_counts(spec, own, offered, open_to, accepted)}
        taken = Mean.of(sees.draw.weigh(weight * error**2), accepted)
        if sequence is None:
            return taken, Shared(recent, None), metrics | {"share_error": Mean.of(before, accepted)}
        clues = None
        if recent.judge is not None:
            seen = _mean_obs(batch)
            clues = Clues(of_senders(features), jnp.repeat(seen, senders.shape[1], axis=0), of_senders(seen[None])[0])
        return taken, Shared(recent, probe(Borrowed(sequence, target, accepted, before, clues))), metrics

    def _features(self, recent: Recent, own: Experience) -> Float[Array, "time batch agent feature"]:
        """What a judge knows of a transition."""
        mean, std = self.moments(recent)
        size = jnp.abs(own.error)
        unusual = (size - mean) / (std + 1e-3)
        return jnp.stack([jnp.log1p(size), unusual, jnp.sign(own.error), own.q, own.reward], axis=-1)

    def look_back(
        self, shared: Shared | None, read: Callable[[Sequence], tuple[Array, Array]], progress: Float[Array, ""]
    ) -> tuple[Recent | None, Metrics]:
        """The sharing state after a gradient step, and the change in TD errors: receivers' errors on a few borrowed
        sequences before it, and as they `read` them now."""
        if shared is None or shared.borrowed is None:
            return shared and shared.recent, {}
        recent, borrowed = shared.recent, shared.borrowed
        q, _ = read(borrowed.sequence)
        before, accepted, after = borrowed.before, borrowed.accepted, jnp.abs(q - borrowed.target)
        metrics = {"share_error_before": Mean.of(before, accepted), "share_error_after": Mean.of(after, accepted)}
        if recent.judge is None or borrowed.clues is None:
            return recent, metrics
        mean, _ = self.moments(recent)
        judge, found = recent.judge.learn(borrowed.clues, (before - after) / (mean + 1e-3), accepted, progress)
        return replace(recent, judge=judge), {**metrics, **found}


def _counts(spec: Spec, own: Experience, offered: Array, open_to: Array, accepted: Array) -> Metrics:
    """How much is offered, and how much of it is taken."""
    taken = jnp.sum(accepted, axis=(0, 1)).astype(jnp.float32)
    return {
        "share_offered": Mean.of(jnp.sum(offered)),
        "share_bandwidth": Mean.of(offered, own.lived),
        "share_accepted": Mean.of(jnp.sum(taken)),
        "share_acceptance": Mean.of(accepted, open_to),
        **{f"share_accepted/{name}": Mean.of(taken[i]) for i, name in enumerate(spec.agents)},
    }


def probe(borrowed: Borrowed) -> Borrowed:
    """A few of the borrowed sequences."""
    n = -(-borrowed.target.shape[1] // PROBE)
    rows = lambda tree: jax.tree.map(lambda x: x[:, :n], tree)  # noqa: E731
    sequence, clues = borrowed.sequence, borrowed.clues
    step, action, filled = rows((sequence.step, sequence.action, sequence.filled))
    few = Sequence(step, action, filled, jax.tree.map(lambda x: x[:n], sequence.memory))
    if clues is not None:
        clues = Clues(rows(clues.transition), clues.receiver[:n], clues.sender[:n])
    return Borrowed(few, rows(borrowed.target), rows(borrowed.accepted), rows(borrowed.before), clues)


def _positions(spec: Spec, step: Step) -> Float[Array, "time batch agent axis"]:
    flat = step.obs[:-1].reshape(*step.alive[:-1].shape, -1)
    return flat[..., np.array(spec.position)]


def _mean_obs(batch: Sequence) -> Float[Array, "batch agent n"]:
    """What each agent saw on average in each sequence."""
    rows = batch.step.obs[:-1].reshape(*batch.action.shape, -1).astype(jnp.float32)
    filled = batch.filled[..., None, None]
    return jnp.sum(rows * filled, axis=0) / jnp.maximum(jnp.sum(filled, axis=0), 1)
