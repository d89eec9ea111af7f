"""An autoregression of order five."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
from tests.statistical.posteriordb.reference import Entry

import phalanx as phx


def autoregression(before, y):
    alpha = phx.sample("alpha", dist.Normal(0.0, 10.0))
    beta = phx.sample("beta", dist.Normal(0.0, 10.0).expand([before.shape[1]]))
    sigma = phx.sample("sigma", dist.HalfCauchy(2.5))
    phx.sample("y", dist.Normal(alpha + before @ beta, sigma), obs=y)


def prepare(data):
    y, order = np.asarray(data["y"], np.float64), data["K"]
    windows = np.lib.stride_tricks.sliding_window_view(y, order + 1)[:, ::-1]  # the newest value first
    return {"before": windows[:, 1:], "y": windows[:, 0]}


entry = Entry("arK-arK", autoregression, prepare, ("alpha", "beta", "sigma"))
