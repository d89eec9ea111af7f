"""Models whose evidence has a closed form, with their data."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from scipy.special import betaln, gammaln
from scipy.stats import binom

import phalanx as phx

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)).astype(np.float32)
Y = (X @ [1.0, -1.0, 0.3] + RNG.normal(size=20)).astype(np.float32)
HEADS, THROWS = np.array([7, 9, 6, 8], np.float32), 10
COUNTS = np.array([3, 5, 2, 4, 4, 6], np.float32)


class ClosedForm(NamedTuple):
    """A model, its data, and the log of its evidence."""

    model: Any
    data: dict[str, Any]
    log_evidence: float


def regression(x, y):
    weights = phx.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    phx.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


def beta_binomial(heads):
    p = phx.sample("p", dist.Beta(2.0, 3.0))
    phx.sample("heads", dist.Binomial(THROWS, p).expand(heads.shape), obs=heads)


def gamma_poisson(counts):
    rate = phx.sample("rate", dist.Gamma(2.0, 0.5))
    phx.sample("counts", dist.Poisson(rate).expand(counts.shape), obs=counts)


def _of_regression() -> float:
    covariance = np.eye(len(Y)) + X.astype(np.float64) @ X.T
    _, log_det = np.linalg.slogdet(2 * np.pi * covariance)
    return float(-0.5 * (log_det + Y @ np.linalg.solve(covariance, Y)))


def _of_counts() -> float:
    a, b, n, total = 2.0, 0.5, len(COUNTS), COUNTS.sum()
    return float(
        -gammaln(COUNTS + 1).sum() + a * np.log(b) - gammaln(a) + gammaln(a + total) - (a + total) * np.log(b + n)
    )


CLOSED_FORMS = {
    "regression": ClosedForm(
        regression, {"x": X, "y": Y},
        _of_regression(),
    ),
    "beta-binomial": ClosedForm(
        beta_binomial, {"heads": HEADS},
        float(
            np.log(binom.pmf(HEADS, THROWS, 0.5) * 2.0**THROWS).sum()
            + betaln(2 + HEADS.sum(), 3 + (THROWS - HEADS).sum()) - betaln(2, 3)
        ),
    ),
    "gamma-poisson": ClosedForm(gamma_poisson, {"counts": COUNTS}, _of_counts()),
}  # fmt: skip


def two_modes(share: float, coordinates: int) -> Any:
    """Return a model whose posterior has two modes far apart, of mass `share` and the rest; its evidence is below."""

    def model():
        x = phx.sample("x", dist.Normal(0.0, 2.0).expand([coordinates]))
        centres = jnp.array([1.5, -1.5])
        near = jnp.sum(dist.Normal(centres[:, None], 0.5).log_prob(x[None, :]), axis=1)
        phx.factor("likelihood", logsumexp(near + jnp.log(jnp.array([share, 1 - share]))))

    return model


def evidence_of_two_modes(coordinates: int) -> float:
    """Return the log evidence of `two_modes`, whatever the share."""
    variance = 0.5**2 + 2.0**2
    return coordinates * float(-0.5 * np.log(2 * np.pi * variance) - 0.5 * 1.5**2 / variance)
