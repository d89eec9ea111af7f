"""Joint densities: of programs with control flow, of lists and dicts; guides beside models."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx


def branching(threshold=0.0):
    """Which variables there are depends on the value of one."""
    x = phx.sample("x", dist.Normal(0.0, 1.0))
    if x > threshold:
        phx.sample("big", dist.Exponential(2.0))
    else:
        phx.sample("small", dist.Normal(x, 0.1))


def test_control_flow_follows_the_values():
    f = phx.log_joint(branching)
    normal = dist.Normal(0.0, 1.0)
    assert f({"x": 1.0, "big": 0.5}) == pytest.approx(float(normal.log_prob(1.0) + np.log(2) - 1.0), rel=1e-5)
    expected = normal.log_prob(-1.0) + dist.Normal(-1.0, 0.1).log_prob(-0.9)
    assert f({"x": -1.0, "small": -0.9}) == pytest.approx(float(expected), rel=1e-5)
    assert f({"x": 1.0, "small": -0.9}, threshold=2.0).shape == ()


def test_a_missing_value_names_the_variable():
    words = "log_joint: no value was given for variable 'big'; values were given for 'x', 'small'."
    with pytest.raises(ValueError, match=re.escape(words)):
        phx.log_joint(branching)({"x": 1.0, "small": 0.0})
    with pytest.raises(ValueError, match="no value was given for variable 'x'; values were given for none."):
        phx.log_joint(branching)({})


def test_a_value_of_the_wrong_shape_names_the_variable():
    with pytest.raises(ValueError, match=re.escape("Variable 'x': the value has shape (2, 3), but its distribution")):
        phx.log_joint(lambda: phx.sample("x", dist.Normal(jnp.zeros(2), 1.0)))({"x": jnp.zeros((2, 3))})


def test_one_scalar_of_all_terms():
    def program(y):
        x = phx.sample("x", dist.Normal(jnp.zeros((2, 3)), 1.0))
        phx.factor("f", jnp.full(4, -0.5))
        phx.deterministic("d", x + 100)
        phx.sample("y", dist.Poisson(2.0), obs=y)

    x = jnp.arange(6.0).reshape(2, 3)
    found = phx.log_joint(program)({"x": x}, jnp.array([1, 2]))
    expected = dist.Normal(0.0, 1.0).log_prob(x).sum() - 2.0 + dist.Poisson(2.0).log_prob(jnp.array([1, 2])).sum()
    assert found.shape == ()
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_the_elbo_of_a_guide_aligned_by_name_with_a_model():
    y = 1.3

    def model():
        x = phx.sample("x", dist.Normal(0.0, 2.0))
        z = phx.sample("z", dist.Normal(x, 1.0))
        phx.sample("y", dist.Normal(z, 0.5), obs=y)

    def guide(loc):
        z = phx.sample("z", dist.Normal(loc, 0.3))  # another order than the model's
        phx.sample("x", dist.Normal(0.5 * z, 0.7))

    def elbo(loc, key):
        drawn = phx.Joint(guide).sample(key, loc)
        return phx.log_joint(model)(drawn) - phx.log_joint(guide)(drawn, loc)

    def by_hand(loc, key):
        z = phx.trace(phx.seed(guide, key))(loc)["z"].value
        x = phx.trace(phx.seed(guide, key))(loc)["x"].value

        def normal(v, loc, scale):
            return -0.5 * ((v - loc) / scale) ** 2 - jnp.log(
                scale
            )  # the constants: three in the model, two in the guide

        log_p = normal(x, 0.0, 2.0) + normal(z, x, 1.0) + normal(y, z, 0.5)
        return log_p - normal(z, loc, 0.3) - normal(x, 0.5 * z, 0.7) - 0.5 * jnp.log(2 * jnp.pi)

    for seed in range(3):
        found = jax.value_and_grad(elbo)(0.8, jax.random.key(seed))
        expected = jax.value_and_grad(by_hand)(0.8, jax.random.key(seed))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        # the same through substitution, variable by variable
        drawn = phx.Joint(guide).sample(jax.random.key(seed), 0.8)
        terms = {n: v.log_prob() for n, v in phx.trace(phx.substitute(model, drawn))().items()}
        assert list(terms) == ["x", "z", "y"]
        assert sum(terms.values()) == pytest.approx(float(phx.log_joint(model)(drawn)), rel=1e-5)


def test_a_dict_names_its_parents():
    joint = phx.Joint({
        "scale": dist.HalfNormal(1.0),
        "x": lambda scale: dist.Normal(0.0, scale),
        "y": lambda x, scale: dist.Normal(x, scale).expand([2]),
    })  # fmt: skip
    drawn = joint.sample(0)
    assert list(drawn) == ["scale", "x", "y"] and drawn["y"].shape == (2,)
    values = {"scale": 2.0, "x": 1.0, "y": jnp.zeros(2)}
    expected = dist.HalfNormal(1.0).log_prob(2.0) + dist.Normal(0.0, 2.0).log_prob(1.0)
    expected += 2 * dist.Normal(1.0, 2.0).log_prob(0.0)
    assert joint.log_prob(values) == pytest.approx(float(expected), rel=1e-5)


def test_in_a_list_the_most_recent_comes_first():
    joint = phx.Joint([
        dist.HalfNormal(1.0), lambda scale: dist.Normal(0.0, scale), lambda x, scale: dist.Normal(x, scale)
    ])  # fmt: skip
    expected = dist.HalfNormal(1.0).log_prob(2.0) + dist.Normal(0.0, 2.0).log_prob(1.0)
    expected += dist.Normal(1.0, 2.0).log_prob(0.5)
    assert joint.log_prob([2.0, 1.0, 0.5]) == pytest.approx(float(expected), rel=1e-5)
    drawn = joint.sample(0, values=[1e-6, None, None])
    assert isinstance(drawn, list) and drawn[0] == pytest.approx(1e-6) and abs(drawn[2]) < 1e-4


def test_drawing_completes_given_values():
    joint = phx.Joint(lambda: phx.sample("y", dist.Normal(phx.sample("x", dist.Normal(0.0, 1.0)), 1e-4)))
    drawn = joint.sample(jax.random.key(0), values={"x": 50.0})
    assert drawn["x"] == 50.0 and drawn["y"] == pytest.approx(50, abs=0.01)
    with pytest.raises(ValueError, match="phx.substitute: the program has no variable 'z'"):
        joint.sample(0, values={"z": 1.0})


def test_a_program_with_arguments_and_observations():
    def program(n, y):
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([n]))
        phx.sample("y", dist.Normal(x.sum(), 1.0), obs=y)

    joint = phx.Joint(program)
    drawn = joint.sample(0, 3, y=1.0)
    assert list(drawn) == ["x"] and drawn["x"].shape == (3,)
    expected = 3 * dist.Normal(0.0, 1.0).log_prob(0.0) + dist.Normal(0.0, 1.0).log_prob(1.0)
    assert joint.log_prob({"x": jnp.zeros(3)}, 3, y=1.0) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("spec, error, words", [
    ({"x": 3.0}, TypeError, "Joint: entry 'x' must be a distribution or a function that returns one; got float."),
    ({"x": lambda scale: dist.Normal(0.0, scale), "scale": dist.HalfNormal(1.0)}, ValueError,
     "Joint: 'x' depends on 'scale', which must come before it; before it come none."),
    ([dist.Normal(0.0, 1.0), lambda a, b: dist.Normal(a, b)], ValueError,
     "Joint: entry 'x1' takes 2 arguments, but 1 variables come before it."),
    ({"x": lambda: 3.0}, TypeError, "Variable 'x': expected a numpyro.distributions.Distribution, got float."),
])  # fmt: skip
def test_other_objects_than_joint_distributions_are_refused(spec, error, words):
    with pytest.raises(error, match=re.escape(words)):
        phx.Joint(spec).sample(0)


class Implicit(dist.Distribution):
    support: Any = dist.constraints.real

    def sample(self, key: Any, sample_shape=()):
        return jax.random.normal(key, sample_shape)


def test_a_distribution_without_a_density_is_named():
    def model():
        phx.sample("x", Implicit())

    words = "Variable 'x': its distribution, Implicit, has no log density: Implicit.log_prob is not implemented."
    for density in (phx.log_joint(model), phx.Joint(model).log_prob):
        with pytest.raises(ValueError, match=re.escape(words)):
            density({"x": 1.0})
    assert phx.trace(phx.seed(model, 0))()["x"].value.shape == ()
