"""Mixture of four normals: its density in JAX and in NumPy, and its exact moments and quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import root_scalar
from scipy.stats import norm

if TYPE_CHECKING:
    from jaxtyping import Float

LOC = np.array([-2.0, 0.0, 3.2, 2.5])
SCALE = np.array([1.2, 1.0, 5.0, 2.8])
WEIGHT = np.array([0.2, 0.3, 0.1, 0.4])


def log_density(x: Float[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
    """Return the log density up to a constant. Its components are written out, so that XLA fuses it."""
    heights = np.log(WEIGHT / SCALE).tolist()
    terms = [h - 0.5 * ((x - m) / s) ** 2 for h, m, s in zip(heights, LOC.tolist(), SCALE.tolist(), strict=True)]
    highest = jnp.maximum(jnp.maximum(terms[0], terms[1]), jnp.maximum(terms[2], terms[3]))
    return highest + jnp.log(sum(jnp.exp(term - highest) for term in terms))


def log_density_in_numpy(x: Float[np.ndarray, "x"]) -> Float[np.ndarray, "x"]:
    """Return the log density up to a constant, in NumPy."""
    terms = np.log(WEIGHT / SCALE)[:, None] - 0.5 * ((x - LOC[:, None]) / SCALE[:, None]) ** 2
    highest = terms.max(0)
    return highest + np.log(np.exp(terms - highest).sum(0))


def density(x: Float[np.ndarray, "x"]) -> Float[np.ndarray, "x"]:
    """Return the density."""
    return WEIGHT @ norm.pdf(x, LOC[:, None], SCALE[:, None])


def exact_moments() -> tuple[float, float]:
    """Return mean and variance of the mixture."""
    mean = float(WEIGHT @ LOC)
    return mean, float(WEIGHT @ (SCALE**2 + LOC**2)) - mean**2


def exact_quantile(q: float) -> float:
    """Return a quantile of the mixture."""
    return root_scalar(lambda x: float(WEIGHT @ norm.cdf((x - LOC) / SCALE)) - q, bracket=(-60.0, 60.0)).root
