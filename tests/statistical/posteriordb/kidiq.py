"""Children's test scores on their mother's schooling and IQ, with an interaction; predictors as they were measured."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
from tests.statistical.posteriordb.flat import flat
from tests.statistical.posteriordb.reference import Entry, columns

import phalanx as phx


def scores(x, y):
    beta = phx.sample("beta", flat(shape=(x.shape[1],)))
    sigma = phx.sample("sigma", dist.HalfCauchy(2.5))
    phx.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def prepare(data):
    schooling, iq = (np.asarray(data[name]) for name in ("mom_hs", "mom_iq"))
    return {"x": columns(1, schooling, iq, schooling * iq), "y": np.asarray(data["kid_score"], np.float64)}


entry = Entry("kidiq-kidscore_interaction", scores, prepare, ("beta", "sigma"))
