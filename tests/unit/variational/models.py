"""Models whose posteriors and evidences are known."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

import phalanx as phx

NOISE, PRIOR = 0.5, 2.0
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 3)).astype(np.float32) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 2.0]], "f4")
Y = (X @ np.array([1.0, -1.0, 0.5], np.float32) + NOISE * RANDOM.normal(size=24)).astype(np.float32)
DATA = {"x": X, "y": Y}


def regression(x, y):
    w = phx.sample("w", dist.Normal(0.0, PRIOR).expand([x.shape[1]]))
    phx.deterministic("total", w.sum())
    phx.sample("y", dist.Normal(x @ w, NOISE), obs=y)


def by_hand(x):
    loc = phx.param("loc", jnp.zeros(x.shape[1]))
    scale = phx.param("scale", jnp.full(x.shape[1], 0.1), constraints.positive)
    phx.sample("w", dist.Normal(loc, scale))


def exact(x=X, y=Y):
    """Mean and covariance of the posterior, and the log evidence."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    precision = x.T @ x / NOISE**2 + np.eye(x.shape[1]) / PRIOR**2
    covariance = np.linalg.inv(precision)
    marginal = PRIOR**2 * x @ x.T + NOISE**2 * np.eye(len(x))
    _, log_det = np.linalg.slogdet(2 * np.pi * marginal)
    evidence = -0.5 * (log_det + y @ np.linalg.solve(marginal, y))
    return covariance @ (x.T @ y) / NOISE**2, covariance, evidence


@dataclass(frozen=True)
class StartAt:
    """The start of a guide, at a place that is known."""

    at: Any
    latents: Any

    @property
    def problem(self):
        return SimpleNamespace(latents=self.latents, whole=None)

    def point(self, init_scale):
        return self.at
