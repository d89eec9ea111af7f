"""Runs that cannot begin: the likelihood at the draws from the prior is zero, or infinite."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

FEW = {"num_particles": 64, "kernel": phx.rwmh(), "progress": False}


def test_data_that_the_prior_contradicts():
    def model(y):
        low = phx.sample("low", dist.Uniform(0.0, 1.0))
        phx.factor("bound", jnp.where(y > low, 0.0, -jnp.inf))

    with pytest.raises(ValueError, match="the likelihood is zero, or not a number, at each of 64 draws .* 'bound'"):
        phx.smc(model, {"y": np.float32(-1.0)}, **FEW)


def test_observations_outside_of_their_support():
    def model(y):
        phx.sample("y", dist.Poisson(phx.sample("rate", dist.Gamma(2.0, 1.0))).expand(y.shape), obs=y)

    with pytest.raises(ValueError, match="'y'"):
        phx.smc(model, {"y": np.array([1.0, -2.0], np.float32)}, **FEW)


def test_a_constraint_keeps_its_share_of_the_prior():
    """The evidence of a constraint is its probability, here a quarter."""

    def model():
        x = phx.sample("x", dist.Normal(0.0, 1.0).expand([2]))
        phx.factor("corner", jnp.where((x > 0).all(), 0.0, -jnp.inf))

    particles = phx.smc(model, **{**FEW, "num_particles": 512})
    found = particles.evidence()
    assert abs(found.log_evidence - np.log(0.25)) < 4.5 * found.error
    assert particles.draws["x"].min() > 0


def test_a_prior_with_mass_where_a_float_has_none():
    """A gamma variable of shape 0.01 is below the smallest float32 with probability 0.4."""

    def model():
        x = phx.sample("x", dist.Gamma(0.01, 1.0))
        phx.sample("y", dist.Normal(x, 1.0), obs=1.0)

    with pytest.raises(
        ValueError, match=r"draws of 64 from the prior of 'x' had no position on the unconstrained scale"
    ):
        phx.smc(model, **FEW)
