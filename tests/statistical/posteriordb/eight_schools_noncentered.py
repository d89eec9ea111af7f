"""Eight schools, non-centred: standardised effects, independent of mean and scale under the prior."""

from __future__ import annotations

import numpyro.distributions as dist
from tests.statistical.posteriordb.eight_schools_centered import prepare
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx


def schools(y, sigma):
    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfCauchy(5.0))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand(y.shape))
    theta = phx.deterministic("theta", mu + tau * z)
    phx.sample("y", dist.Normal(theta, sigma), obs=y)


entry = Entry("eight_schools-eight_schools_noncentered", schools, prepare, ("theta", "mu", "tau"))
