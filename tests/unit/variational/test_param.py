"""Parameters: values without a distribution, seen by tracing, and refused where nothing is learned."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import phalanx as phx


def program():
    scale = phx.param("scale", 2.0, constraints.positive)
    weights = phx.param("weights", lambda key: {"a": jax.random.normal(key, (3,))})
    return phx.sample("x", dist.Normal(weights["a"].sum(), scale))


def test_without_a_fit_a_parameter_is_its_initial_value():
    variables = phx.trace(phx.seed(program, 0))()
    assert list(variables) == ["scale", "weights", "x"]
    assert variables["scale"].value == 2.0 and variables["weights"].value["a"].shape == (3,)
    assert not variables["scale"].is_latent and variables["scale"].log_prob() == 0.0


def test_it_can_be_substituted_and_not_conditioned_on():
    variables = phx.trace(phx.seed(phx.substitute(program, {"scale": 7.0}), 0))()
    assert variables["scale"].value == 7.0
    with pytest.raises(ValueError, match="'scale' is a parameter, which has no density"):
        phx.trace(phx.seed(phx.condition(program, {"scale": 7.0}), 0))()


def test_a_key_is_asked_for():
    with pytest.raises(ValueError, match="'weights' is made by a function of a key, and there is no key"):
        phx.trace(program)()


def test_the_density_counts_no_parameter():
    values = {"scale": jnp.float32(1.0), "weights": {"a": jnp.zeros(3)}, "x": jnp.float32(0.0)}
    density = phx.log_joint(phx.substitute(program, {k: values[k] for k in ("scale", "weights")}))(values)
    assert density == pytest.approx(dist.Normal(0.0, 1.0).log_prob(0.0))


def test_sampling_refuses_one_without_a_value():
    with pytest.raises(ValueError, match="'scale' is a phx.param, which has no distribution"):
        phx.mcmc(program, progress=False)


def test_two_names_alike_are_refused():
    def twice():
        phx.param("a", 1.0)
        phx.param("a", 1.0)

    with pytest.raises(ValueError, match="named 'a'"):
        phx.trace(twice)()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((1, 0.0), "the parameter's name, a string"),
        (("a", "b"), "init must be an array"),
        (("a", None), "holds no number"),
        (("a", 1.0, "positive"), "constraint must be one of"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        phx.param(*arguments)


def test_whole_numbers_become_real_ones():
    assert phx.param("a", np.zeros(2, int)).dtype == jnp.float32
