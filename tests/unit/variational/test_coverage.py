"""A guide that cannot be wherever the posterior can is never good to use: of what it leaves out no weight knows."""

from __future__ import annotations

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions import constraints

import phalanx as phx
from phalanx.variational.guides.coverage import left_out

Y = {"y": np.array([0.5], np.float32)}


def model(y):
    phx.sample("y", dist.Normal(phx.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def point():
    phx.sample("m", dist.Delta(phx.param("at", 0.0)))


def half():
    phx.sample("m", dist.HalfNormal(phx.param("scale", 1.0, constraints.positive)))


def box():
    middle = phx.param("middle", 0.0)
    phx.sample("m", dist.Uniform(middle - 0.5, middle + 0.5))


@pytest.mark.parametrize(
    "guide, words",
    [
        (point, "at one point"),
        pytest.param(half, "from 0 to inf", marks=pytest.mark.slow),
        pytest.param(box, "from somewhere to", marks=pytest.mark.slow),
    ],
)
def test_such_a_fit_is_not_good_and_its_evidence_not_reliable(guide, words):
    fit = phx.fit(model, guide, Y, num_steps=400, progress=False)
    (found,) = [finding for finding in fit.verdict().findings if finding.topic == "support"]
    assert words in found.problem and "'m'" in found.problem and not fit.verdict().good
    assert not fit.evidence().reliable
    assert any("support" in finding.topic for finding in fit.posterior(10).record.findings)


@pytest.mark.slow
def test_guides_that_cover_the_posterior_have_no_finding():
    wide = phx.importance(model, lambda: phx.sample("m", dist.StudentT(4.0, 0.25, 0.8)), Y)
    assert wide.verdict().good and wide.evidence().reliable


BOUNDS = {
    "real": dist.Normal(0.0, 1.0), "vector": dist.Normal(0.0, 1.0).expand([2]).to_event(1),
    "positive": dist.Gamma(2.0, 1.0), "log": dist.LogNormal(0.0, 1.0), "interval": dist.Uniform(0.0, 1.0),
    "beta": dist.Beta(2.0, 2.0), "wide": dist.Uniform(-1.0, 2.0), "above": dist.TruncatedNormal(0.0, 1.0, low=-2.0),
    "below": dist.TruncatedNormal(0.0, 1.0, high=2.0), "count": dist.Poisson(1.0), "few": dist.Binomial(3, 0.5),
    "flag": dist.Bernoulli(0.5), "simplex": dist.Dirichlet(np.ones(3)),
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BOUNDS)), st.sampled_from(sorted(BOUNDS)))
def test_nothing_is_said_where_draws_of_the_model_are_in_the_guides_support(one, other):
    guide, model = BOUNDS[one], BOUNDS[other]
    if (one == "simplex") is not (other == "simplex") or guide.support.is_discrete is not model.support.is_discrete:
        return
    draws = model.sample(jax.random.key(0), (2000,))
    covers = bool(np.all(guide.support(draws)))
    assert bool(left_out("m", guide, model)) is not covers


@pytest.mark.parametrize(
    "guide",
    [
        lambda: phx.sample("m", dist.Normal(0.0, 1.0).mask(False)),
        lambda: numpyro.handlers.scale(lambda: phx.sample("m", dist.Normal(0.0, 1.0)), scale=3.0)(),
    ],
    ids=["masked", "scaled"],
)
def test_a_guide_whose_density_is_not_that_of_its_draws_is_refused(guide):
    with pytest.raises(ValueError, match="'m' of the guide <lambda> is masked or scaled"):
        phx.importance(model, guide, Y)
