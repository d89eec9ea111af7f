"""Sensitivity to prior and likelihood: ArviZ's numbers, known cases, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from tests.unit.report.posteriors import RECORD

import phalanx as phx
from phalanx.posterior.criticism.sensitivity import diagnosis, distance
from phalanx.posterior.posterior import Posterior
from phalanx.posterior.record import Timing

RNG = np.random.default_rng(0)
Y = RNG.normal(1.0, 1.0, size=20).astype(np.float32)


def posterior_of(prior_mean: float, prior_sd: float, num_rows: int = 20) -> Posterior:
    """Draws of the exact posterior of a mean, and of one that no observation depends on."""

    def model(y):
        mean = phx.sample("mean", dist.Normal(prior_mean, prior_sd))
        phx.sample("idle", dist.Normal(0.0, 1.0).expand([2]))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    y = Y[:num_rows]
    precision = prior_sd**-2 + len(y)
    mean = (prior_mean * prior_sd**-2 + y.sum()) / precision
    draws = {
        "mean": RNG.normal(mean, precision**-0.5, size=(4, 1000)).astype(np.float32),
        "idle": RNG.normal(size=(4, 1000, 2)).astype(np.float32),
    }
    record = replace(RECORD, num_samples=1000, latents={"mean": "", "idle": ""})
    return Posterior(draws, {}, Timing(), record, target=phx.Target(model, {"y": y}))


def test_a_weak_prior_a_strong_one_and_one_that_disagrees_are_told_apart():
    weak = posterior_of(0.0, 10.0).sensitivity()
    assert weak.index.tolist() == ["mean", "idle[0]", "idle[1]"]
    assert weak.loc["mean", "prior"] < 0.05 < weak.loc["mean", "likelihood"] and weak.loc["mean", "diagnosis"] == ""
    # no observation says anything about it
    assert weak.loc["idle[0]", "likelihood"] < 0.05 < weak.loc["idle[0]", "prior"]
    assert weak.loc["idle[1]", "diagnosis"] == "the prior is strong, or the data say little"
    far = posterior_of(8.0, 1.0).sensitivity(names="mean")
    assert far.index.tolist() == ["mean"]
    assert far.loc["mean", "diagnosis"] == "the prior and the data may disagree"


@pytest.mark.parametrize("prior", [(0.0, 10.0), (2.0, 0.3)])
def test_arviz_agrees(prior):
    arviz = pytest.importorskip("arviz")
    if not arviz.__version__.startswith("0."):
        pytest.skip("ArviZ 1.x takes other powers")
    posterior = posterior_of(*prior)
    data = posterior.to_arviz(predictive=False, prior=False)
    assert data.log_prior["idle"].shape == (4, 1000, 2)
    table = posterior.sensitivity()
    for component in ("prior", "likelihood"):
        expected = arviz.psens(data, component=component)
        # ArviZ smooths weights that are nearly equal, too
        assert table.loc["mean", component] == pytest.approx(float(expected["mean"]), rel=0.02, abs=0.01)
        np.testing.assert_allclose(table[component].to_numpy()[1:], expected["idle"], rtol=0.02, atol=0.01)


def test_the_distance_is_that_of_the_definition():
    """Of two points there is one interval, on which both distribution functions are constant."""
    draws, weights = np.array([[3.0], [1.0]]), np.array([0.2, 0.8])
    p, q = 0.5, 0.8
    middle = (p + q) / 2
    expected = np.sqrt((p * np.log2(p / middle) + q * np.log2(q / middle)) / (p + q))
    np.testing.assert_allclose(distance(draws, weights), [expected])
    assert np.isnan(distance(np.ones((5, 1)), np.full(5, 0.2))).all()


def test_a_constant_has_no_diagnosis():
    assert diagnosis(np.nan, np.nan) == ""


def test_draws_that_cannot_be_weighted_are_refused():
    posterior = posterior_of(0.0, 1.0)
    with pytest.raises(ValueError, match=r"sensitivity: there are no draws of 'maen'; .* Did you mean 'mean'\?"):
        posterior.sensitivity(names=["maen"])
    weighted = replace(posterior, stats={"log_weight": RNG.normal(size=(4, 1000))})
    with pytest.raises(ValueError, match="sensitivity: the draws of a guide have importance weights"):
        weighted.sensitivity()

    def scaled(y):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("idle", dist.Normal(0.0, 1.0).expand([2]))
        with numpyro.handlers.scale(scale=3.0):
            phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ValueError, match="sensitivity: .*scale"):
        replace(posterior, target=phx.Target(scaled, {"y": Y})).sensitivity()
