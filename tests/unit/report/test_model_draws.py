"""Draws of a run's model in its report: the prior, replicated data, and reasons for those that are missing."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.report.model_draws import ModelDraws, draw_from_model
from phalanx.report.sections import check_section, loo_section, variables_section

Y = np.array([3.0, 5.0, 4.0, 4.5, 3.5], np.float32)


def model(y):
    mean = phx.sample("mean", dist.Normal(0.0, 10.0))
    phx.deterministic("twice", 2 * mean)
    phx.sample("y", dist.Normal(mean, 1.0), obs=y)


def run(program, data, **options):
    return phx.mcmc(program, data, kernel=phx.hmc(4), num_warmup=100, num_samples=60, progress=False, **options)


@pytest.fixture(scope="module")
def posterior():
    return run(model, {"y": Y})


@pytest.mark.slow
def test_the_prior_and_replicates_are_those_of_the_model(posterior):
    draws = draw_from_model(posterior)
    assert draws.no_prior == draws.no_replicates == ""
    prior = draws.prior["mean"]
    assert prior.shape == (240,) and 8 < prior.std() < 12  # 4 standard errors
    np.testing.assert_array_equal(draws.prior["twice"], 2 * prior)
    np.testing.assert_array_equal(draws.observed["y"], Y)
    again = draws.replicated["y"]
    assert again.shape == (120, 5) and abs(again.mean() - 4.0) < 0.4
    titles = [picture.alt for picture in check_section(draws).pictures]
    assert titles == ["Predictive check of y", "Statistics of y"]
    assert "prior is grey" in variables_section(posterior, draws).note
    (picture,) = loo_section(posterior, draws).pictures
    assert picture.alt == "Pareto k of y"


@pytest.mark.slow
def test_rows_on_devices_are_observed_without_padding(mesh_of):
    mesh = mesh_of(2, 2)
    posterior = run(model, phx.shard({"y": Y}, mesh), mesh=mesh)
    draws = draw_from_model(posterior)
    np.testing.assert_array_equal(draws.observed["y"], Y)
    assert draws.replicated["y"].shape[1:] == (5,)


def test_large_data_are_not_drawn_and_the_page_gives_their_size(posterior, monkeypatch):
    monkeypatch.setattr("phalanx.report.model_draws.MOST_BYTES", 100)
    draws = draw_from_model(posterior)
    assert not draws.prior and not draws.replicated
    (words,) = check_section(draws).missing
    assert "a draw of all variables of the model takes 0 MB" in words


def test_a_model_that_cannot_be_drawn_gives_the_reason():
    def improper(y):
        mean = phx.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
        phx.factor("y", -0.5 * jnp.sum((y - mean) ** 2))

    draws = draw_from_model(run(improper, {"y": Y}))
    assert "mean" in draws.no_prior
    assert draws.no_replicates == "the model has no observed variable"


def test_no_model_no_draws(posterior):
    draws = draw_from_model(replace(posterior, target=None))
    assert draws.no_prior.startswith("the model is unknown") and draws.no_replicates.startswith("the model is unknown")


MODEL = ModelDraws({}, {"y": np.zeros(3)}, {})


class _WithLoo:
    num_chains, num_draws = 4, 100

    def __init__(self, found):
        self.found = found

    def loo(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_leave_one_out_says_how_many_are_unreliable():
    class Found:
        elpd, se, p_loo, pareto_k, good_k = -12.5, 1.25, 2.0, {"y": np.array([0.1, 0.9, np.nan])}, 0.7

    section = loo_section(_WithLoo(Found()), MODEL)
    assert (
        "−12.50 ± 1.25" in section.note.replace("-", "−") and "Pareto k of 1 observation is above 0.7" in section.note
    )
    assert len(section.pictures) == 1
    (words,) = loo_section(_WithLoo(ValueError("loo: 'f' is a factor.\nmore")), MODEL).missing
    assert words == "Not computed: loo: 'f' is a factor."
    (words,) = loo_section(_WithLoo(Found()), MODEL._replace(observed={"y": np.zeros(2**20)})).missing
    assert "it takes 419,430,400 terms" in words
    (words,) = loo_section(_WithLoo(Found()), MODEL._replace(observed={}, no_replicates="it is large")).missing
    assert words == "Not computed: it is large."


@pytest.mark.slow
def test_the_scales_of_the_metric_are_recorded():
    def scales():
        phx.sample("x", dist.Normal(0.0, jnp.array([0.1, 1.0, 10.0])))

    warmup = phx.mcmc(scales, num_warmup=300, num_samples=10, progress=False).warmup
    assert 0.05 < warmup["metric_low"][-1] < 0.2 and 5 < warmup["metric_high"][-1] < 20
