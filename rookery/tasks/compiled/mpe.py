"""Particle worlds (MPE): 25 transitions, always cut, never terminated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rookery.core.errors import ConfigError
from rookery.core.ranges import Count, Whole, check_ranges
from rookery.core.registry import TASK_FAMILIES, TASKS, family
from rookery.core.types import Entities
from rookery.tasks.compiled.adapter import (
    NEVER,
    JaxmarlTask,
    World,
    construct,
    make_world,
    require,
)

_FACMAC = {
    "simple_facmac": {},
    "simple_facmac_3a": {"num_adversaries": 3, "num_good_agents": 1, "num_landmarks": 2, "score_function": "min"},
    "simple_facmac_6a": {"num_adversaries": 6, "num_good_agents": 2, "num_landmarks": 4, "score_function": "min"},
    "simple_facmac_9a": {"num_adversaries": 9, "num_good_agents": 3, "num_landmarks": 6, "score_function": "min"},
}
_CLASSES = {
    "simple": "SimpleMPE",
    "simple_spread": "SimpleSpreadMPE",
    "simple_speaker_listener": "SimpleSpeakerListenerMPE",
    "simple_reference": "SimpleReferenceMPE",
    "simple_adversary": "SimpleAdversaryMPE",
    "simple_tag": "SimpleTagMPE",
    "simple_push": "SimplePushMPE",
    "simple_crypto": "SimpleCryptoMPE",
    "simple_world_comm": "SimpleWorldCommMPE",
    **dict.fromkeys(_FACMAC, "SimpleFacmacMPE"),
}
_MIXED = ("simple_adversary", "simple_tag", "simple_push", "simple_crypto", "simple_world_comm")
_TEAMS = ("adversary", "good")
_OWN_POSITION = ("simple_spread", "simple_tag", "simple_world_comm", *_FACMAC)


@family(TASK_FAMILIES)
@dataclass(frozen=True)
class Mpe(JaxmarlTask):
    """A multi-agent particle environment. Rewards are per agent and per step, summed over the episode."""

    family: Literal["mpe"] = "mpe"
    scenario: str = "simple_spread"
    """Scenario: simple, simple_spread, simple_tag, ... (`rookery tasks` lists them)."""
    agents: Whole = 0
    """Agents and landmarks of simple_spread; 0: the scenario's own number."""
    action_type: Literal["discrete", "continuous"] = "discrete"
    """Discrete moves and words, or a box of 0 to 1 per direction and word. The facmac scenarios are continuous only."""
    limit: Count = 25
    """Transitions of an episode."""
    team: str = "all"
    """Whom to train in a mixed scenario: all, adversary or good."""
    opponents: Literal["random", "idle"] = "random"
    """What the other team does if only one team is trained."""

    def __post_init__(self) -> None:
        require(self.scenario, tuple(_CLASSES), "MPE scenario")
        require(self.action_type, ("discrete", "continuous"), "action type")
        require(self.opponents, ("random", "idle"), "opponents")
        check_ranges(self, "task")
        require(self.team, ("all", *_TEAMS) if self.scenario in _MIXED else ("all",), f"team of {self.scenario}")
        if self.scenario in _FACMAC and self.action_type != "continuous":
            raise ConfigError(f"{self.scenario} has continuous actions only: set action_type to continuous.")
        if self.agents != 0 and self.scenario != "simple_spread":
            raise ConfigError(f"agents can be set for simple_spread only, not for {self.scenario}: leave it 0.")
        if self.agents != 0 and self.agents < 2:
            raise ConfigError(f"simple_spread needs at least 2 agents, not {self.agents}.")

    def build(self) -> World:
        """Construct the environment, with its own time limit out of the way: it is one step too long."""
        kwargs: dict[str, Any] = dict(_FACMAC.get(self.scenario, {}), max_steps=NEVER)
        if self.scenario not in _FACMAC:
            kwargs["action_type"] = self.action_type.capitalize()
        if self.agents:
            kwargs |= {"num_agents": self.agents, "num_landmarks": self.agents}
        # Not the package: it imports matplotlib, to draw.
        module = "simple_facmac" if self.scenario in _FACMAC else self.scenario
        mixin = _Hunt if self.scenario in _FACMAC else _Lean
        env = construct(f"mpe.{module}", _CLASSES[self.scenario], mixin, **kwargs)
        teams = tuple("adversary" if "adversary" in name or name == "eve_0" else "good" for name in env.agents)
        return make_world(
            env,
            name=f"mpe/{self.scenario}" + ("" if self.team == "all" else f"/{self.team}"),
            limit=self.limit,
            learners=self._learners(teams),
            teams=teams,
            cooperative=self.scenario not in _MIXED or self.team != "all",
            position=(2, 3) if self.scenario in _OWN_POSITION else (),
            entities=_entities(self.scenario, self.team, teams, env.num_landmarks),
            opponents=self.opponents,
        )

    def _learners(self, teams: tuple[str, ...]) -> tuple[int, ...]:
        """Indices of the agents that the task controls."""
        # The prey of the facmac scenarios is part of the environment: it ignores its actions.
        team = "adversary" if self.scenario in _FACMAC else self.team
        return tuple(i for i, t in enumerate(teams) if team in ("all", t))


