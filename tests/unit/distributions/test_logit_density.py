"""Densities on intervals, far out where float32 has no value left between the draw and the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms
from scipy import stats
from scipy.special import log_expit

import phalanx as phx
from phalanx.programs.unconstrained import run_unconstrained

LOGITS = np.array([-60.0, -20.0, -3.0, 0.0, 0.7, 9.0, 17.0, 40.0])
TWO = transforms.AffineTransform(-1.0, 2.0, domain=dist.constraints.unit_interval)
TURNED = transforms.AffineTransform(1.0, -2.0, domain=dist.constraints.unit_interval)


@pytest.fixture(autouse=True)
def promotion():
    """Let ranks differ: NumPyro's mixtures and expanded distributions broadcast so."""
    with jax.numpy_rank_promotion("allow"):
        yield


def beta(a, b):
    """Log density of the logit of a Beta variable."""
    return lambda u: stats.beta.logpdf(0.5, a, b) + (a - 1 + b - 1) * np.log(2) + a * log_expit(u) + b * log_expit(-u)


def kumaraswamy(a, b):
    def log_density(u):
        rest = np.where(u > 30, np.log(a) - u, np.log(-np.expm1(a * log_expit(np.minimum(u, 30)))))
        return np.log(a * b) + a * log_expit(u) + log_expit(-u) + (b - 1) * rest

    return log_density


CASES = {
    "beta": (lambda: dist.Beta(0.1, 0.1), beta(0.1, 0.1)),
    "lopsided": (lambda: dist.Beta(5.0, 0.1), beta(5, 0.1)),
    "proportion": (lambda: dist.BetaProportion(0.5, 0.2), beta(0.1, 0.1)),
    "masked": (lambda: dist.Beta(0.1, 0.2).mask(np.True_), beta(0.1, 0.2)),
    "kumaraswamy": (lambda: dist.Kumaraswamy(0.5, 0.1), kumaraswamy(0.5, 0.1)),
    "affine": (lambda: dist.TransformedDistribution(dist.Beta(0.1, 0.3), TWO), beta(0.1, 0.3)),
    "turned": (lambda: dist.TransformedDistribution(dist.Beta(0.1, 0.3), TURNED), beta(0.3, 0.1)),
    "logit-normal": (
        lambda: dist.TransformedDistribution(dist.Normal(0.0, 20.0), transforms.SigmoidTransform()),
        lambda u: stats.norm.logpdf(u, 0, 20),
    ),
    "mixture": (
        lambda: dist.MixtureSameFamily(
            dist.Categorical(np.array([0.3, 0.7])), dist.Beta(np.array([0.1, 2.0]), np.array([0.2, 3.0]))
        ),
        lambda u: np.logaddexp(np.log(0.3) + beta(0.1, 0.2)(u), np.log(0.7) + beta(2, 3)(u)),
    ),
    "uniform": (lambda: dist.Uniform(-2.0, 5.0), lambda u: log_expit(u) + log_expit(-u)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("event", [False, True])
def test_a_density_holds_wherever_its_logit_does(name, event):
    make, truth = CASES[name]

    def model():
        distribution = make().expand([len(LOGITS)])
        phx.sample("x", distribution.to_event(1) if event else distribution)

    run = run_unconstrained(model, {"x": jnp.asarray(LOGITS, jnp.float32)}, {})
    found = sum(np.asarray(term).sum() if event else np.asarray(term) for term in run.terms().values())
    expected = truth(LOGITS)
    np.testing.assert_allclose(found, expected.sum() if event else expected, rtol=2e-5, atol=2e-4)


def test_a_logit_of_an_event_is_summed_over_it():
    joint = dist.TransformedDistribution(dist.Normal(jnp.zeros(8), 20.0).to_event(1), transforms.SigmoidTransform())
    run = run_unconstrained(lambda: phx.sample("x", joint), {"x": jnp.asarray(LOGITS, jnp.float32)}, {})
    found = sum(float(np.sum(term)) for term in run.terms().values())
    np.testing.assert_allclose(found, stats.norm.logpdf(LOGITS, 0, 20).sum(), rtol=1e-5)


@pytest.mark.slow
def test_values_in_the_middle_have_the_density_that_they_had():
    logits = np.linspace(-4, 4, 9)
    for make, _ in CASES.values():
        distribution = make()
        run = run_unconstrained(lambda d=distribution: phx.sample("x", d.expand([9])), {"x": jnp.asarray(logits)}, {})
        value = run.values()["x"]
        expected = distribution.expand([9]).log_prob(value)
        np.testing.assert_allclose(run.terms()["x", "density"], expected, rtol=2e-4, atol=2e-4)


def shares(a, b, edges, seed):
    """Shares of draws above each edge, and their standard errors from the spread over chains."""
    posterior = phx.mcmc(
        lambda: phx.sample("x", dist.Beta(a, b)), num_chains=16, num_warmup=300, num_samples=400, seed=seed,
        progress=False,
    )  # fmt: skip
    above = (posterior.draws["x"][..., None] > np.float32(edges)).mean(axis=1)
    return above.mean(axis=0), above.std(axis=0, ddof=1) / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "a, b, edges",
    [
        (0.1, 0.1, [0.5]),
        pytest.param(0.05, 0.05, [0.5], marks=pytest.mark.slow),
        pytest.param(5.0, 0.1, [1 - 1e-5], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_chains_hold_the_mass_at_the_upper_end(a, b, edges):
    # t of 15 degrees of freedom beyond 5.5: a false failure in 15,000 runs
    share, error = shares(a, b, edges, seed=1)
    truth = stats.beta(a, b).sf(edges)
    assert (np.abs(share - truth) < 5.5 * error + 1e-3).all(), (share, truth, error)


@pytest.mark.slow
def test_the_evidence_holds_the_mass_at_the_upper_end():
    # the evidence of a normalised density is 1; a tenth of it was lost
    fit = phx.fit(lambda: phx.sample("x", dist.Beta(0.1, 0.1)), phx.guides.mean_field(), progress=False)
    evidence = fit.evidence(num_draws=20_000)
    assert abs(evidence.log_evidence) < 5 * evidence.error + 0.02


def test_draws_beyond_the_last_digit_are_the_last_value_below_the_end():
    run = run_unconstrained(lambda: phx.sample("x", dist.Beta(0.1, 0.1)), {"x": jnp.float32(40.0)}, {})
    assert 1 - 2e-7 < float(run.values()["x"]) < 1


def test_numpyros_plates_keep_the_logit():
    def model():
        with numpyro.plate("rows", 3):
            numpyro.sample("x", dist.Beta(0.1, 0.1))

    run = run_unconstrained(model, {"x": jnp.asarray([0.0, 20.0, 40.0])}, {})
    found = sum(run.terms().values())
    np.testing.assert_allclose(found, beta(0.1, 0.1)(np.array([0.0, 20.0, 40.0])), rtol=1e-5)
