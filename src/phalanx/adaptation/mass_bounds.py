r"""Bounds, from above and below, on the posterior mass of the regions where chains have been.

From above: draws of $q = \pi / Z$, the density in a region of mass $Z$, have $\log Z = E_q[\log \pi(x)] + H(q)$, and a
normal density has the largest entropy $H$ of all densities with the same covariance.

From below: for every density $r$, $E_r[\pi(x) / r(x)]$ is at most the mass of the whole posterior. New points are drawn
from a normal density fitted to the draws, and the log density is evaluated at them; by Markov's inequality their mean
exceeds its expectation a thousandfold at most once in a thousand times. A poor fit makes the bound lower, not wrong.

Bounds are used in place of estimates, which deceive: the bound from above, taken for an estimate, overrates a region
the more, the farther it is from a normal distribution.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import logsumexp

if TYPE_CHECKING:
    from jaxtyping import Float64, Integer, Shaped

DENSE = 2
"""Draws per coordinate from which correlations are estimated."""

MIXED = 8.0
"""Independent draws that each chain must have made of its region: with fewer, it may have seen only a part."""

CAUTION = math.log(1000.0)
"""Subtracted from the logarithm of the bound from below, so that luck breaks it once in a thousand times."""


class Region(NamedTuple):
    """Draws of chains that have been in one region, their log densities, and their chains."""

    rows: Float64[np.ndarray, "draw coordinate"]
    log_density: Shaped[np.ndarray, "draw"]
    chain: Integer[np.ndarray, "draw"]


class NormalFit(NamedTuple):
    """Normal density fitted to draws: `x = mean + root z`, where `root` is a lower triangle or, 1-d, a diagonal."""

    mean: Float64[np.ndarray, "coordinate"]
    root: Float64[np.ndarray, "*columns coordinate"]

    @classmethod
    def of(cls, rows: Float64[np.ndarray, "draw coordinate"], dense: bool) -> NormalFit:
        """Fit to draws, with correlations if `dense`."""
        mean, scale = rows.mean(0), rows.std(0, ddof=1)
        return cls(mean, scale[:, None] * np.linalg.cholesky(np.corrcoef(rows, rowvar=False)) if dense else scale)

    @property
    def log_volume(self) -> float:
        """Half the logarithm of the covariance's determinant."""
        return float(np.log(self.root if self.root.ndim == 1 else np.diag(self.root)).sum())

    def narrowed(self, rows: Float64[np.ndarray, "draw coordinate"]) -> Float64[np.ndarray, "draw coordinate"]:
        """Map draws of this density to standard normals."""
        centred = rows - self.mean
        return centred / self.root if self.root.ndim == 1 else np.linalg.solve(self.root, centred.T).T

    def widened(self, standard: Float64[np.ndarray, "draw coordinate"]) -> Float64[np.ndarray, "draw coordinate"]:
        """Map standard normals to draws of this density."""
        return self.mean + (standard * self.root if self.root.ndim == 1 else standard @ self.root.T)


def normals(region: Region) -> list[NormalFit]:
    """Return normal densities fitted to a region, the best first; empty if a coordinate is constant."""
    rows = region.rows
    size = rows.shape[1]
    if len(rows) < 2 or not np.isfinite(rows).all() or not (np.ptp(rows, axis=0) > 0).all():
        return []
    fits = [NormalFit.of(rows, dense=False)]
    if len(rows) >= DENSE * size and size > 1:
        with contextlib.suppress(np.linalg.LinAlgError):  # a covariance too flat for float64
            fits.insert(0, NormalFit.of(rows, dense=True))
    return fits


def log_mass_at_most(region: Region) -> float:
    """Return a bound from above on the logarithm of a region's mass; infinite where draws are too few."""
    size = region.rows.shape[1]
    bounds = [math.inf]
    for fit in normals(region):
        dense = fit.root.ndim == 2
        each = _independent(fit.narrowed(region.rows), region.chain)
        count = each * len(np.unique(region.chain))
        if each < MIXED or (dense and count < DENSE * size):
            continue
        # the mean deficit in the log determinant of a covariance of few draws
        missing = size * (size + 1 if dense else 2) / (2 * count)
        height = max(float(region.log_density.mean(dtype=np.float64)), float(np.median(region.log_density)))
        bounds.append(height + fit.log_volume + missing + 0.5 * size * (1 + math.log(2 * math.pi)))
    return float(np.nanmin(bounds))


def log_mass_at_least(
    fit: NormalFit, log_density: Callable[[np.ndarray], np.ndarray], random: np.random.Generator, points: int
) -> float:
    """Return a bound from below on the logarithm of the posterior's mass, from as many points drawn from `fit`."""
    standard = random.standard_normal((points, len(fit.mean)))
    heights = np.asarray(log_density(fit.widened(standard)), np.float64)
    weights = heights + 0.5 * np.square(standard).sum(1)
    weights = weights[np.isfinite(weights)]
    if not len(weights):
        return -math.inf
    mean = float(logsumexp(weights)) - math.log(points)
    return mean + fit.log_volume + 0.5 * len(fit.mean) * math.log(2 * math.pi) - CAUTION


def _independent(standard: Float64[np.ndarray, "draw coordinate"], chain: Integer[np.ndarray, "draw"]) -> float:
    """Return the mean number of independent draws for which means of each chain's halves would differ as these do.

    It is two for chains that are still on their way through a region, in every direction of the region. A chain that
    hardly moves has no more independent draws than moves.
    """
    spread = standard.var(0)
    squares, moves = [], []
    for number in np.unique(chain):
        rows = standard[chain == number]
        half = len(rows) // 2
        if half == 0:
            return 0.0
        squares.append(np.square(rows[:half].mean(0) - rows[-half:].mean(0)) / spread)
        moves.append(1 + np.count_nonzero((rows[1:] != rows[:-1]).any(axis=1)))
    ratio = float(np.mean(squares))
    return min(4 / ratio if ratio > 0 else math.inf, float(np.min(moves)))
