"""Partially centred variables: the same density in other coordinates, whatever the family, the weight and the unit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.slow import with_slow

import phalanx as phx
from phalanx.inputs.arguments import split_arguments
from phalanx.programs.centring import (
    CENTRING,
    centred_first,
    find_sites,
    place_centring,
    recentred,
    residuals_of,
    with_centring,
)
from phalanx.programs.traced_program import TracedProgram
from phalanx.programs.unconstrained import run_unconstrained, to_unconstrained


@pytest.fixture(autouse=True)
def promotion():
    """Let ranks differ: NumPyro's expanded distributions broadcast so."""
    with jax.numpy_rank_promotion("allow"):
        yield


FAMILIES = {
    "normal": lambda mu, tau: dist.Normal(mu, tau).expand([3]).to_event(1),
    "by element": lambda mu, tau: dist.Normal(jnp.array([1.0, -2.0, 0.0]) * mu, tau * jnp.array([1.0, 2.0, 3.0])),
    "student": lambda mu, tau: dist.StudentT(4.0, mu, tau).expand([3]),
    "cauchy": lambda mu, tau: dist.Cauchy(mu, tau).expand([3]).to_event(1),
    "laplace": lambda mu, tau: dist.Laplace(mu, tau).expand([3]).mask(np.array([True, False, True])),
    "logistic": lambda mu, tau: dist.Logistic(mu, tau).expand([3]),
    "gumbel": lambda mu, tau: dist.Gumbel(mu, tau).expand([3]),
    "soft laplace": lambda mu, tau: dist.SoftLaplace(mu, tau).expand([3]),
    "log-normal": lambda mu, tau: dist.LogNormal(mu / 10, jnp.tanh(tau)).expand([3]).to_event(1),
    "multivariate": lambda mu, tau: dist.MultivariateNormal(
        mu * jnp.ones(3), scale_tril=tau * jnp.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 0.3, 2.0]])
    ),
    "multivariate student": lambda mu, tau: dist.MultivariateStudentT(
        5.0, mu * jnp.ones(3), scale_tril=tau * jnp.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 0.3, 2.0]])
    ),
    "walk": lambda mu, tau: dist.GaussianRandomWalk(tau, 3),
}
LONG = {"laplace", "logistic", "gumbel", "log-normal", "multivariate", "multivariate student", "walk"}


def model_of(family):
    def model(y):
        mu = phx.sample("mu", dist.Normal(0.0, 5.0))
        tau = phx.sample("tau", dist.HalfNormal(3.0))
        theta = phx.sample("theta", FAMILIES[family](mu, tau))
        phx.sample("y", dist.Normal(theta, 1.0).to_event(1), obs=y)

    return model


def mesh():
    return phx.make_mesh(chain=1, devices=jax.devices()[:1])


def density(program, position, data):
    run = run_unconstrained(program, position, data)
    return sum(jnp.sum(term) for term in run.terms().values()), run


Y = {"y": np.array([0.3, -1.0, 2.0])}


