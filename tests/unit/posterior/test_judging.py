"""Facts of the model in the verdict on a run: it observes nothing, or a latent variable lies on a circle."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.reparam import CircularReparam

import phalanx as phx
from phalanx.posterior.judging import ends_of_circles, windings

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


def test_a_density_or_a_factor_is_no_prior():
    density = phx.from_logdensity(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    assert not phx.compile(density).record.prior_only

    def factor():
        phx.factor("term", -(phx.sample("x", dist.Normal(0.0, 1.0)) ** 2))

    assert not phx.compile(factor).record.prior_only


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


def test_an_angle_on_both_sides_of_pi_is_named():
    def model():
        phx.sample("phi", dist.VonMises(np.pi, 2.0))
        phx.sample("psi", dist.VonMises(0.0, 8.0))

    findings = [f for f in phx.mcmc(model, **SHORT).verdict().findings if f.topic == "ends of a circle"]
    assert len(findings) == 1 and findings[0].grade == "usable"
    assert findings[0].problem.startswith("phi lies on a circle, and ")
    assert findings[0].advice.startswith(
        "numpyro.handlers.reparam(model, {'phi': numpyro.infer.reparam.CircularReparam()})"
    )


def test_only_angles_whose_mass_lies_at_the_ends_are_named():
    random = np.random.default_rng(2)
    latents = {"a": "Circular(lower_bound=-3.14, upper_bound=3.14) (2,)", "x": "Real() (2,)"}

    def is_named(name, angles):
        return bool(ends_of_circles({name: angles}, latents))

    def angles(mean, concentration):
        return random.vonmises([0.0, mean], concentration, (4, 500, 2))

    assert is_named("a", angles(np.pi, 2.0))
    assert is_named("a", np.abs(angles(np.pi, 20.0)))  # all chains on one side
    assert not is_named("x", angles(np.pi, 2.0))
    assert not any(is_named("a", angles(0.0, concentration)) for concentration in (0.0, 0.5, 1.0, 2.0, 8.0))
    assert not is_named("a", angles(1.5, 8.0))
