"""Hypernetworks that change the actors' weights from row to row, or generate them from agent embeddings.

theta = theta_base + dtheta(what the team sees). The increment dtheta is a linear function of a few features; its head
is zero at the start, so that the first policy is MAPPO's. Increments are never made: see `nets.increments`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.errors import ConfigError
from rookery.core.keys import stream
from rookery.core.ranges import Count, NonNegative, Positive, Several
from rookery.core.types import Action, Carry, Clock, Entities, Mean, Metrics, Spec, Step
from rookery.mechanisms.actor import Actor, ActorWeights, Aux, Distribution, PlainActor, Weights
from rookery.nets import hypernet, increments
from rookery.nets.agent import Net, Params
from rookery.nets.hypernet import EmbeddedNet
from rookery.nets.increments import Changes, Modes, changed, squared_norm
from rookery.nets.inputs import encode_action, own_view, view_size
from rookery.nets.layers import Linear
from rookery.ops import distributions

PAIRED = 8
"""Fewest rows of a training sequence, by default: consecutive increments must stand in one sequence."""


@dataclass(frozen=True)
class Hyper:
    """A hypernetwork for the actor (and the critic)."""

    generate: Literal["none", "last", "all", "embedding", "embedding_after"] = "none"
    """last: increments of the actor's head, and trainable scales of the other layers; all: increments of every dense
    layer; embedding: an embedding of each agent generates all weights of actor and critic (HyperMARL);
    embedding_after: only those after the GRU."""
    features: Several = 8
    """Numbers that an increment is a linear function of; one of them is the constant 1 (the head's bias)."""
    modes: Literal["rank_one", "full"] = "rank_one"
    """What a feature adds to a layer: a matrix of rank one (cheap), or any matrix (costs as much as the layer)."""
    width: Count = 16
    """Units of the hypernetwork's layers."""
    heads: Count = 4
    """Attention heads over agents."""
    history: hypernet.History = "none"
    """What of the past the hypernetwork reads: observations, last actions and rewards, through a recurrent net or the
    last `window` rows."""
    window: Count = 4
    """Rows that history `window` and fusion `kl` look at, the present one included."""
    fusion: Literal["none", "kl"] = "none"
    """kl: features are averages over the last `window` rows, with weights exp(-KL(past || current) / temperature)."""
    temperature: Positive = 1.0
    """KL at which a past policy counts exp(-1) of the present one."""
    agent_id: bool = True
    """Whether the hypernetwork sees the agent's index."""
    per_agent: bool = True
    """One increment for each agent, or the same for all of them."""
    increment: Literal["base", "accumulate"] = "base"
    """base: theta = theta_base + dtheta; accumulate: theta = theta of the last row + dtheta, from theta_base at the
    start of each episode."""
    scope: Literal["joint", "local"] = "joint"
    """joint: attention over all living agents, so that acting needs every observation (not decentralized); local: the
    agent's own observation and history only."""
    smooth: NonNegative = 0.1
    """Weight of the mean squared difference of consecutive increments of an episode."""
    target: Literal["none", "anchor"] = "none"
    """anchor: `algo.align` aligns with the increments of a target hypernetwork, not with the policy that acted."""
    every: Count = 100
    """Updates between two refreshes of the target hypernetwork."""
    lr: NonNegative = 1e-4
    """Learning rate of the hypernetwork (and of the critic's) at the start."""
    critic: bool = False
    """Increments of the critic's weights too, from what the critic sees."""
    embed: Count = 8
    """Numbers of an agent's embedding."""

    @property
    def changes(self) -> bool:
        """Whether it makes increments."""
        return self.generate in ("last", "all")

    @property
    def embeds(self) -> bool:
        """Whether it generates weights from agent embeddings."""
        return self.generate in ("embedding", "embedding_after")

    def check(self, actor: Net, critic: Net, spec: Spec) -> None:
        """Refuse what does not fit together."""
        if not self.changes:
            if self.embeds and actor.weights == "per_agent":
                raise ConfigError(
                    "algo.hyper.generate embedding makes every agent's weights: set actor.weights shared."
                )
            if self.embeds and spec.n_agents > self.width:
                raise ConfigError(f"algo.hyper.width must be at least the number of agents, {spec.n_agents}.")
            return
        if self.scope == "local" and not self.per_agent:
            raise ConfigError(
                "algo.hyper.scope local makes an increment for each agent; set algo.hyper.per_agent true."
            )
        if self.scope == "joint" and self.width % self.heads:
            raise ConfigError(f"algo.hyper.heads ({self.heads}) must divide algo.hyper.width ({self.width}).")
        for name, net in ({"actor": actor} | ({"critic": critic} if self.critic else {})).items():
            if net.kind == "transformer":
                raise ConfigError(
                    f"algo.hyper.generate {self.generate} changes dense layers, and a transformer reads its output "
                    f"from tokens: set --algo.{name}.kind mlp or gru."
                )
            if net.encoder.kind != "none":
                raise ConfigError(
                    f"algo.hyper.generate {self.generate} reads observations as they are and has no encoder for "
                    f"images: set --algo.hyper.generate none, or --algo.{name}.encoder.kind none."
                )
        if self.fusion == "kl" and actor.weights == "per_agent":
            raise ConfigError("algo.hyper.fusion kl compares policies of one shared network: set actor.weights shared.")
        if self.fusion == "kl" and self.increment == "accumulate":
            raise ConfigError(
                "algo.hyper.fusion kl averages increments from theta_base, which accumulated ones are not: set "
                "--algo.hyper.increment base, or --algo.hyper.fusion none."
            )

    def small(self) -> Hyper:
        """The same hypernetwork, narrow."""
        if self.generate == "none":
            return self
        return replace(self, width=8, features=min(self.features, 3), window=min(self.window, 3), embed=4, every=2)

    def rows(self, transitions: int) -> int:
        """Rows of a training sequence of feed-forward nets: the fewest that divide the rollout, from `PAIRED` on."""
        return next((n for n in range(PAIRED, transitions) if transitions % n == 0), transitions)

    def actor(self, net: Net, *, agent_id: bool) -> Actor:
        """The actor that it makes of a network."""
        if self.changes:
            return HyperActor(PlainActor(net, agent_id), self)
        return PlainActor(self.embedded(net) if self.embeds else net, agent_id)

    def critic_net(self, net: Net) -> Net | EmbeddedNet | ChangedNet:
        """The network of the critic."""
        if self.embeds:
            return self.embedded(net)
        return ChangedNet(net, self) if self.changes and self.critic else net

    def embedded(self, net: Net) -> EmbeddedNet:
        """The network with generated weights."""
        return EmbeddedNet(net, self.embed, self.width, self.generate == "embedding_after")


class HyperWeights(eqx.Module):
    body: hypernet.Body
    layers: dict[str, Modes]
    """What each feature adds to each layer."""
    scales: dict[str, Array]
    """Of the outputs of layers that are not generated."""


def fresh_layers(net: Params, hyper: Hyper, key: Array) -> tuple[dict[str, Modes], dict[str, Array]]:
    """Zero increments of the layers that are generated, unit scales of the others."""

    def made(name: str, layer: Linear) -> Modes:
        return increments.modes(layer, hyper.features, stream(key, name), full=hyper.modes == "full")

    trunk = {f"before{i}": layer for i, layer in enumerate(net.before)}
    trunk |= {f"after{i}": layer for i, layer in enumerate(net.after)}
    if hyper.generate == "all":
        return {name: made(name, layer) for name, layer in {**trunk, "head": net.head}.items()}, {}
    return {"head": made("head", net.head)}, {name: jnp.ones(x.bias.shape[-1]) for name, x in trunk.items()}


class ChangedWeights(eqx.Module):
    net: Params
    hyper: HyperWeights


CRITIC = ("critic", "critic_hyper")
"""Groups of the critic's weights; the second has its increments."""


def critic_groups(weights: Any) -> Weights:
    """The critic's weights by optimiser group."""
    if isinstance(weights, ChangedWeights):
        return {"critic": weights.net, "critic_hyper": weights.hyper}
    return {"critic": weights}


def critic_of(nets: Weights) -> Any:
    """The critic's weights as its network reads them."""
    return ChangedWeights(nets["critic"], nets["critic_hyper"]) if "critic_hyper" in nets else nets["critic"]


@dataclass(frozen=True)
class ChangedNet:
    """A `Net` with increments that its own input makes: a critic sees the whole team already."""

    net: Net
    hyper: Hyper

    @property
    def weights(self) -> Literal["shared", "per_agent", "per_team"]:
        """As in the net."""
        return self.net.weights

    @property
    def hidden(self) -> int:
        """Length of one carry."""
        return self.net.hidden

    def init(
        self,
        key: Array,
        agents: int,
        n_in: int,
        n_out: int,
        gain: float,
        entities: tuple[Entities, ...] = (),
        image: tuple[int, ...] = (),
    ) -> ChangedWeights:
        """The net's weights as they are without increments; increments of zero."""
        net = self.net.init(key, agents, n_in, n_out, gain, entities, image)
        h, key = self.hyper, stream(key, "hyper")
        body = hypernet.body(key, n_in, h.width, h.features - 1, "none", 1, joint=False)
        return ChangedWeights(net, HyperWeights(body, *fresh_layers(net, h, key)))

    def carry(self, *batch: int) -> Float[Array, "*b h"]:
        """A hidden state of zeros."""
        return self.net.carry(*batch)

    def unroll(
        self,
        params: ChangedWeights,
        carry: Float[Array, "b agent h"],
        x: Float[Array, "#time #b agent n_in"],
        first: Bool[Array, "time b"],
        entities: tuple[Entities, ...] = (),
        team: Float[Array, "time b n_team"] | None = None,
    ) -> tuple[Float[Array, "b agent h"], Float[Array, "time b agent n_out"]]:
        """As `Net.unroll`."""
        x = _with_team(x, first, team)
        changes = Changes({**params.hyper.layers, **params.hyper.scales}, _features(params.hyper.body, x))
        return self.net.unroll(params.net, carry, x, first, entities, changes=changes)

    def increment(
        self,
        params: ChangedWeights,
        x: Float[Array, "#time #b agent n_in"],
        first: Bool[Array, "time b"],
        team: Float[Array, "time b n_team"] | None = None,
    ) -> Float[Array, "time b agent"]:
        """Sizes of the increments that an input makes, for the log."""
        hyper = jax.lax.stop_gradient(params.hyper)
        features = _features(hyper.body, _with_team(x, first, team))
        return jnp.sqrt(squared_norm(increments.gram(hyper.layers), features))


def _with_team(x: Array, first: Array, team: Array | None) -> Float[Array, "time b agent n"]:
    """What all agents see alike, and each agent's own input, of all rows."""
    seen = [x] if team is None else [team[:, :, None], x]
    return jnp.concatenate(
        [jnp.broadcast_to(part, (*first.shape, x.shape[2], part.shape[-1])) for part in seen], axis=-1
    )


def _features(body: hypernet.Body, x: Float[Array, "time b agent n"]) -> Float[Array, "time b agent feature"]:
    features = jnp.tanh(body.out(hypernet.encode(body, x)))
    return jnp.concatenate([features, jnp.ones((*x.shape[:-1], 1))], axis=-1)


@dataclass(frozen=True)
class HyperActor:
    """An actor whose weights have increments from a hypernetwork."""

    base: PlainActor
    hyper: Hyper

    @property
    def hidden(self) -> bool:
        """Whether the base actor, or any part of the hypernetwork, carries something from row to row."""
        h = self.hyper
        return self.base.hidden or h.history != "none" or h.fusion != "none" or h.increment == "accumulate"

    @property
    def _net(self) -> Net:
        assert isinstance(self.base.net, Net)
        return self.base.net

    # -- weights ------------------------------------------------------------------------------------------------
    def _inputs(self, spec: Spec) -> int:
        past = 0 if self.hyper.history == "none" else spec.action.width + 1
        return view_size(spec, agent_id=self.hyper.agent_id) + past

    def init(self, spec: Spec, key: Array) -> Weights:
        """The base actor's weights as they are without a hypernetwork; increments of zero."""
        h, weights, key = self.hyper, self.base.init(spec, key), stream(key, "hyper")
        joint, n_in, n_out = h.scope == "joint", self._inputs(spec), h.features - 1
        body = hypernet.body(key, n_in, h.width, n_out, h.history, h.window, joint=joint)
        weights["hyper"] = HyperWeights(body, *fresh_layers(weights["actor"].net, h, key))
        if h.target == "anchor":
            weights["hyper_target"] = jax.tree.map(jnp.copy, weights["hyper"])
        return weights

    def updated(self, weights: Weights, clock: Clock) -> tuple[Weights, Metrics]:
        """The weights with a refreshed target every so many updates."""
        metrics = {"hyper/decentralized": Mean.of(jnp.float32(self.hyper.scope == "local"))}
        if self.hyper.target == "none":
            return weights, metrics
        due = (clock.iteration + 1) % self.hyper.every == 0
        target = jax.tree.map(lambda new, old: jnp.where(due, new, old), weights["hyper"], weights["hyper_target"])
        return {**weights, "hyper_target": target}, metrics

    # -- carry --------------------------------------------------------------------------------------------------
    def carry(self, spec: Spec, envs: int) -> dict[str, Array]:
        """The base actor's, and what the hypernetwork keeps of the past."""
        h, agents = self.hyper, spec.n_agents
        carry = {"net": self.base.carry(spec, envs)}
        if h.history in ("gru", "lstm"):
            carry["history"] = jnp.zeros((envs, agents, h.width * (2 if h.history == "lstm" else 1)))
        if h.history == "window":
            carry["history"] = jnp.zeros((envs, h.window - 1, agents, self._inputs(spec) + 1))
        if h.history != "none":
            carry["action"] = jnp.zeros((envs, agents, spec.action.width))
        if h.fusion == "kl":
            carry["past"] = jnp.zeros((envs, h.window - 1, agents, h.features))
        if h.increment == "accumulate":
            carry["total"] = jnp.zeros((envs, agents, h.features))
        return carry

    def took(self, spec: Spec, carry: Carry, action: Action) -> Carry:
        """The carry with the last action in it, if the hypernetwork reads it."""
        return carry if self.hyper.history == "none" else {**carry, "action": encode_action(spec.action, action)}

    # -- reading ------------------------------------------------------------------------------------------------
    def read(
        self, spec: Spec, weights: Weights, carry: Carry, step: Step, action: Action | None = None
    ) -> tuple[Carry, Distribution, Aux]:
        """Distributions for rows [row, b, agent, ...]; features of their increments, and what they are measured by."""
        hyper: HyperWeights = weights["hyper"]
        after, params, own = self._read(spec, weights["actor"], hyper, carry, step, action)
        aux = {**own, "gram": increments.gram(hyper.layers), "size": jnp.float32(increments.size(hyper.layers))}
        if "hyper_target" in weights:
            old = jax.lax.stop_gradient((weights["actor"], weights["hyper_target"]))
            aux["anchor"] = self._read(spec, *old, carry, step, action)[1]
        return after, Distribution(params, weights["actor"].log_std), aux

    def _read(
        self, spec: Spec, actor: ActorWeights, hyper: HyperWeights, carry: Carry, step: Step, action: Action | None
    ) -> tuple[Carry, Array, Aux]:
        """Carry, parameters of distributions, features (of this row's increment, of all that is applied), attention."""
        carry, aux = dict(carry), {}
        token = self._tokens(spec, hyper.body, carry, step, action)
        if hyper.body.attention is not None:
            token, aux["looks"] = hypernet.attend(hyper.body.attention, token, step.alive, self.hyper.heads)
        if not self.hyper.per_agent:
            token = jnp.broadcast_to(hypernet.team_token(token, step.alive), token.shape)
        own = jnp.tanh(hyper.body.out(token))
        own = jnp.concatenate([own, jnp.ones((*own.shape[:-1], 1))], axis=-1)
        layers = {**hyper.layers, **hyper.scales}
        x = own_view(spec, step, agent_id=self.base.agent_id)
        if self.hyper.fusion == "kl":
            carry["past"], own = self._fuse(spec, actor, layers, carry, own, x, step)
        applied = own
        if self.hyper.increment == "accumulate":
            carry["total"], applied = add_up(carry["total"], own, step.first)
        assert isinstance(actor.net, Params)
        changes = Changes(layers, applied)
        carry["net"], params = self._net.unroll(actor.net, carry["net"], x, step.first, spec.entities, changes=changes)
        return carry, params, {**aux, "features": own, "applied": applied}

    def _tokens(
        self, spec: Spec, body: hypernet.Body, carry: dict[str, Array], step: Step, action: Action | None
    ) -> Float[Array, "row b agent width"]:
        """A token of each agent, of its observation and history; puts what it keeps of them into the carry."""
        x = own_view(spec, step, agent_id=self.hyper.agent_id)
        if self.hyper.history == "none":
            return hypernet.encode(body, x)
        last = carry["action"][None]
        if action is not None:
            last = jnp.concatenate([last, encode_action(spec.action, action)])
            carry["action"], last = last[-1], last[:-1]
        last = jnp.where(step.first[..., None, None], 0.0, last)
        x = jnp.concatenate([x, last, step.reward[..., None]], axis=-1)
        if self.hyper.history != "window":
            carry["history"], token = hypernet.remember(body, carry["history"], hypernet.encode(body, x), step.first)
            return token
        marked = jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1))], axis=-1)
        window, seen = hypernet.look_back(jnp.swapaxes(carry["history"], 0, 1), marked, step.first)
        carry["history"] = jnp.swapaxes(window, 0, 1)
        # Encoded with the weights of now, so that nothing in the window is stale.
        ages = hypernet.encode(body, seen[..., :-1]) * seen[..., -1:]
        assert not isinstance(body.history, hypernet.recurrent.Gru | hypernet.recurrent.Lstm | None)
        joined = jnp.moveaxis(ages, 1, -2)
        return jax.nn.relu(body.history(joined.reshape(*x.shape[:-1], -1)))

    def _fuse(
        self,
        spec: Spec,
        actor: ActorWeights,
        layers: dict[str, Modes | Array],
        carry: dict[str, Array],
        own: Float[Array, "row b agent feature"],
        x: Float[Array, "row b agent n"],
        step: Step,
    ) -> tuple[Array, Float[Array, "row b agent feature"]]:
        """The window of past features, and the average of features with weights that fall with KL(past || current).

        Past policies are compared with the current one on the present observation. They differ in the head: layers
        below it are read with the current increments.
        """
        window, seen = hypernet.look_back(jnp.swapaxes(carry["past"], 0, 1), own, step.first)
        net, changes = actor.net, Changes(layers, own)
        assert isinstance(net, Params)
        _, trunk = self._net.unroll(net, carry["net"], x, step.first, spec.entities, changes=changes, head=False)
        past, std = jnp.moveaxis(seen, 1, 0), actor.log_std
        policies = changed(net.head, jnp.broadcast_to(trunk, (*past.shape[:-1], trunk.shape[-1])), layers["head"], past)
        now = jnp.broadcast_to(policies[:1], policies.shape)
        legal = jnp.broadcast_to(step.legal, policies.shape)
        far = distributions.kl(spec.action, policies, std, now, std, legal) / self.hyper.temperature
        there = past[..., -1]  # the constant feature: 0 where the window reaches back before the episode
        weights = jax.nn.softmax(jnp.where(there > 0, -jax.lax.stop_gradient(far), -jnp.inf), axis=0)
        return jnp.swapaxes(window, 0, 1), jnp.sum(weights[..., None] * past, axis=0)

    # -- losses -------------------------------------------------------------------------------------------------
    def penalty(
        self, spec: Spec, aux: Aux, step: Step, active: Bool[Array, "row b agent"]
    ) -> dict[str, tuple[float, Mean]]:
        """Smoothness, and (of weight 0) the size of increments."""
        smooth = smoothness(aux["gram"], aux["size"], aux["features"], step.first, active)
        products, applied = jax.lax.stop_gradient((aux["gram"], aux["applied"]))
        values = {"hyper/increment": jnp.sqrt(squared_norm(products, applied))}
        if "looks" in aux:
            looks = jax.lax.stop_gradient(aux["looks"])
            values["hyper/attention_entropy"] = -jnp.sum(looks * jnp.log(jnp.maximum(looks, 1e-9)), axis=-1)
        means = {"hyper/smooth": smooth, **Mean.of_each(values, active)}
        weights = {"hyper/smooth": self.hyper.smooth}
        return {name: (weights.get(name, 0.0), mean) for name, mean in means.items()} | {
            f"hyper/increment/{name}": (0.0, mean)
            for name, mean in zip(spec.agents, _each_agent(values["hyper/increment"], active), strict=True)
        }


