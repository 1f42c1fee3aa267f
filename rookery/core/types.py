"""What flows between tasks, algorithms and the training loop: `Spec`, `Step`, `Rollout`, `Clock`, `Mean`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Whole

if TYPE_CHECKING:
    Arrays = Any  # a type checker cannot know what a pytree holds
else:
    from jaxtyping import PyTree

    Arrays = PyTree[Array]
Action = Array  # int32 [..., agent], int32 [..., agent, branch], float32 [..., agent, dim] or bool [..., agent, bit]
Carry = Arrays
Extra = dict[str, Array]
"""What acting hands to learning, by name: log-probabilities, distribution parameters, indices that a memory read."""
Metrics = dict[str, "Mean"]
S = TypeVar("S")
A = TypeVar("A")


@dataclass(frozen=True)
class ActionSpec:
    """The padded action space that all agents share."""

    kind: Literal["discrete", "multi_discrete", "multi_binary", "box"]
    sizes: tuple[int, ...]
    """discrete: (actions,); multi_discrete: one size per branch; multi_binary: (bits,); box: (dimensions,)."""
    low: tuple[tuple[float, ...], ...] = ()
    """Lower bounds of a box, one row per agent (or one for all), one number per dimension; (): -1 everywhere."""
    high: tuple[tuple[float, ...], ...] = ()
    """Upper bounds of a box, laid out as `low`; (): 1 everywhere."""
    clip: bool = True
    """Whether environments get box actions clipped to their bounds."""

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of a box, broadcastable to [..., agent, dimension]; infinite where unbounded."""
        low, high = self.low or ((-1.0,),), self.high or ((1.0,),)
        return np.asarray(low, np.float32), np.asarray(high, np.float32)

    @property
    def width(self) -> int:
        """Columns of `Step.legal`, and of the head that scores actions."""
        return sum(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one agent's action."""
        return () if self.kind == "discrete" else (len(self.sizes),) if self.kind == "multi_discrete" else self.sizes

    @property
    def dtype(self) -> np.dtype:
        kinds = {"discrete": np.int32, "multi_discrete": np.int32, "multi_binary": np.bool_, "box": np.float32}
        return np.dtype(kinds[self.kind])


@dataclass(frozen=True)
class Entities:
    """`count` consecutive blocks of `size` numbers, from `start`, in every agent's observation."""

    name: str
    start: int
    count: int
    size: int
    first_action: int = -1
    """Action `first_action` + k is about entity k (attacks it, say); -1: no action is about one of these."""
    ordered: bool = False
    """Whether something names entity k by its index (a word, a target); otherwise the entities are a set."""


@dataclass(frozen=True)
class Spec:
    """The static facts of a task: shapes, padding, teams, units."""

    name: str
    agents: tuple[str, ...]
    obs_shape: tuple[int, ...]
    """Padded shape of one agent's observation."""
    action: ActionSpec
    limit: int
    """Transitions after which an episode is truncated; 0: the task has no step limit."""
    state_shape: tuple[int, ...] = ()
    """Shape of `Step.state`. () means the task has no state of its own: the state is all observations, joined."""
    obs_sizes: tuple[int, ...] = ()
    """Real observation length of each agent before padding; () means no padding."""
    action_sizes: tuple[int, ...] = ()
    """Real number of actions of each agent before padding; () means no padding."""
    teams: tuple[str, ...] = ()
    """Team of each agent; () means one team."""
    cooperative: bool = True
    """Whether maximising the mean reward of all agents is the goal."""
    score: Literal["return", "success"] = "return"
    """What an episode is scored by: the mean over agents of their returns, or `Step.success`."""
    obs_dtype: str = "float32"
    position: tuple[int, ...] = ()
    """Where an agent's own position stands in its observation; () if nowhere."""
    entities: tuple[Entities, ...] = ()
    """How an observation splits into entity tokens; () means it is one token."""
    frames: int = 1
    """The last axis of an observation is so many frames, oldest first. Each row adds its newest; those before an
    episode's first are zeros. So a replay store needs the newest frame of every row only (memory/frames.py)."""

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame of one agent's observation."""
        return (*self.obs_shape[:-1], self.obs_shape[-1] // self.frames)

    @property
    def n_agents(self) -> int:
        return len(self.agents)

    @property
    def obs_size(self) -> int:
        return int(np.prod(self.obs_shape))

    @property
    def state_size(self) -> int:
        """Length of what `global_state` returns."""
        return int(np.prod(self.state_shape)) if self.state_shape else self.n_agents * self.obs_size


class Step(eqx.Module):
    """What all agents see at one moment, and what their last action brought. Leading axes are free.

    An episode is a run of steps from `first` to `last`. The step after `last` is the `first` of the next episode: the
    action taken at `last` is ignored, so the observation before the reset is a row of its own and truncation
    bootstraps from it like from any other row.
    """

    obs: Float[Array, "..."] | UInt[Array, "..."]
    """[*b, agent, *obs]; jaxtyping cannot check two variadic axes."""
    state: Float[Array, "..."]
    """[*b, *state]; size 0 where `Spec.state_shape` is ()."""
    legal: Bool[Array, "*b agent action"]
    """Padding is false; of a box, true for the dimensions that an agent has."""
    alive: Bool[Array, "*b agent"]
    reward: Float[Array, "*b agent"]
    """Of the action that led here; 0 at `first`."""
    discount: Float[Array, "*b agent"]
    """0 at and after the action that ended this agent's life, or the episode, for good; a time limit keeps 1."""
    first: Bool[Array, "*b"]
    """This observation opens an episode: reset carries before reading it."""
    last: Bool[Array, "*b"]
    """This observation closes an episode (terminated or cut)."""
    success: Float[Array, "*b"]
    """The task's own score of the episode (1 for a win); read at `last`, 0 where the task has none."""


class Rollout(eqx.Module):
    """`time` transitions of `env` environments; transition t leads from row t to row t + 1."""

    step: Step  # [time + 1, env, ...]
    action: Action  # [time, env, agent, ...]
    extra: Extra  # [time, env, ...] what acting hands to learning
    carry: Carry  # [interval, env, ...] the carry that act() read at the first row of each carry interval
    filled: Bool[Array, "time env"]
    """Transitions that count: not the one out of a `last` row; with restarts, only the first episode's."""


class Clock(eqx.Module):
    """Where the run is."""

    iteration: Int[Array, ""]
    """The same for all members of a run: use it for anything that decides control flow or a buffer position."""
    steps: UInt[Array, ""]
    """Environment steps (joint transitions) that this member has taken."""
    budget: Float[Array, ""]
    """Environment steps that the run is planned for."""

    @property
    def progress(self) -> Float[Array, ""]:
        """Share of the budget used, 0 to 1."""
        return jnp.minimum(self.steps.astype(jnp.float32) / self.budget, 1.0)


class Mean(eqx.Module):
    """A weighted mean under way; weight 0 means nothing was measured."""

    total: Float[Array | np.ndarray, "*b"]
    weight: Float[Array | np.ndarray, "*b"]

    @staticmethod
    def of(x: Array, where: Array | float = 1.0) -> Mean:
        """Mean of `x` over the entries that `where` (broadcast) selects."""
        x = jnp.float32(x)
        weight = jnp.broadcast_to(jnp.float32(where), x.shape)
        # where(), not a product: a masked entry may be infinite.
        return Mean(jnp.sum(jnp.where(weight > 0, x * weight, 0.0)), jnp.sum(weight))

    @staticmethod
    def of_each(values: dict[str, Array], where: Array | float = 1.0) -> Metrics:
        """Means of arrays of one shape over the same entries: one program for all of them."""
        x = jnp.stack([jnp.float32(value) for value in values.values()])
        weight = jnp.broadcast_to(jnp.float32(where), x.shape[1:])
        totals = jnp.sum(jnp.where(weight > 0, x * weight, 0.0).reshape(len(values), -1), axis=1)
        return {name: Mean(totals[i], jnp.sum(weight)) for i, name in enumerate(values)}

    def plus(self, other: Mean, weight: float | Array) -> Mean:
        """A loss with `weight` times another one added, each a mean over its own entries."""
        return Mean(self.total + weight * other.value * self.weight, self.weight)

    @property
    def value(self) -> Array:
        """The mean; 0 where nothing was measured."""
        return jnp.divide(self.total, jnp.maximum(self.weight, 1e-9))


class Packed(eqx.Module):
    """Metrics as one array while a loop keeps them: XLA compiles and runs small programs for each array it keeps."""

    values: Float[Array | np.ndarray, "*b two metric"]
    """Totals, then weights."""
    names: tuple[str, ...] = eqx.field(static=True)

    @staticmethod
    def of(metrics: Metrics) -> Packed:
        """Of one moment."""
        names = sorted(metrics)
        totals, weights = [metrics[n].total for n in names], [metrics[n].weight for n in names]
        return Packed(jnp.stack(totals + weights).reshape(2, len(names)), tuple(names))

    def summed(self) -> Packed:
        """Over the first axis."""
        return Packed(jnp.sum(self.values, axis=0), self.names)

    def at(self, index: int) -> Packed:
        """One moment of many."""
        return Packed(self.values[index], self.names)

    def metrics(self) -> Metrics:
        """By name."""
        return {name: Mean(self.values[..., 0, i], self.values[..., 1, i]) for i, name in enumerate(self.names)}


@dataclass(frozen=True)
class Collect:
    """How experience is gathered between two updates."""

    envs: Count = 16
    """Parallel environments of each seed."""
    length: Whole = 0
    """Transitions per environment and iteration, a reset counting as one; 0: one episode of the longest kind."""
    restart: bool = False
    """Begin every rollout with a reset and use only its first episode (PyMARL's episode collection)."""
    shards: Count = 1
    """Shards that the environments are divided into. Shards learn together; each can have its own device (a core, a
    GPU). With one environment, every shard steps an identical replica."""
    learners: Whole = 0
    """Processes that learn asynchronously (A3C), on host tasks; 0: one learner. The environments are divided between
    them. Each has a copy of the weights, applies its gradients to the shared ones and does not wait for the others."""

    @property
    def replicated(self) -> bool:
        """Whether every shard steps a replica of the same environment, so that only replayed batches are divided."""
        return self.envs == 1 < self.shards

    def shard(self) -> Collect:
        """The share of one shard."""
        return replace(self, envs=1 if self.replicated else self.envs // self.shards, shards=1)

    def learner(self) -> Collect:
        """The share of one asynchronous learner."""
        return replace(self, envs=self.envs // self.learners, learners=0)

    def transitions(self, spec: Spec) -> int:
        """Transitions per environment and iteration on such a task."""
        return self.length or spec.limit + (not self.restart)

    def check(self, spec: Spec) -> None:
        """Refuse sizes that do not fit together, or not to such a task."""
        if not (self.length or spec.limit):
            raise ConfigError(
                f"{spec.name} has no step limit, so rollouts of whole episodes are impossible; set "
                "--algo.collect.length to the transitions of one rollout."
            )
        if self.envs % self.shards and not self.replicated:
            raise ConfigError(f"algo.collect.shards must divide algo.collect.envs ({self.envs}); got {self.shards}.")
        if self.learners and self.envs % self.learners:
            raise ConfigError(
                f"algo.collect.learners must divide algo.collect.envs ({self.envs}); got {self.learners}."
            )


@runtime_checkable
class Anneals(Protocol):
    """A schedule: a number that moves from `start` to `end`."""

    @property
    def start(self) -> Any: ...
    @property
    def end(self) -> Any: ...
    def duration(self, budget: Any) -> Any:
        """Environment steps until it arrives, in a run of so many."""
        ...


@runtime_checkable
class Task(Protocol[S]):
    """A compiled task: a frozen config whose methods are pure. `step` never resets."""

    @property
    def spec(self) -> Spec: ...
    def reset(self, key: Array) -> tuple[S, Step]: ...
    def step(self, state: S, action: Action, key: Array) -> tuple[S, Step]: ...


@runtime_checkable
class Algorithm(Protocol[A]):
    """A frozen config whose pure methods move one array-only state. Arrays in `step` lead with an env axis."""

    @property
    def collect(self) -> Collect: ...

    def check(self, spec: Spec) -> None:
        """Raise `ConfigError` if this config cannot train on such a task."""
        ...

    def init(self, spec: Spec, key: Array) -> A: ...

    def policy(self, state: A) -> Arrays:
        """The live view of the state that acting reads; it may hold a memory table, so it is never copied."""
        ...

    def snapshot(self, state: A) -> Arrays:
        """The policy that is kept as "best": laid out as `policy`."""
        ...

    def stores(self, state: A) -> Arrays:
        """Large arrays that are written in place (replay, memory tables); () if there are none."""
        ...

    def carry(self, spec: Spec, envs: int) -> Carry: ...

    def carry_interval(self, spec: Spec) -> int:
        """Rows between two carries kept in a rollout; 0: one carry per rollout."""
        ...

    def act(
        self, spec: Spec, policy: Arrays, carry: Carry, step: Step, clock: Clock, key: Array, *, greedy: bool
    ) -> tuple[Carry, Action, Extra]: ...

    def update(self, spec: Spec, state: A, rollout: Rollout, clock: Clock, key: Array) -> tuple[A, Metrics]: ...

    def shard(self) -> Algorithm[A]:
        """The algorithm of one of `collect.shards` shards."""
        ...

    def warmup(self) -> int:
        """Iterations until every iteration takes its full number of gradient steps."""
        ...

    def small(self) -> Algorithm[A]:
        """The same algorithm with little of everything: tests run over it."""
        ...


@runtime_checkable
class GradientAlgorithm(Algorithm[A], Protocol[A]):
    """An algorithm that takes one gradient step for each rollout, so that it can be taken on weights elsewhere."""

    def common(self, state: A) -> Arrays:
        """The part of a state that all learners share: weights, statistics of the optimiser and of returns."""
        ...

    def gradient(self, spec: Spec, state: A, rollout: Rollout, clock: Clock, key: Array) -> tuple[A, Arrays, Metrics]:
        """A learner's own state after a rollout, and the gradient by which `apply` moves what is shared."""
        ...

    def apply(self, common: Arrays, gradient: Arrays, clock: Clock) -> Arrays:
        """What is shared after one gradient step."""
        ...


def global_state(spec: Spec, step: Step) -> Float[Array, "*b state"]:
    """What a centralized critic or mixer sees: the task's state, or all observations joined (never stored twice)."""
    batch = step.first.shape
    return as_float((step.state if spec.state_shape else step.obs).reshape(*batch, -1))


def as_float(x: Array) -> Float[Array, "..."]:
    """Numbers that a network reads: uint8 images are scaled to 0..1."""
    return x.astype(jnp.float32) / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def team_discount(step: Step) -> Float[Array, "*b"]:
    """0 iff the episode terminated: one agent's death does not end the team's return."""
    return jnp.max(step.discount, axis=-1)


def where_env(mask: Bool[Array, "env"], yes: Any, no: Any) -> Any:
    """Choose between two pytrees whose leaves lead with an env axis."""

    def choose(a: Array, b: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree.map(choose, yes, no)
