"""A reference posterior, known to four digits from 10,000 independent draws: eight schools, non-centred."""

from __future__ import annotations

import gzip
import json

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx
from phalanx.diagnostics import mcse

LIMIT = 4.5
"""Combined Monte-Carlo standard errors allowed: false failures 7e-6 per parameter, 7e-5 for the test."""


def schools(y, sigma):
    mu = phx.sample("mu", dist.Normal(0.0, 5.0))
    tau = phx.sample("tau", dist.HalfCauchy(5.0))
    standard = phx.sample("standard", dist.Normal(0.0, 1.0).expand(y.shape))
    theta = phx.deterministic("theta", mu + tau * standard)
    phx.sample("y", dist.Normal(theta, sigma), obs=y)


@pytest.mark.slow
def test_eight_schools(data_folder):
    path = data_folder / "posteriordb" / "eight_schools-eight_schools_noncentered.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in PHALANX_DATA/posteriordb")
    stored = json.loads(gzip.decompress(path.read_bytes()))
    data = {name: np.asarray(stored["data"][name], np.float32) for name in ("y", "sigma")}
    posterior = phx.mcmc(
        schools,
        data,
        kernel=phx.hmc(num_steps=12, target_acceptance=0.9),
        num_chains=64,
        num_warmup=1000,
        num_samples=2000,
        keep=["mu", "tau", "theta"],
        progress=False,
    )
    draws = {"mu": posterior.draws["mu"], "tau": posterior.draws["tau"]}
    draws |= {f"theta[{i + 1}]": posterior.draws["theta"][..., i] for i in range(8)}
    for name, values in draws.items():
        exact = stored["reference"][name]
        error = np.hypot(mcse(values.astype(np.float64)), exact["mcse"])
        assert abs(values.mean() - exact["mean"]) < LIMIT * error, name
        assert abs(values.std() / exact["sd"] - 1) < 0.1, name
