"""Importance sampling with a proposal program: exact where the answer is known, and a verdict where it is far off."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

Y = {"y": 2.0}
LOG_EVIDENCE = -0.5 * math.log(2 * math.pi * 2.0) - 1.0


def model(y):
    phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def wide():
    phx.sample("mean", dist.StudentT(4.0, 0.0, 1.0))


def narrow():
    phx.sample("mean", dist.Normal(0.0, 0.2))


def learned(y):
    phx.sample("mean", dist.Normal(phx.param("share", 0.1) * y, 0.75))


@pytest.mark.slow
def test_evidence_and_draws_are_those_of_the_posterior():
    weighted = phx.importance(model, wide, Y)
    evidence = weighted.evidence()
    assert evidence.reliable and abs(evidence.log_evidence - LOG_EVIDENCE) < 5 * evidence.error  # fails once in 1e6
    assert weighted.verdict().good and weighted.steps == 0 and len(weighted.losses.elbo) == 0
    draws = weighted.posterior(8000).draws["mean"]
    effective = 8000 / (1 + 8000 / 2000)  # chosen from a pool of which some 2,000 are worth a draw
    assert abs(draws.mean() - 1.0) < 5 * math.sqrt(0.5 / effective)
    assert abs(draws.std() - math.sqrt(0.5)) < 5 * math.sqrt(0.5 / 2 / effective)


@pytest.mark.slow
def test_a_proposal_that_is_too_narrow_is_said_to_be():
    verdict = phx.importance(model, narrow, Y).verdict()
    assert not verdict.good and "heavy weights" in verdict.headline


@pytest.mark.slow
def test_parameters_are_those_of_a_fit_or_given():
    fit = phx.fit(model, learned, Y, objective=phx.guides.forward_kl(), progress=False)
    weighted = phx.importance(model, learned, Y, init=fit)
    assert float(weighted.params["share"]) == float(fit.params["share"]) == pytest.approx(0.5, abs=0.05)
    assert float(phx.importance(model, learned, Y, init={"share": 0.4}).params["share"]) == pytest.approx(0.4)


def test_variables_that_are_not_aligned_are_named():
    def other():
        phx.sample("man", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="'mean'|'man'"):
        phx.importance(model, other, Y)


def test_to_learn_where_there_is_nothing_to_learn_says_what_to_call():
    with pytest.raises(ValueError, match=r"has a parameter to learn.*phx\.importance"):
        phx.fit(model, wide, Y, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "counts", [dist.Binomial(4, 0.3), pytest.param(dist.BetaBinomial(1.0, 2.0, 4), marks=pytest.mark.slow)]
)
def test_a_proposal_of_counts_runs(counts):
    def program():
        phx.sample("k", counts)

    assert phx.importance(program, program).evidence().log_evidence == pytest.approx(0.0, abs=1e-4)


@pytest.mark.slow
def test_it_is_the_same_from_a_file(tmp_path):
    weighted = phx.importance(model, wide, Y)
    weighted.save(tmp_path / "weighted.npz")
    assert phx.Fit.load(tmp_path / "weighted.npz").verdict().good
    np.testing.assert_array_equal(weighted.posterior(10).draws["mean"], weighted.posterior(10).draws["mean"])


@pytest.mark.slow
def test_a_density_that_is_no_number_is_told_from_none():
    """Of draws above one, which have no density, nothing is lost; where it cannot be computed nobody knows what is."""

    def cut(value):
        def cut_model():
            x = phx.sample("x", dist.Normal(0.0, 1.0))
            phx.factor("f", jnp.where(x > 1.0, value, 0.0))

        return cut_model

    def standard():
        phx.sample("x", dist.Normal(0.0, 1.0))

    known, unknown = (phx.importance(cut(value), standard) for value in (-np.inf, np.nan))
    assert known.verdict().good and known.evidence().reliable
    assert known.evidence().log_evidence == pytest.approx(math.log(0.8413), abs=5 * known.evidence().error)
    assert "no number" in unknown.verdict().headline and not unknown.evidence().reliable


@pytest.mark.slow
def test_weights_that_are_nearly_equal_have_no_tail_to_be_afraid_of():
    def posterior(y):
        phx.sample("y", dist.Normal(phx.sample("w", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    def mixture():
        normals = dist.Normal(np.array([0.904, 1.1096]), np.array([0.488, 0.4925]))
        phx.sample("w", dist.MixtureSameFamily(dist.Categorical(probs=np.array([0.29, 0.71])), normals))

    assert phx.importance(posterior, mixture, {"y": np.array([0.2, 2.1, 1.9])}).verdict().good
