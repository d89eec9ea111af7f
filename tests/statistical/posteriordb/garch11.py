"""GARCH(1, 1): the variance of today follows yesterday's shock and yesterday's variance.

The support of beta1 depends on alpha1, so that the variance is stationary.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints
from tests.statistical.posteriordb.flat import flat
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx


def garch(y, sigma1):
    mu = phx.sample("mu", flat())
    alpha0 = phx.sample("alpha0", flat(constraints.positive))
    alpha1 = phx.sample("alpha1", flat(constraints.unit_interval))
    # not dist.Uniform, whose density 1 / (1 - alpha1) would be a prior on alpha1
    beta1 = phx.sample("beta1", flat(constraints.interval(0.0, 1.0 - alpha1)))

    def next_variance(variance, before):
        variance = alpha0 + alpha1 * (before - mu) ** 2 + beta1 * variance
        return variance, variance

    first = sigma1**2
    _, rest = lax.scan(next_variance, first, y[:-1])
    phx.sample("y", dist.Normal(mu, jnp.sqrt(jnp.append(first, rest))), obs=y)


def prepare(data):
    return {name: np.asarray(data[name], np.float64) for name in ("y", "sigma1")}


entry = Entry("garch-garch11", garch, prepare, ("mu", "alpha0", "alpha1", "beta1"))
