"""The default metric does no harm where correlations cannot be learned from a warm-up's draws."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest

import phalanx as phx

COEFFICIENTS, ROWS = 100, 60


def horseshoe(x, y):
    tau = phx.sample("tau", dist.HalfCauchy(0.1))
    scales = phx.sample("scales", dist.HalfCauchy(1.0).expand([COEFFICIENTS]))
    z = phx.sample("z", dist.Normal(0.0, 1.0).expand([COEFFICIENTS]))
    w = phx.deterministic("w", tau * scales * z)
    phx.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def effective_draws(metric: str) -> tuple[float, float]:
    """Return the median of effective draws of the coefficients, and that for each gradient."""
    random = np.random.default_rng(5)
    x = random.normal(size=(ROWS, COEFFICIENTS)).astype(np.float32)
    w = np.where(np.arange(COEFFICIENTS) < 5, 3.0, 0.0)
    data = {"x": x, "y": (x @ w + random.normal(size=ROWS)).astype(np.float32)}
    posterior = phx.mcmc(
        horseshoe, data, kernel=phx.nuts(metric=metric), num_chains=4, num_warmup=500, num_samples=500, progress=False
    )
    ess = float(np.median(posterior.summary(["w"])["ess_bulk"]))
    return ess, ess / posterior.timing.gradient_evaluations


@pytest.mark.slow
def test_auto_is_no_worse_than_diagonal_for_a_horseshoe():
    """Hundreds of effective draws of either; a metric of all correlations had a quarter of the diagonal's."""
    (auto, auto_of_gradients), (diagonal, diagonal_of_gradients) = map(effective_draws, ("auto", "diagonal"))
    assert auto > 0.6 * diagonal
    assert auto_of_gradients > 0.6 * diagonal_of_gradients
