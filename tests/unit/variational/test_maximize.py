"""The values of greatest density."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import phalanx as phx

Y = np.array([3, 5, 4], np.int32)


def counts(y):
    rate = phx.sample("rate", dist.Gamma(2.0, 1.0))
    phx.deterministic("double", 2 * rate)
    phx.sample("y", dist.Poisson(rate), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_it_is_the_mode_of_the_density_as_it_is_written(devices, mesh_of):
    """(2 - 1 + 12) / (1 + 3), and not that of the logarithm of the rate."""
    found = phx.maximize(counts, {"y": phx.shard(Y, mesh_of(1, devices))})
    assert found.values["rate"] == pytest.approx(3.25, rel=1e-3)
    assert found.values["double"] == pytest.approx(6.5, rel=1e-3)
    assert found.log_density == pytest.approx(float(phx.log_joint(counts)({"rate": 3.25}, y=Y)), rel=1e-5)


@pytest.mark.slow
def test_many_coordinates_of_different_scales():
    scales = np.logspace(-2, 2, 40)

    def model():
        phx.sample("x", dist.Normal(scales, scales))

    np.testing.assert_allclose(phx.maximize(model).values["x"], scales, rtol=0.05)


@pytest.mark.slow
def test_init_chooses_among_modes():
    def two():
        x = phx.sample("x", dist.Normal(0.0, 10.0))
        phx.factor("ends", -0.5 * (x**2 - 9.0) ** 2)

    for start in (-2.5, 2.5):
        assert phx.maximize(two, init={"x": start}).values["x"] == pytest.approx(np.sign(start) * 3.0, abs=0.05)


@pytest.mark.slow
def test_where_there_is_none_it_is_refused():
    def funnel():
        scale = phx.sample("scale", dist.HalfCauchy(1.0))
        phx.sample("effects", dist.Normal(0.0, scale).expand([10]))

    with pytest.raises(ValueError, match="there is no maximum where the climb ended"):
        phx.maximize(funnel)
    with pytest.raises(ValueError, match="no latent variables"):
        phx.maximize(lambda y: phx.sample("y", dist.Normal(0.0, 1.0), obs=y), {"y": np.ones(3)})
    with pytest.raises(ValueError, match="there is no parameter or variable 'z'"):
        phx.maximize(counts, {"y": Y}, init={"z": 1.0})
    with pytest.raises(ValueError, match="learned by phx.fit"):
        phx.maximize(lambda: phx.sample("x", dist.Normal(phx.param("m", 0.0), 1.0)))


@pytest.mark.slow
def test_more_coordinates_than_a_hessian_is_made_of():
    scales = np.logspace(-2, 2, 5000).astype(np.float32)
    found = phx.maximize(lambda: phx.sample("x", dist.Normal(scales, scales)))
    np.testing.assert_allclose(found.values["x"], scales, rtol=0.05)
    assert found.unchecked.startswith(
        "The density of 5,000 coordinates was checked to fall along the 32 softest directions"
    )


@pytest.mark.slow
def test_among_many_coordinates_one_that_runs_away_is_seen():
    def plateau():
        phx.sample("x", dist.Normal(0.0, 1.0).expand([5000]))
        u = phx.sample("u", dist.ImproperUniform(dist.constraints.real, (), ()))
        phx.factor("f", jnp.tanh(u))

    with pytest.raises(ValueError, match="there is no maximum where the climb ended"):
        phx.maximize(plateau)


@pytest.mark.slow
def test_one_of_many_maxima_side_by_side_is_found():
    """The product of two vectors stays the same where one grows and the other shrinks, or both are turned."""
    truth = np.outer([1.0, -2.0, 0.5], [1.5, 1.0]).astype(np.float32)

    def factors(y):
        a, b = (phx.sample(name, dist.Normal(0.0, 1.0).expand([n, 2])) for name, n in (("a", 3), ("b", 2)))
        phx.sample("y", dist.Normal(a @ b.T, 0.1), obs=y)

    found = phx.maximize(factors, {"y": truth})
    np.testing.assert_allclose(found.values["a"] @ found.values["b"].T, truth, atol=0.05)
    assert found.unchecked and found.at_bounds == ()


@pytest.mark.slow
def test_laplace_is_exact_for_a_normal():
    covariance = np.array([[1.0, 0.8], [0.8, 1.0]], np.float32)

    def model(y):
        b = phx.sample("b", dist.MultivariateNormal(np.zeros(2, np.float32), covariance))
        phx.sample("y", dist.Normal(b.sum(), 0.5), obs=y)

    y = np.array([1.0, 1.5, 0.5], np.float32)
    precision = np.linalg.inv(covariance) + len(y) / 0.25 * np.ones((2, 2))
    fit = phx.fit(model, phx.guides.laplace(), {"y": y}, progress=False)
    tril = fit.params["scale_tril"]
    np.testing.assert_allclose(tril @ tril.T, np.linalg.inv(precision), atol=1e-4)
    np.testing.assert_allclose(fit.params["loc"], np.linalg.solve(precision, y.sum() / 0.25 * np.ones(2)), atol=1e-3)
    assert fit.verdict().good


@pytest.mark.slow
def test_a_kink_is_a_maximum():
    found = phx.maximize(lambda: phx.sample("x", dist.Laplace(np.array([0.0, 1.0, -2.0], np.float32), 1.0)))
    np.testing.assert_allclose(found.values["x"], [0.0, 1.0, -2.0], atol=2e-3)
    assert found.log_density == pytest.approx(-3 * np.log(2.0), abs=0.01) and found.at_bounds == ()


@pytest.mark.slow
def test_a_lasso_has_kinks_and_smooth_coordinates():
    """With orthogonal columns, the least-squares coefficients are drawn towards zero by as much, and stop there."""
    x = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 3)))[0].astype(np.float32)
    y = x @ np.array([3.0, 0.5, -2.0], np.float32)

    def lasso(x, y):
        b = phx.sample("b", dist.Laplace(0.0, 1.0).expand([3]))
        phx.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    np.testing.assert_allclose(phx.maximize(lasso, {"x": x, "y": y}).values["b"], [2.0, 0.0, -1.0], atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distribution", "end"), [(dist.HalfNormal(1.0), 0.0), (dist.Beta(2.0, 1.0), 1.0), (dist.Exponential(2.0), 0.0)]
)
def test_a_maximum_at_the_edge_of_a_support_is_there(distribution, end):
    found = phx.maximize(lambda: phx.sample("x", distribution))
    assert found.values["x"] == end and found.at_bounds == ("x",)
    assert found.log_density == pytest.approx(float(distribution.log_prob(abs(end - 1e-6))), abs=1e-3)


@pytest.mark.slow
def test_beside_a_coordinate_at_the_edge_others_are_found():
    def model():
        scale = phx.sample("scale", dist.HalfNormal(1.0))
        phx.sample("x", dist.Normal(3.0 + scale, 1.0))

    found = phx.maximize(model)
    assert found.at_bounds == ("scale",) and found.values["x"] == pytest.approx(3.0, abs=0.02)


@pytest.mark.slow
def test_variable_that_runs_away_is_named():
    x = np.linspace(-2.0, 2.0, 20).astype(np.float32)

    def separable(x, y):
        w = phx.sample("w", dist.ImproperUniform(dist.constraints.real, (), ()))
        phx.sample("y", dist.Bernoulli(logits=w * x), obs=y)

    with pytest.raises(ValueError, match="no maximum where the climb ended.* w runs away"):
        phx.maximize(separable, {"x": x, "y": (x > 0).astype(np.int32)})

    def plateau():
        u = phx.sample("u", dist.ImproperUniform(dist.constraints.real, (), ()))
        phx.factor("f", np.float32(1.0) * jnp.tanh(u))

    with pytest.raises(ValueError, match="u runs away"):
        phx.maximize(plateau)


@pytest.mark.slow
def test_coefficients_that_run_away_together_are_named():
    x = np.random.default_rng(3).normal(size=(30, 2)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0], np.float32) > 0).astype(np.int32)

    def separable(x, y):
        w = phx.sample("w", dist.ImproperUniform(dist.constraints.real, (2,), ()))
        phx.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    with pytest.raises(ValueError, match=r"no maximum where the climb ended.*w\[(age|dose)\].* runs away"):
        phx.maximize(separable, {"x": pd.DataFrame(x, columns=["age", "dose"]), "y": y})


@pytest.mark.slow
def test_a_plateau_beside_a_large_log_density_is_none():
    def model(y):
        far = phx.sample("far", dist.ImproperUniform(dist.constraints.real, (), ()))
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.factor("level", jnp.tanh(far))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ValueError, match="does not fall however far far runs away"):
        phx.maximize(model, {"y": np.zeros(150_000, np.float32)})


@pytest.mark.slow
def test_a_maximum_of_a_large_log_density_is_found():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200_000, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=len(x))).astype(np.float32)

    def model(x, y):
        weights = phx.sample("weights", dist.Normal(0.0, 10.0).expand([3]))
        phx.sample("y", dist.Normal(x @ weights, 1.0), obs=y)

    found = phx.maximize(model, {"x": x, "y": y})
    assert abs(found.log_density) > 2e5
    np.testing.assert_allclose(found.values["weights"], np.linalg.lstsq(x, y)[0], atol=2e-4)


def test_maximum_that_rounding_hides_is_named():
    def model():
        phx.sample("x", dist.Normal(0.0, 1.0))
        phx.factor("large", jnp.float32(-4e8))

    assert "too large to resolve" in phx.maximize(model).unchecked