@pytest.mark.parametrize("family", with_slow([*FAMILIES], LONG))
@settings(max_examples=15, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=3, max_size=3),
    units=st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    where=st.tuples(st.floats(-5, 5), st.floats(-3, 2)),
    shared=st.booleans(),
)
def test_density_is_that_of_the_model_times_the_jacobian(family, weights, units, where, shared):
    """log p(u) = log p(x) + log |dx/du|, with the derivative taken numerically by JAX."""
    model = model_of(family)
    program, data = with_centring(model, Y, {"theta": (3,)}, mesh())
    centring = np.array([weights, units], np.float32)
    data = {**data, CENTRING: {"theta": centring[:, 0] if shared else centring}}
    position = {"mu": jnp.float32(where[0]), "tau": jnp.float32(where[1]), "theta": jnp.array([0.4, -1.1, 0.7])}

    whole, run = density(program, position, data)
    values = {name: run.variables[name].value for name in position}

    def value(theta):
        return run_unconstrained(program, {**position, "theta": theta}, data).variables["theta"].value

    theta = values["theta"]
    own = to_unconstrained(model, values, Y)  # the model's own coordinates: log x for a log-normal, else x
    plain, _ = density(model, own, Y)
    if family == "log-normal":
        jacobian = jnp.linalg.slogdet(jax.jacobian(lambda u: jnp.log(value(u)))(position["theta"]))[1]
    else:
        jacobian = jnp.linalg.slogdet(jax.jacobian(value)(position["theta"]))[1]
    np.testing.assert_allclose(whole, plain + jacobian, rtol=2e-4, atol=2e-3)

    back = to_unconstrained(program, values, data)
    scale = 1 + np.abs(np.asarray(theta)).max() * np.exp(3)
    np.testing.assert_allclose(back["theta"], position["theta"], rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("family", FAMILIES)
def test_residuals_give_the_position_for_any_other_centring(family):
    program, data = with_centring(model_of(family), Y, {"theta": (3,)}, mesh())
    position = {"mu": jnp.float32(2.0), "tau": jnp.float32(-1.0), "theta": jnp.array([0.4, -1.1, 0.7])}
    _, run = density(program, position, data)
    for weight in (0.0, 0.3, 1.0):
        centring = {"theta": np.array([[weight, 0.5, 0.2], [0.1, -0.4, 0.0]], np.float32)}
        moved = {**position, **recentred(residuals_of(run.variables), centring, np.float32)}
        _, there = density(program, moved, {**data, CENTRING: centring})
        np.testing.assert_allclose(there.variables["theta"].value, run.variables["theta"].value, rtol=1e-5, atol=1e-5)


def test_density_keeps_its_digits_where_the_scale_is_tiny():
    """At a location of 1,000 and a scale of 1e-6 all digits of x - mu are lost; those of the position are not."""

    def model():
        mu, log_tau = phx.sample("mu", dist.Normal(0.0, 1e3)), phx.sample("log_tau", dist.Normal(0.0, 10.0))
        phx.sample("theta", dist.Normal(mu, jnp.exp(log_tau)))

    program, data = with_centring(model, {}, {"theta": ()}, mesh())
    data[CENTRING] = {"theta": np.zeros(2, np.float32)}
    position = {"mu": jnp.float32(1000.0), "log_tau": jnp.float32(np.log(1e-6)), "theta": jnp.float32(1.5)}

    def total(position):
        terms = run_unconstrained(program, position, data).terms()
        return terms["theta", "density"] + terms["theta", "jacobian"]

    value, gradient = jax.value_and_grad(total)(position)
    assert float(value) == pytest.approx(stats.norm.logpdf(1.5), abs=1e-4)
    assert float(gradient["theta"]) == pytest.approx(-1.5, rel=1e-5)
    assert float(gradient["mu"]) == pytest.approx(0.0, abs=1e-6)
    assert float(gradient["log_tau"]) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("name", ["it's", 'say "x"', "a\\b", "x[0]", "g/x", "y.z", "two\nlines"])
def test_any_name_finds_its_argument(name):
    """A centring that found no argument would be ignored in silence."""

    def model():
        phx.sample(name, dist.Normal(phx.sample("mu", dist.Normal(0.0, 1.0)), 1.0))

    program, data = with_centring(model, {}, {name: ()}, mesh())
    arguments = split_arguments(program, data)
    (array,) = place_centring(arguments, arguments.arrays, {name: np.array([0.25, 3.0])}, mesh())
    np.testing.assert_array_equal(array, [0.25, 3.0])


def test_log_normal_values_that_underflow_keep_their_position():
    def model():
        mu = phx.sample("mu", dist.Normal(0.0, 100.0))
        phx.sample("x", dist.LogNormal(mu, 1.0))

    program, data = with_centring(model, {}, {"x": ()}, mesh())
    position = {"mu": jnp.float32(-150.0), "x": jnp.float32(-75.0)}
    variables = run_unconstrained(program, position, data).variables
    assert variables["x"].value == 0.0
    moved = recentred(residuals_of(variables), {"x": np.array([1.0, 0.0], np.float32)}, np.float32)
    np.testing.assert_allclose(moved["x"], -150.0)


def test_without_its_argument_the_program_is_the_model():
    model = model_of("normal")
    program, data = with_centring(model, Y, {"theta": (3,)}, mesh())
    position = {"mu": jnp.float32(2.0), "tau": jnp.float32(-1.0), "theta": jnp.array([0.4, -1.1, 0.7])}
    assert density(program, position, Y)[0] == density(model, position, Y)[0]
    assert set(centred_first(program, Y)) == {"y", CENTRING} and centred_first(model, Y) is Y
    assert set(data) == {"y", CENTRING}


def traced(model, data):
    return TracedProgram.of_whole(model, split_arguments(model, data), {})


def three(y):
    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfNormal(3.0))
    fixed = phx.sample("fixed", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    theta = phx.sample("theta", dist.Normal(mu, 1.0).expand([3]).to_event(1))
    eta = phx.sample("eta", dist.Normal(0.0, tau))
    scaled = phx.sample("scaled", dist.Gamma(2.0, tau))
    phx.sample("y", dist.Normal(theta.sum() + eta + scaled + fixed.sum(), 1.0), obs=y)


def test_sites_are_those_whose_location_or_scale_other_variables_move():
    whole = traced(three, {"y": 1.0})
    assert find_sites(whole, "auto") == {"theta": (3,), "eta": ()}
    assert find_sites(whole, ("eta",)) == {"eta": ()}
    assert find_sites(traced(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), {}), "auto") == {}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("y", "'y' is not latent"),
        ("fixed", "the same in every draw"),
        ("scaled", "'scaled' is Gamma, and no location and scale"),
        ("thet", "no variable 'thet'. Did you mean 'theta'?"),
    ],
)
def test_names_that_cannot_be_centred_are_refused_with_the_reason(name, said):
    with pytest.raises(ValueError, match="This model's are") as error:
        find_sites(traced(three, {"y": 1.0}), (name,))
    assert said in str(error.value)


def test_a_users_subclass_is_not_taken_for_its_family():
    class Odd(dist.Normal):
        def log_prob(self, value):
            return super().log_prob(value) * 2

    def model():
        phx.sample("x", Odd(phx.sample("mu", dist.Normal(0.0, 1.0)), 1.0))

    assert find_sites(traced(model, {}), "auto") == {}
