"""Linear regression on simulated data whose predictors are large, so that coefficients are known to a thousandth."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx


def regression(x, y):
    beta = phx.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[1]]))
    sigma = phx.sample("sigma", dist.HalfNormal(10.0))
    phx.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def prepare(data):
    return {"x": np.asarray(data["X"], np.float64), "y": np.asarray(data["y"], np.float64)}


entry = Entry("sblrc-blr", regression, prepare, ("beta", "sigma"))
