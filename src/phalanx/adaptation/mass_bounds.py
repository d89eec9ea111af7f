r"""How much of the posterior lies where chains have been: a bound from above, and one from below.

From above: draws of $q = \pi / Z$, the density in a region of mass $Z$, have $\log Z = E_q[\log \pi(x)] + H(q)$, and of
all densities with their covariance a normal one has the largest entropy $H$.

From below: for any density $r$ whatever, $E_r[\pi(x) / r(x)]$ is no more than the mass of the whole posterior. New
points are drawn from a normal density fitted to the draws and the log density evaluated at them; by Markov's inequality
their mean exceeds its expectation a thousandfold once in a thousand times. A poor fit makes the bound lower, not wrong.

Neither is an estimate, and an estimate is what deceives: the bound from above, taken for one, overrates a region by as
much as it differs from a normal distribution.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

DENSE = 2
"""Draws per coordinate from which correlations are told."""

MIXED = 8.0
"""Independent draws' worth that each chain must have made of its region: with fewer, it may have seen a part of it."""

CAUTION = math.log(1000.0)
"""By how much the logarithm of the bound from below is lowered, so that luck breaks it once in a thousand times."""


class Region(NamedTuple):
    """Draws `(draw, coordinate)` of chains that have been in one place, their log densities, and whose they are."""

    rows: np.ndarray
    log_density: np.ndarray
    chain: np.ndarray


class Normal(NamedTuple):
    """A normal density: `x = mean + root z`, where `root` is a lower triangle or, in one dimension, its diagonal."""

    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, dense: bool) -> Normal:
        """Fitted to draws, correlations too if `dense`."""
        mean, scale = rows.mean(0), rows.std(0, ddof=1)
        return cls(mean, scale[:, None] * np.linalg.cholesky(np.corrcoef(rows, rowvar=False)) if dense else scale)

    @property
    def log_volume(self) -> float:
        """Half the logarithm of the covariance's determinant."""
        return float(np.log(self.root if self.root.ndim == 1 else np.diag(self.root)).sum())

    def narrowed(self, rows: np.ndarray) -> np.ndarray:
        """The standard normals that `rows` are made of, were they draws of this density."""
        centred = rows - self.mean
        return centred / self.root if self.root.ndim == 1 else np.linalg.solve(self.root, centred.T).T

    def widened(self, standard: np.ndarray) -> np.ndarray:
        """What standard normals make."""
        return self.mean + (standard * self.root if self.root.ndim == 1 else standard @ self.root.T)


def normals(region: Region) -> list[Normal]:
    """Normal densities fitted to a region, the best first; none where a coordinate stands still."""
    rows = region.rows
    size = rows.shape[1]
    if len(rows) < 2 or not np.isfinite(rows).all() or not (np.ptp(rows, axis=0) > 0).all():
        return []
    fits = [Normal.of(rows, dense=False)]
    if len(rows) >= DENSE * size and size > 1:
        with contextlib.suppress(np.linalg.LinAlgError):  # where it is too flat for float64
            fits.insert(0, Normal.of(rows, dense=True))
    return fits


def log_mass_at_most(region: Region) -> float:
    """A bound from above on the logarithm of a region's mass; infinite where the draws cannot tell."""
    size = region.rows.shape[1]
    bounds = [math.inf]
    for fit in normals(region):
        dense = fit.root.ndim == 2
        each = _independent(fit.narrowed(region.rows), region.chain)
        count = each * len(np.unique(region.chain))
        if each < MIXED or (dense and count < DENSE * size):
            continue
        # a covariance of few draws is too small by so much, on average
        missing = size * (size + 1 if dense else 2) / (2 * count)
        height = max(float(region.log_density.mean(dtype=np.float64)), float(np.median(region.log_density)))
        bounds.append(height + fit.log_volume + missing + 0.5 * size * (1 + math.log(2 * math.pi)))
    return float(np.nanmin(bounds))


def log_mass_at_least(
    fit: Normal, log_density: Callable[[np.ndarray], np.ndarray], random: np.random.Generator, points: int
) -> float:
    """A bound from below on the logarithm of the posterior's mass, by as many points drawn from `fit`."""
    standard = random.standard_normal((points, len(fit.mean)))
    heights = np.asarray(log_density(fit.widened(standard)), np.float64)
    weights = heights + 0.5 * np.square(standard).sum(1)
    weights = weights[np.isfinite(weights)]
    if not len(weights):
        return -math.inf
    mean = float(logsumexp(weights)) - math.log(points)
    return mean + fit.log_volume + 0.5 * len(fit.mean) * math.log(2 * math.pi) - CAUTION


def _independent(standard: np.ndarray, chain: np.ndarray) -> float:
    """How many independent draws would let the means of each chain's halves differ as they do, on average.

    Of chains that are still on their way through a region it is two, in every direction of the region. A chain that
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
