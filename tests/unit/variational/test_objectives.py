"""Objectives: their values against what is known, and their gradients, in expectation, against exact ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions import constraints
from tests.unit.variational.models import DATA, by_hand, exact, regression

import phalanx as phx
from phalanx.variational.methods.step import Steps

MEANS, WEIGHTS = np.array([-1.0, 0.5, 2.0]), np.array([0.5, 0.3, 0.2])
SHORT = {"num_steps": 5, "until": False, "progress": False}
DRAWS = 4000


def mixture(y):
    z = phx.sample("z", dist.CategoricalProbs(WEIGHTS))
    shift = phx.sample("shift", dist.Normal(0.0, 0.5))
    phx.sample("y", dist.Normal(jnp.asarray(MEANS)[z] + shift, 1.0), obs=y)


def of_both(y):
    """A discrete variable, and one that is reparameterised and depends on it."""
    z = phx.sample("z", dist.CategoricalLogits(phx.param("logits", jnp.array([0.1, 0.0, -0.2]))))
    loc = phx.param("loc", jnp.array([0.3, 0.1, -0.3]))
    phx.sample("shift", dist.Normal(loc[z], phx.param("scale", 0.4, constraints.positive)))


def exact_bound(params):
    """The bound of `mixture` and `of_both` at y = 1, the discrete variable and the normal one summed out."""
    q, loc, scale = jax.nn.softmax(params["logits"]), params["loc"], params["scale"]
    prior = -0.5 * jnp.log(2 * jnp.pi * 0.25) - (loc**2 + scale**2) / 0.5
    likelihood = -0.5 * jnp.log(2 * jnp.pi) - 0.5 * ((1.0 - jnp.asarray(MEANS) - loc) ** 2 + scale**2)
    entropy = 0.5 * jnp.log(2 * jnp.pi * jnp.e * scale**2)
    return jnp.sum(q * (jnp.log(jnp.asarray(WEIGHTS)) + prior + likelihood + entropy - jnp.log(q)))


def gradients(fit, objective, particles):
    """Many gradients of an objective at a fit's parameters: by parameter, `(draw, ...)`."""
    steps = Steps(fit.pair, objective, None, particles)
    keys = random.split(random.key(7), DRAWS)
    return jax.jit(jax.vmap(lambda key: steps.gradient(fit.free, key, fit.arrays)))(keys)


@pytest.mark.slow
def test_the_score_function_is_unbiased_beside_reparameterised_variables():
    """Each coordinate is off by 4.5 standard errors with probability 7e-6."""
    fit = phx.fit(mixture, of_both, {"y": 1.0}, **SHORT)
    found, bounds = gradients(fit, phx.guides.elbo(), 4)
    assert fit.pair is not None and fit.free is not None
    constrain = fit.pair.learned.constrain
    expected = jax.grad(lambda free: -exact_bound(constrain(free)))(fit.free)
    for name, values in found.items():
        values = np.asarray(values, float)
        error = values.std(0) / np.sqrt(DRAWS)
        assert np.all(np.abs(values.mean(0) - expected[name]) < 4.5 * error + 1e-6), name
    bounds = np.asarray(bounds, float).mean(1)
    assert abs(bounds.mean() - float(exact_bound(constrain(fit.free)))) < 4.5 * bounds.std() / np.sqrt(DRAWS)


@pytest.mark.slow
def test_a_discrete_guide_becomes_the_posterior():
    fit = phx.fit(mixture, of_both, {"y": 1.0}, num_particles=32, progress=False)
    marginal = WEIGHTS * np.exp(dist.Normal(MEANS, np.sqrt(1.25)).log_prob(1.0))
    np.testing.assert_allclose(jax.nn.softmax(fit.params["logits"]), marginal / marginal.sum(), atol=0.03)
    evidence = fit.evidence()
    assert evidence.log_evidence == pytest.approx(np.log(marginal.sum()), abs=5 * evidence.error + 1e-3)


@pytest.mark.slow
def test_importance_weighted_bounds_rise_to_the_evidence():
    fit = phx.fit(regression, by_hand, DATA, **{**SHORT, "num_steps": 600})
    bounds = []
    for count in (1, 4, 64):
        _, found = gradients(fit, phx.guides.importance_weighted(count), count)
        bounds.append((float(np.mean(found)), float(np.std(found) / np.sqrt(DRAWS))))
    evidence = exact()[2]
    for (low, e), (high, f) in zip(bounds, [*bounds[1:], (evidence, 0.0)], strict=True):
        assert high - low > -4.5 * np.hypot(e, f)
    assert evidence - bounds[-1][0] < 0.5 * (evidence - bounds[0][0])


@pytest.mark.slow
def test_the_doubly_reparameterised_gradient_is_that_of_the_bound():
    fit = phx.fit(regression, by_hand, DATA, **{**SHORT, "num_steps": 300})

    def plain(log_p, log_q, draws):
        return -(jax.nn.logsumexp(log_p - log_q) - jnp.log(4))

    doubly, _ = gradients(fit, phx.guides.importance_weighted(4), 4)
    single, _ = gradients(fit, phx.guides.objective(plain), 4)
    for name in doubly:
        a, b = np.asarray(doubly[name], float), np.asarray(single[name], float)
        error = np.sqrt((a.var(0) + b.var(0)) / DRAWS)
        assert np.all(np.abs(a.mean(0) - b.mean(0)) < 4.5 * error), name


@pytest.mark.slow
def test_the_forward_divergence_knows_the_variances():
    """Of a normal, the closest by KL(p || q) of independent coordinates has its marginal variances."""
    mean, covariance, _ = exact()
    fit = phx.fit(
        regression, by_hand, DATA, objective=phx.guides.forward_kl(), num_particles=256,
        init={"loc": mean, "scale": np.sqrt(np.diag(covariance))}, optimizer=0.01, num_steps=2000, until=False,
        progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(fit.params["scale"], np.sqrt(np.diag(covariance)), rtol=0.1)
    np.testing.assert_allclose(fit.params["loc"], mean, atol=0.2 * np.sqrt(covariance.max()))


@pytest.mark.slow
def test_an_objective_of_ones_own():
    own = phx.guides.objective(lambda log_p, log_q, draws: jnp.mean(log_q - log_p), path=True)
    mine = phx.fit(regression, by_hand, DATA, objective=own, **SHORT)
    ours = phx.fit(regression, by_hand, DATA, **SHORT)
    np.testing.assert_allclose(mine.params["loc"], ours.params["loc"], rtol=1e-6)
    assert "objective(<lambda>)" in mine.record.kernel
