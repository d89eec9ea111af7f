"""Runs that cannot begin: the likelihood at the draws from the prior is zero, or infinite."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

FEW = {"num_particles": 512, "kernel": phx.rwmh(), "progress": False}


def above(y):
    x = phx.sample("x", dist.Uniform(0.0, 1.0))
    phx.factor("bound", jnp.where(x > y, 0.0, -jnp.inf))


def test_data_that_the_prior_contradicts():
    with pytest.raises(ValueError, match="the likelihood is zero, or not a number, at each of 512 draws .* 'bound'"):
        phx.smc(above, {"y": np.float32(1.5)}, **FEW)


def test_a_constraint_keeps_its_share_of_the_prior():
    """The evidence of a constraint is its probability, here a quarter."""
    particles = phx.smc(above, {"y": np.float32(0.75)}, **FEW)
    found = particles.evidence()
    assert abs(found.log_evidence - np.log(0.25)) < 4.5 * found.error
    assert particles.draws["x"].min() > 0.75 and len(particles.temperatures) == 2


@pytest.mark.slow
def test_observations_outside_of_their_support():
    def model(y):
        phx.sample("y", dist.Poisson(phx.sample("rate", dist.Gamma(2.0, 1.0))).expand(y.shape), obs=y)

    with pytest.raises(ValueError, match="'y'"):
        phx.smc(model, {"y": np.array([1.0, -2.0], np.float32)}, **FEW)


@pytest.mark.slow
def test_a_prior_with_mass_where_a_float_has_none():
    """A gamma variable of shape 0.01 is below the smallest float32 with probability 0.4."""

    def model():
        x = phx.sample("x", dist.Gamma(0.01, 1.0))
        phx.sample("y", dist.Normal(x, 1.0), obs=1.0)

    with pytest.raises(
        ValueError, match=r"draws of 512 from the prior of 'x' had no position on the unconstrained scale"
    ):
        phx.smc(model, **FEW)
