"""Linear regression with flat priors on the coefficients and the scale of the noise; several models are one."""

from __future__ import annotations

import numpyro.distributions as dist
from numpyro.distributions import constraints
from tests.statistical.posteriordb.flat import flat

import phalanx as phx


def regression(x, y):
    beta = phx.sample("beta", flat(shape=(x.shape[1],)))
    sigma = phx.sample("sigma", flat(constraints.positive))
    phx.sample("y", dist.Normal(x @ beta, sigma), obs=y)
