"""Policies over every kind of action space: parameters [..., width] -> sample, log-probability, entropy.

One example is one agent's action; leading axes are free. `legal` masks acting, log-probabilities and entropy alike; of
a box, it leaves out the dimensions that an agent does not have.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rookery.core.types import Action, ActionSpec
from rookery.ops.explore import weighted
from rookery.ops.td import ILLEGAL, only_legal, take

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


def parameters(spec: ActionSpec) -> int:
    """Numbers that the head of a policy must output: logits, or the mean of a Gaussian."""
    return spec.width


def _branches(spec: ActionSpec, x: Array) -> list[Array]:
    """Split [..., width] at the branches of a multi-discrete space."""
    edges = [sum(spec.sizes[:i]) for i in range(1, len(spec.sizes))]
    return jnp.split(x, edges, axis=-1)


def _categorical(logits: Array, legal: Array) -> Array:
    """Normalised log-probabilities; illegal ones are ILLEGAL."""
    return jax.nn.log_softmax(only_legal(logits, legal), axis=-1)


def _sum(x: Array, legal: Array) -> Array:
    """The sum over the legal columns; illegal ones get no gradient."""
    return jnp.sum(jnp.where(legal, x, 0.0), axis=-1)


def _gaussian_std(log_std: Array) -> Array:
    return jnp.exp(jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))


def sample(
    spec: ActionSpec,
    params: Float[Array, "*b width"],
    log_std: Float[Array, "*a width"],
    legal: Bool[Array, "*b width"],
    key: Array,
    *,
    greedy: bool,
) -> Action:
    """An action of the policy, or its most likely one."""
    if spec.kind == "box":
        noise = 0.0 if greedy else jax.random.normal(key, params.shape) * _gaussian_std(log_std)
        return jnp.where(legal, params + noise, 0.0)
    if spec.kind == "multi_binary":
        threshold = 0.5 if greedy else jax.random.uniform(key, params.shape)
        return (jax.nn.sigmoid(params) > threshold) & legal
    logits = _branches(spec, only_legal(params, legal))
    if greedy:
        chosen = [jnp.argmax(x, axis=-1).astype(jnp.int32) for x in logits]
    else:
        keys = jax.random.split(key, len(logits))
        chosen = [
            weighted(k, jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))) for k, x in zip(keys, logits, strict=True)
        ]
    return chosen[0] if spec.kind == "discrete" else jnp.stack(chosen, axis=-1)


def log_prob(
    spec: ActionSpec,
    params: Float[Array, "*b width"],
    log_std: Float[Array, "*a width"],
    legal: Bool[Array, "*b width"],
    action: Action,
) -> Float[Array, "*b"]:
    """Log-probability (density for a box) of `action`."""
    if spec.kind == "box":
        z = (action - params) / _gaussian_std(log_std)
        return _sum(-0.5 * z**2 - jnp.log(_gaussian_std(log_std)) - 0.5 * jnp.log(2 * jnp.pi), legal)
    if spec.kind == "multi_binary":
        signed = jnp.where(action, params, -params)
        return _sum(jax.nn.log_sigmoid(signed), legal)
    chosen = action[..., None] if spec.kind == "discrete" else action
    logs = [_categorical(p, ok) for p, ok in zip(_branches(spec, params), _branches(spec, legal), strict=True)]
    taken = [take(log, chosen[..., i]) for i, log in enumerate(logs)]
    return sum(taken[1:], taken[0])


def entropy(
    spec: ActionSpec,
    params: Float[Array, "*b width"],
    log_std: Float[Array, "*a width"],
    legal: Bool[Array, "*b width"],
) -> Float[Array, "*b"]:
    """Entropy over legal actions (differential entropy for a box)."""
    if spec.kind == "box":
        per_dim = jnp.log(_gaussian_std(log_std)) + 0.5 * jnp.log(2 * jnp.pi * jnp.e)
        return _sum(per_dim, legal)
    if spec.kind == "multi_binary":
        p = jax.nn.sigmoid(params)
        bits = -(p * jax.nn.log_sigmoid(params) + (1 - p) * jax.nn.log_sigmoid(-params))
        return _sum(bits, legal)
    logs = [_categorical(p, ok) for p, ok in zip(_branches(spec, params), _branches(spec, legal), strict=True)]
    parts = [-jnp.sum(jnp.exp(log) * jnp.maximum(log, ILLEGAL), axis=-1) for log in logs]
    return sum(parts[1:], parts[0])


def kl(
    spec: ActionSpec,
    old: Float[Array, "*b width"],
    old_log_std: Float[Array, "*a width"],
    new: Float[Array, "*b width"],
    new_log_std: Float[Array, "*c width"],
    legal: Bool[Array, "*b width"],
) -> Float[Array, "*b"]:
    """KL(old || new), exact, over legal actions."""
    if spec.kind == "box":
        s_old, s_new = _gaussian_std(old_log_std), _gaussian_std(new_log_std)
        per_dim = jnp.log(s_new / s_old) + (s_old**2 + (old - new) ** 2) / (2.0 * s_new**2) - 0.5
        return _sum(per_dim, legal)
    if spec.kind == "multi_binary":
        p = jax.nn.sigmoid(old)
        yes = p * (jax.nn.log_sigmoid(old) - jax.nn.log_sigmoid(new))
        no = (1 - p) * (jax.nn.log_sigmoid(-old) - jax.nn.log_sigmoid(-new))
        return _sum(yes + no, legal)

    def branch(p: Array, q: Array, ok: Array) -> Array:
        log_p, log_q = _categorical(p, ok), _categorical(q, ok)
        return jnp.sum(jnp.where(ok, jnp.exp(log_p) * (log_p - log_q), 0.0), axis=-1)

    branches = zip(_branches(spec, old), _branches(spec, new), _branches(spec, legal), strict=True)
    parts = [branch(p, q, ok) for p, q, ok in branches]
    return sum(parts[1:], parts[0])