class _Lean:
    """The physics of a particle world without what never matters: noise of size 0, forces of things that never touch.

    jaxmarl draws the one and computes the other, for every pair of things, in every step.
    """

    def _apply_action_force(self: Any, key: Array, force: Array, u: Array, noise: Array, moveable: Array) -> Array:
        if np.asarray(self.u_noise).any():
            return cast("Any", super())._apply_action_force(key, force, u, noise, moveable)
        return jnp.where(moveable[:, None], u, force)

    def _apply_comm_action(self: Any, key: Array, c: Array, noise: Array, silent: Array) -> Array:
        if np.asarray(self.c_noise).any():
            return cast("Any", super())._apply_comm_action(key, c, noise, silent)
        return jnp.where(np.asarray(silent, bool)[:, None], 0.0, c)

    def _apply_environment_force(self: Any, force: Float[Array, "entity 2"], state: Any) -> Float[Array, "entity 2"]:
        solid, size, moveable = (np.asarray(x) for x in (self.collide, self.rad, self.moveable))
        a, b = np.nonzero(np.triu(np.outer(solid, solid), k=1))
        if a.size == 0:
            return force
        apart = state.p_pos[a] - state.p_pos[b]
        distance = jnp.sqrt(jnp.sum(jnp.square(apart), axis=-1, keepdims=True))
        depth = jnp.logaddexp(0, -(distance - (size[a] + size[b])[:, None]) / self.contact_margin) * self.contact_margin
        push = self.contact_force * apart / distance * depth  # on a; b gets the opposite
        entity = np.arange(solid.size)[:, None]
        sign = ((entity == a) * 1.0 - (entity == b)) * moveable[:, None]
        pushes = jnp.where(sign[..., None] != 0, sign[..., None] * push, 0.0)  # [entity, pair, 2]
        return jnp.sum(pushes, axis=1) + force