def _each_agent(x: Float[Array, "row b agent"], active: Bool[Array, "row b agent"]) -> list[Mean]:
    """Means over rows, one for each agent."""
    n = x.shape[-1]
    totals = jnp.ones(x.size // n) @ jnp.where(active, x, 0.0).reshape(-1, n)
    weights = jnp.ones(x.size // n) @ active.reshape(-1, n).astype(jnp.float32)
    return [Mean(totals[i], weights[i]) for i in range(n)]


def add_up(
    total: Float[Array, "b agent n"], x: Float[Array, "row b agent n"], first: Bool[Array, "row b"]
) -> tuple[Float[Array, "b agent n"], Float[Array, "row b agent n"]]:
    """Sums of an episode so far, at the end and at each row."""

    def one(total: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        x_t, first_t = now
        total = jnp.where(first_t[:, None, None], 0.0, total) + x_t
        return total, total

    return jax.lax.scan(one, total, (x, first))


def smoothness(
    products: Float[Array, "feature feature"],
    size: Float[Array, ""],
    features: Float[Array, "row b agent feature"],
    first: Bool[Array, "row b"],
    active: Bool[Array, "row b agent"],
) -> Mean:
    """Mean squared difference of the increments of consecutive rows, where an agent is active in both.

    Rows are consecutive only within a sequence; a row that opens an episode has none before it.
    """
    difference = squared_norm(products, features[1:] - features[:-1]) / size
    return Mean.of(difference, active[1:] & active[:-1] & ~first[1:, :, None])
