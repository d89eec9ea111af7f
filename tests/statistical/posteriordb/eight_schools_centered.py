"""Eight schools, centred: effects of coaching, drawn around a common mean. Its neck, tau near 0, is hard to enter."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx


def schools(y, sigma):
    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfCauchy(5.0))
    theta = phx.sample("theta", dist.Normal(mu, tau).expand(y.shape))
    phx.sample("y", dist.Normal(theta, sigma), obs=y)


def prepare(data):
    return {name: np.asarray(data[name], np.float64) for name in ("y", "sigma")}


# The stored reference is that of the non-centred version: the same posterior.
entry = Entry("eight_schools-eight_schools_noncentered", schools, prepare, ("theta", "mu", "tau"))