class _Hunt(_Lean):
    """FACMAC's hunters and prey as its authors have them (Peng et al. 2021, oxwhirl/facmac).

    jaxmarl's hunters see others only where all of them together are near (the radius limits the length of the joint
    vector), and its prey, which moves by the place of a hunter and seeks what it should avoid, hardly ever moves.
    """

    def get_obs(self: Any, state: Any) -> dict[str, Array]:
        """Own velocity and place, landmarks and others within sight, the velocity of the last prey; else zeros."""
        n, where = self.num_agents, state.p_pos
        others = np.array([[j for j in range(n) if j != i] for i in range(n)])
        own = where[:n, None]
        landmarks, near = where[None, n:] - own, where[others] - own
        sight = np.asarray(self.view_radius)[:n, None, None]
        far = lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True) > sight  # noqa: E731
        speed = jnp.where(far(near), 0.0, state.p_vel[others])[:, -1]
        # Prey see no velocities; their observations are as long as those of hunters.
        speed = jnp.where(np.arange(n)[:, None] < self.num_adversaries, speed, 0.0)
        parts = (jnp.where(far(x), 0.0, x).reshape(n, -1) for x in (landmarks, near))
        obs = jnp.concatenate([state.p_vel[:n], where[:n], *parts, speed], axis=-1)
        return dict(zip(self.agents, obs, strict=True))

    def step_env(self: Any, key: Array, state: Any, actions: dict[str, Array]) -> tuple[Any, ...]:
        """Hunters do as they are told; each prey flees."""
        u, _ = self.set_actions(actions)
        prey = np.arange(self.num_adversaries, self.num_agents)
        keys = jax.random.split(key, len(prey) + 1)
        u = u.at[prey].set(jax.vmap(self._flight, in_axes=(0, None, 0))(keys[1:], state, prey))
        p_pos, p_vel = self._world_step(keys[0], state, u)
        done = state.step >= self.max_steps
        state = state.replace(p_pos=p_pos, p_vel=p_vel, done=done, step=state.step + 1)
        dones = dict.fromkeys((*self.agents, "__all__"), done)
        return self.get_obs(state), state, self.rewards(state), dones, {}

    def _flight(self: Any, key: Array, state: Any, prey: Array) -> Float[Array, "xy"]:
        """The best of 100 places in a circle: free of others, and farthest from the nearest hunter ("min"), or from all
        agents on a way that is free too ("sum")."""
        n, hunters, where = self.num_agents, self.num_adversaries, state.p_pos
        draws = jax.random.uniform(key, (2, 100, 1))
        angle = 2 * jnp.pi * draws[1]
        move = jnp.sqrt(draws[0]) * jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)
        nearest = self.score_function == "min"
        shares = np.array([1.0]) if nearest else np.arange(1, 6) / 5
        avoided = np.arange(n) < (hunters if nearest else n)
        way = where[prey] + shares[:, None, None] * move
        distance = jnp.linalg.norm(way[:, :, None] - where[:n], axis=-1)  # [share, place, agent]
        touches = (distance < self.rad[:n] + self.rad[prey]) & avoided & (np.arange(n) != prey)
        closest = jnp.argmin(jnp.linalg.norm(where[:hunters] - where[prey], axis=-1))
        others = jnp.where(np.arange(n) == prey, 0.0, distance[-1])
        score = distance[-1, :, closest] if nearest else jnp.sum(others, axis=-1)
        score = jnp.where(jnp.any(touches, axis=(0, 2)), -1.0, score)
        best = jnp.argmax(score)
        return jnp.where(score[best] < 0, 0.0, move[best])


def _entities(scenario: str, team: str, teams: tuple[str, ...], landmarks: int) -> tuple[Entities, ...]:
    """How observations split, for scenarios whose agents share one layout (up to what is missing at the end).

    The others of simple_speaker_listener and the like see different things: an observation is one token there.
    """
    others = len(teams) - 1
    if scenario == "simple":
        return _blocks(("self", 1, 2), ("landmark", landmarks, 2))
    if scenario == "simple_spread":
        return _blocks(("self", 1, 4), ("landmark", landmarks, 2), ("other", others, 2), ("word", others, 2))
    if scenario == "simple_tag" or scenario in _FACMAC:
        parts = _hunt("adversary" if scenario in _FACMAC else team, teams)
        blocks = _blocks(("self", 1, 4), ("landmark", landmarks, 2), *parts, ("prey_velocity", 1, 2))
        # The velocity is the last prey's: among several, it matters which one a prey is.
        return tuple(replace(e, ordered=e.name == "prey" and e.count > 1) for e in blocks)
    if scenario == "simple_reference":
        blocks = _blocks(("self", 1, 2), ("landmark", landmarks, 2), ("goal", 1, 3), ("word", 1, 10))
        # Goals and words name a landmark by its index: its color is not seen.
        return tuple(replace(e, ordered=e.name == "landmark") for e in blocks)
    return ()


def _hunt(team: str, teams: tuple[str, ...]) -> tuple[tuple[str, int, int], ...]:
    """The others in a hunt, who come in the order of their indices: hunters, then prey, oneself left out."""
    hunters = teams.count("adversary")
    prey = len(teams) - hunters
    if team == "adversary":
        return ("hunter", hunters - 1, 2), ("prey", prey, 2)
    if team == "good":
        return ("hunter", hunters, 2), ("prey", prey - 1, 2)
    # In the place between them, hunters see the first prey and prey see the last hunter: the other side, to both.
    return ("hunter", hunters - 1, 2), ("opponent", 1, 2), ("prey", prey - 1, 2)


def _blocks(*parts: tuple[str, int, int]) -> tuple[Entities, ...]:
    """Entities that follow one another, from (name, count, size); kinds of which there are none are left out."""
    starts = [sum(count * size for _, count, size in parts[:i]) for i in range(len(parts))]
    blocks = (Entities(name, start, count, size) for start, (name, count, size) in zip(starts, parts, strict=True))
    return tuple(e for e in blocks if e.count)


TASKS |= {
    f"mpe/{name}": Mpe(scenario=name, action_type="continuous" if name in _FACMAC else "discrete") for name in _CLASSES
}
