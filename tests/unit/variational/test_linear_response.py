"""Covariances by linear response: exact of normal posteriors, and near of others."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest
from tests.unit.variational.models import DATA, exact, regression

import phalanx as phx

_, COVARIANCE, _ = exact()
HELD = {"optimizer": "lbfgs", "progress": False}


@pytest.fixture(scope="module")
def mean_field():
    return phx.fit(
        regression, phx.guides.mean_field(), DATA, dims={"w": "term"}, coords={"term": ["a", "b", "c"]}, **HELD
    )


@pytest.mark.slow
def test_linear_response_of_a_normal_is_exact(mean_field):
    found = mean_field.covariance()
    assert found.names == ("w[a]", "w[b]", "w[c]")
    np.testing.assert_allclose(found.matrix, COVARIANCE, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found.sd, np.sqrt(np.diag(COVARIANCE)), rtol=1e-3)


@pytest.mark.slow
def test_linear_response_of_deterministic_values_is_exact(mean_field):
    found = mean_field.covariance(["total", "w"])
    assert found.names[0] == "total"
    np.testing.assert_allclose(found.matrix[0, 0], COVARIANCE.sum(), rtol=1e-3)
    np.testing.assert_allclose(found.matrix[0, 1:], COVARIANCE.sum(0), rtol=2e-3, atol=1e-5)


@pytest.mark.slow
def test_guides_without_linear_response_are_refused(mean_field):
    with pytest.raises(ValueError, match="the model has no variable 'z'; it has 'total', 'w'"):
        mean_field.covariance("z")
    solved = phx.fit(lambda: phx.sample("x", dist.Normal(0.0, 1.0)), phx.guides.laplace(), progress=False)
    with pytest.raises(ValueError, match="is computed without steps: take the covariance of its draws"):
        solved.covariance()


@pytest.mark.slow
def test_parameters_of_the_model_are_held():
    """The data's mean is as well explained by the parameter: were it to follow, the variance would be the prior's."""

    def model(y):
        level = phx.param("level", 0.0)
        x = phx.sample("x", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(x + level, 1.0), obs=y)

    fit = phx.fit(model, phx.guides.mean_field(), {"y": np.ones(3, np.float32)}, **HELD)
    np.testing.assert_allclose(fit.covariance().matrix, [[0.25]], rtol=1e-3)


@pytest.mark.slow
def test_linear_response_of_a_logistic_regression_is_near_that_of_chains():
    """Standard deviations of 4,000 draws are off by 2%; those of the guide itself are half of what they should be."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 4)).astype(np.float32) @ np.linalg.cholesky(np.full((4, 4), 0.9) + 0.1 * np.eye(4)).T
    x = x.astype(np.float32)
    y = (rng.uniform(size=200) < 1 / (1 + np.exp(-x.sum(1)))).astype(np.int32)

    def model(x, y):
        w = phx.sample("w", dist.Normal(0.0, 2.0).expand([4]))
        phx.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    fit = phx.fit(model, phx.guides.mean_field(), {"x": x, "y": y}, **HELD)
    truth = phx.mcmc(model, {"x": x, "y": y}, progress=False).draws["w"].reshape(-1, 4).std(0)
    np.testing.assert_allclose(fit.covariance().sd, truth, rtol=0.12)
    assert (fit.params["w.scale"] < 0.75 * truth).all()
