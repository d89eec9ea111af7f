"""Models written for others."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density, potential_energy

import phalanx as phx

Y = np.array([0.5, -1.0, 2.0, 0.1], np.float32)


def numpyro_model(y):
    w = numpyro.sample("w", dist.HalfNormal(1.0))
    with numpyro.plate("all", 4, subsample_size=None), numpyro.handlers.scale(scale=2.0):
        z = numpyro.sample("z", dist.Normal(0.0, w))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)
    numpyro.deterministic("double", 2 * w)
    numpyro.factor("penalty", -(w**2))


def test_a_numpyro_model_has_the_log_density_it_has_there():
    values = {"w": jnp.array(0.7), "z": jnp.array([0.1, 0.2, -0.3, 0.0])}
    expected, _ = log_density(numpyro_model, (Y,), {}, values)
    program = phx.from_numpyro(numpyro_model)
    assert phx.log_joint(program)(values, Y) == pytest.approx(float(expected), rel=1e-5)
    assert list(phx.trace(phx.seed(program, 0))(Y)) == ["w", "z", "y", "double", "penalty"]


def test_a_numpyro_model_as_a_target_has_numpyros_potential():
    def unscaled(y):
        w = numpyro.sample("w", dist.HalfNormal(1.0))
        with numpyro.plate("all", 4):
            z = numpyro.sample("z", dist.LogNormal(0.0, w))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    unconstrained = {"w": jnp.array(-0.3), "z": jnp.array([0.1, 0.2, -0.3, 0.0])}
    potential = potential_energy(unscaled, (Y,), {}, unconstrained)
    target = phx.Target(phx.from_numpyro(unscaled), {"y": Y})
    assert target.log_density(unconstrained) == pytest.approx(-float(potential), rel=1e-5)


def test_a_numpyro_primitive_without_a_counterpart_is_refused_by_name():
    program = phx.from_numpyro(lambda: numpyro.param("theta", 1.0))
    words = (
        "Site 'theta' is a numpyro.param, which is not supported. For phx.fit, in a guide or a model, use "
        "phx.param('theta', init, constraint); for sampling make it a numpyro.sample with a prior "
        "(numpyro.handlers.lift does it for a whole model), or an argument of the model; to fix its value use "
        "numpyro.handlers.substitute(model, {'theta': value})."
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.Target(program)


def test_a_parameter_of_numpyro_is_fixed_by_its_own_handler():
    def model():
        numpyro.sample("x", dist.Normal(numpyro.param("theta", 1.0), 1.0))

    fixed = phx.log_joint(numpyro.handlers.substitute(model, {"theta": jnp.array(3.0)}))
    assert fixed({"x": 3.0}) == pytest.approx(float(dist.Normal(0.0, 1.0).log_prob(0.0)))


def test_a_plain_log_density_of_one_array_or_of_a_dict():
    data = {"y": Y}
    one = phx.Target(phx.from_logdensity(lambda x, y: -jnp.sum((x - y) ** 2), np.zeros(4)), data)
    value, gradient = one.value_and_grad({"x": jnp.ones(4)})
    assert value == pytest.approx(-float(np.sum((1 - Y) ** 2)), rel=1e-5)
    np.testing.assert_allclose(gradient["x"], -2 * (1 - Y), rtol=1e-5)
    two = phx.from_logdensity(lambda p, y: -jnp.sum((p["a"] - y) ** 2) - p["b"] ** 2, {"a": np.zeros(4), "b": 3})
    target = phx.Target(two, data)
    start = target.initial_position(jax.random.key(0))
    assert start["b"] == 3.0 and start["b"].dtype == jnp.float32
    assert target.log_density(start) == pytest.approx(-float(np.sum(Y**2)) - 9, rel=1e-5)


def test_a_log_density_needs_a_position_to_start_from():
    words = "from_logdensity: init is empty; give the position to start from, a dict of arrays or one array."
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.from_logdensity(lambda p: jnp.zeros(()), {})
