"""Joint distributions with `Sharded` variables under `phx.spmd`, against the unsharded truth."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax

import phalanx as phx

COUNTS = [4, pytest.param(8, marks=pytest.mark.slow)]


def program(wrap, y, penalty):
    """A global w, a sharded x given w, sharded data, and an improper term."""
    w = phx.sample("w", dist.Normal(0.0, 2.0))
    x = phx.sample("x", wrap(dist.Normal(w, 1.0).expand(y.shape)))
    phx.factor("penalty", penalty(x, w))
    phx.sample("y", wrap(dist.Normal(x, 0.5)), obs=y)


def sharded(d):
    return phx.Sharded(d, "data")


def whole(y):
    return program(lambda d: d, y, lambda x, w: -jnp.sum(x**2 * w**2))


def piece(y):
    return program(sharded, y, lambda x, w: -lax.psum(jnp.sum(x**2) * w**2, "data"))


@pytest.mark.slow
@pytest.mark.parametrize("devices", COUNTS)
def test_log_density_and_gradients_of_a_model_with_local_and_global_variables(devices):
    rng = np.random.default_rng(devices)
    y, x = rng.normal(size=(2, devices, 3)).astype(np.float32)

    def on_device(y, x, w):
        value, g = jax.value_and_grad(lambda v: phx.Joint(piece).log_prob(v, y))({"w": w, "x": x})
        return value, g["w"], g["x"]

    run = phx.spmd(on_device, phx.make_mesh(chain=1, data=devices), ("data", "data", None), ("data", "data", "data"))
    value, gw, gx = run(y, x, 0.7)
    truth = phx.Joint(whole)
    expected, g = jax.value_and_grad(lambda v: truth.log_prob(v, y))({"w": jnp.float32(0.7), "x": x})
    np.testing.assert_allclose(value, np.full(devices, expected), rtol=1e-5)
    np.testing.assert_allclose(gw, np.full(devices, g["w"]), rtol=1e-5)
    np.testing.assert_allclose(gx, g["x"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("devices", COUNTS)
def test_drawing_with_some_values_given_completes_the_rest(devices):
    joint = phx.Joint({
        "top": dist.HalfNormal(1.0),
        "x": lambda top: sharded(dist.Uniform(0.0, top)),
        "z": lambda x: sharded(dist.Normal(100.0 * x, 1e-3)),
    })  # fmt: skip

    def on_device(key):
        drawn = joint.sample(key, values={"top": 0.25})
        return drawn["top"], drawn["x"], drawn["z"], joint.log_prob(drawn)

    outs = phx.spmd(on_device, phx.make_mesh(chain=1, data=devices), None, ("data",) * 4)(jax.random.key(0))
    top, x, z, log_prob = map(np.asarray, outs)
    np.testing.assert_array_equal(top, np.full(devices, 0.25, np.float32))
    assert len(np.unique(x)) == devices and x.min() >= 0 and x.max() <= 0.25
    np.testing.assert_allclose(z, 100 * x, atol=0.01)
    expected = dist.HalfNormal(1.0).log_prob(0.25) + devices * np.log(4) + dist.Normal(100 * x, 1e-3).log_prob(z).sum()
    np.testing.assert_allclose(log_prob, np.full(devices, expected), rtol=1e-3)


def test_a_global_variable_is_drawn_alike_on_every_device():
    joint = phx.Joint({"w": dist.Normal(0.0, 1.0), "x": lambda w: sharded(dist.Normal(w, 1.0))})

    def on_device(key):
        drawn = joint.sample(key)
        return drawn["w"], drawn["x"]

    w, x = phx.spmd(on_device, phx.make_mesh(chain=1, data=4), None, ("data", "data"))(jax.random.key(1))
    assert len(np.unique(w)) == 1
    assert len(np.unique(x)) == 4
