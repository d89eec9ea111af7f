"""Facts of the model in the verdict and the summary: it observes nothing, or a latent variable lies on a circle."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.reparam import CircularReparam

import phalanx as phx
from phalanx.posterior.draw_tables import angles_among
from phalanx.posterior.judging import windings

SHORT = {"num_warmup": 200, "num_samples": 300, "progress": False}


def topics(posterior):
    return [finding.topic for finding in posterior.verdict().findings]


def test_a_run_that_observes_nothing_draws_from_the_prior(tmp_path):
    def model(y=None):
        mean = phx.sample("mean", dist.Normal(0.0, 1.0))
        phx.sample("y", dist.Normal(mean, 1.0), obs=y)

    prior = phx.mcmc(model, **SHORT)
    assert "prior only" in topics(prior) and prior.verdict().grade != "good"
    assert "observes no variable and has no factor: these are draws of the prior" in str(prior.verdict())
    prior.save(tmp_path / "prior.npz")
    assert phx.Posterior.load(tmp_path / "prior.npz").verdict() == prior.verdict()
    assert "prior only" not in topics(phx.mcmc(model, {"y": 1.0}, **SHORT))


@pytest.mark.slow
def test_a_density_or_a_factor_is_no_prior():
    density = phx.from_logdensity(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    assert not phx.compile(density).record.prior_only

    def factor():
        phx.factor("term", -(phx.sample("x", dist.Normal(0.0, 1.0)) ** 2))

    assert not phx.compile(factor).record.prior_only


@pytest.mark.slow
def test_positions_on_other_turns_of_a_circle_agree():
    def model(y):
        phi = numpyro.sample("phi", dist.VonMises(0.0, 0.1))
        numpyro.sample("y", dist.VonMises(phi, 0.4), obs=y)

    y = (np.random.default_rng(0).normal(np.pi, 1.0, 20).astype(np.float32) + np.pi) % (2 * np.pi) - np.pi
    circular = numpyro.handlers.reparam(model, {"phi": CircularReparam()})
    posterior = phx.mcmc(circular, {"y": y}, **SHORT)
    assert np.ptp(posterior["phi_unwrapped"]) > 2 * np.pi  # chains are on several turns
    verdict = posterior.verdict()
    assert "phi_unwrapped is not judged: it is phi with whole turns added, which have no meaning." in verdict.passed
    assert "phi_unwrapped" not in str(verdict)


def test_only_whole_turns_of_a_computed_angle_wind():
    random = np.random.default_rng(1)
    line = random.normal(0.0, 10.0, (4, 50, 2))
    angle = (line + np.pi) % (2 * np.pi) - np.pi
    assert windings({"u": line, "a": angle}, {"u"}) == {"u": "a"}
    assert windings({"u": line, "a": angle}, {"u", "a"}) == {}
    assert windings({"u": line, "a": 2 * angle}, {"u"}) == {}
    assert windings({"u": angle, "a": angle}, {"u"}) == {}


def test_the_summary_of_an_angle_says_that_its_statistics_are_directional():
    def model():
        phx.sample("phi", dist.VonMises(np.pi, 8.0).expand([2]))
        phx.sample("x", dist.Normal(0.0, 1.0))

    summary = phx.mcmc(model, **SHORT).summary()
    assert summary.notes[-1] == (
        "Mean and sd of the angles phi are directional, see phalanx.diagnostics.summary_table; an interval whose "
        "hdi_low is above hdi_high contains pi."
    )
    rows = summary.loc[["phi[0]", "phi[1]"]]
    assert (rows["mean"].abs() > 3.0).all() and (rows["sd"] < 0.5).all() and (rows["hdi_low"] > rows["hdi_high"]).all()


def test_only_supports_on_the_circle_are_of_angles():
    circle = "Circular(lower_bound=-3.14, upper_bound=3.14)"
    supports = {
        "a": f"{circle} (2,)", "b": f"IndependentConstraint({circle}, 1) (2,)", "x": "Real() (2,)",
        "y": f"Image(of {circle} under AffineTransform) ()", "z": f"{circle} or Real() ()",
    }  # fmt: skip
    assert angles_among(supports) == ["a", "b"]
