"""Importance resampling: draws for use have the weighted moments, and the verdict knows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.diagnostics.psis import smooth
from phalanx.variational.drawing import on_host
from phalanx.variational.judging.evidence import Weights
from phalanx.variational.judging.judge import judge_fit


def skewed():
    """Of mean 2 and variance 4 / 10: a normal about any place has another shape."""
    phx.sample("x", dist.Gamma(10.0, 5.0).expand([3]))


@pytest.fixture(scope="module")
def fit():
    return phx.fit(skewed, phx.guides.pathfinder(num_paths=2), progress=False)


@pytest.mark.slow
def test_draws_are_the_posteriors(fit):
    """Effective draws are at least 2,000 of the pool: 4.5 standard errors of the mean are 0.064."""
    draws = fit.sample(seed=3, n=8000)["x"]
    np.testing.assert_allclose(draws.mean(0), 2.0, atol=0.064)
    np.testing.assert_allclose(draws.std(0), 0.632, rtol=0.1)
    assert fit.verdict().good


@pytest.mark.slow
def test_a_draw_depends_on_seed_and_number_alone(fit):
    long, short = fit.sample(seed=7, n=700)["x"], fit.sample(seed=7, n=20)["x"]
    np.testing.assert_array_equal(long[:20], short)
    assert (fit.sample(seed=8, n=20)["x"] != short).any()


@pytest.mark.slow
def test_weights_that_have_been_used_are_not_told_again(fit):
    posterior = fit.posterior(50)
    assert (posterior.stats["log_weight"] == 0.0).all()
    assert np.isfinite(posterior.stats["log_density"]).all()
    assert on_host(fit.proposals.batches(0, 50), 50).log_q.std() > 0


def test_the_verdict_looks_at_the_error_of_weighted_means():
    rng = np.random.default_rng(0)
    values = {"x": rng.normal(size=4000)}
    log = 0.5 * values["x"]  # moves the mean by half of a standard deviation
    weights = Weights(log, smooth(log))
    told = {"end_problem": "", "steps": 0, "num_failed": 0}
    assert "means off" in [f.topic for f in judge_fit(weights, values, **told).findings]
    assert judge_fit(weights, values, is_resampled=True, **told).good
    few = Weights(log[:200], smooth(log[:200]))
    assert not judge_fit(few, {"x": values["x"][:200]}, is_resampled=True, **told).good
    assert jnp.isfinite(weights.normalized).all()
