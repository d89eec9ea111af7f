"""A mixture of two normal distributions in order of their means, so that it is told which is which."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from tests.statistical.posteriordb.flat import flat
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx


def mixture(y):
    mu = phx.sample("mu", flat(constraints.ordered_vector, (2,)))
    phx.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu))
    sigma = phx.sample("sigma", dist.HalfNormal(2.0).expand([2]))
    theta = phx.sample("theta", dist.Beta(5.0, 5.0))
    lower = jnp.log(theta) + dist.Normal(mu[0], sigma[0]).log_prob(y)
    upper = jnp.log1p(-theta) + dist.Normal(mu[1], sigma[1]).log_prob(y)
    phx.factor("y", jnp.logaddexp(lower, upper))


def prepare(data):
    return {"y": np.asarray(data["y"], np.float64)}


entry = Entry("low_dim_gauss_mix-low_dim_gauss_mix", mixture, prepare, ("mu", "sigma", "theta"))
