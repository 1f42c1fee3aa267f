"""Encoders of memories: shapes, what a variational autoencoder learns, and what its switches leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import hasty_jit

from rookery.core.errors import ConfigError
from rookery.core.types import ActionSpec, Spec
from rookery.mechanisms.encode import Encoder, Vae
from rookery.nets.optimiser import Optimiser

IMAGE = Spec("toy", ("agent",), (6, 6, 2), ActionSpec("discrete", (3,)), 10, obs_dtype="uint8")
FLAT = replace(IMAGE, obs_shape=(5,), obs_dtype="float32")
VAE = Encoder("vae", dim=3, width=16)
KEY = jax.random.PRNGKey(0)


def observations(spec: Spec, n: int = 16) -> jax.Array:
    """Images with one bright pixel each, no two alike, or numbers from 0 to 1."""
    rng = np.random.default_rng(0)
    if spec is FLAT:
        return jnp.asarray(rng.random((n, 1, 5)), jnp.float32)
    obs = np.zeros((n, 1, *spec.obs_shape), np.uint8)
    cell = rng.permutation(36)[:n]
    obs[np.arange(n), 0, cell // 6, cell % 6, 0] = 255
    return jnp.asarray(obs)


@pytest.mark.parametrize("spec", [IMAGE, FLAT])
@pytest.mark.parametrize("kind", ["identity", "random", "mlp", "conv", "resnet", "vae"])
def test_keys(kind: Any, spec: Spec) -> None:
    encoder = Encoder(kind, dim=3, width=8)
    if spec is FLAT and kind in ("conv", "resnet"):
        with pytest.raises(ConfigError, match="images"):
            encoder.check(spec)
        return
    obs = observations(spec)
    params = hasty_jit(lambda: encoder.init(spec, KEY))()
    keys = hasty_jit(lambda: encoder(spec, params, obs.reshape(4, 4, *obs.shape[1:])))()
    assert keys.shape == (4, 4, encoder.size(spec)) and len(np.unique(np.asarray(keys).round(5), axis=0)) > 1


def losses(encoder: Encoder, spec: Spec = IMAGE) -> tuple[Any, Any, jax.Array, jax.Array]:
    obs = observations(spec)
    target = jnp.linspace(-50.0, 50.0, obs.shape[0])
    return encoder.init(spec, KEY), lambda p: encoder.losses(spec, p, obs, target, KEY), obs, target


def test_a_vae_learns_to_reconstruct_and_to_predict_values() -> None:
    encoder, optimiser = replace(VAE, vae=Vae(kl=1e-3, value=1.0)), Optimiser("adam", lr=1e-2)
    params, found, *_ = losses(encoder)

    def step(now: Any, _: None) -> tuple[Any, Any]:
        params, opt = now
        total = lambda p: sum(weight * x for weight, x in found(p).values())  # noqa: E731
        params, opt = optimiser.step(params, jax.grad(total)(params), opt, jnp.float32(0))
        return (params, opt), None

    (after, _), _ = hasty_jit(lambda: jax.lax.scan(step, (params, optimiser.init(params)), length=200))()
    first, last = ({name: float(x) for name, (_, x) in found(p).items()} for p in (params, after))
    assert last["vae/reconstruction"] < 0.5 * first["vae/reconstruction"]
    assert last["vae/value"] < 0.3 * first["vae/value"]


def test_the_weight_of_the_kl_is_applied() -> None:
    """The gradient of the whole loss is linear in it."""

    def gradient(kl: float) -> np.ndarray:
        params, found, *_ = losses(replace(VAE, vae=Vae(kl=kl)))
        total = lambda p: sum(weight * x for weight, x in found(p).values())  # noqa: E731
        return np.asarray(hasty_jit(jax.grad(total))(params).layers[-1].weight)

    none, one, two = (gradient(kl) for kl in (0.0, 1.0, 2.0))
    np.testing.assert_allclose(two - one, one - none, atol=1e-5)
    assert np.abs(one - none).max() > 1e-3


def test_without_a_value_head_there_is_no_trace_of_one() -> None:
    params, found, obs, target = losses(VAE)
    assert params.vae.value is None and set(found(params)) == {"vae/reconstruction", "vae/kl"}
    text = str(jax.make_jaxpr(lambda p, o, t: VAE.losses(IMAGE, p, o, t, KEY))(params, obs, target))
    assert "log1p" not in text, "nothing reads the targets"
    headed = replace(VAE, vae=Vae(value=1.0))
    assert headed.init(IMAGE, KEY).vae is not None and "vae/value" in losses(headed)[1](headed.init(IMAGE, KEY))
