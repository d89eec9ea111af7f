"""A Gaussian process through eleven points, with its length scale, amplitude and noise."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx


def process(x, y):
    rho = phx.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = phx.sample("alpha", dist.HalfNormal(2.0))
    sigma = phx.sample("sigma", dist.HalfNormal(1.0))
    between = (x[:, None] - x[None, :]) / rho
    covariance = alpha**2 * jnp.exp(-0.5 * between**2) + sigma * jnp.eye(len(x))  # sigma is the noise's variance
    phx.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def prepare(data):
    return {name: np.asarray(data[name], np.float64) for name in ("x", "y")}


entry = Entry("gp_pois_regr-gp_regr", process, prepare, ("rho", "alpha", "sigma"))
