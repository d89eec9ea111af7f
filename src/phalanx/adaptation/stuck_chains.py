r"""Detection of chains that are stuck in regions of negligible posterior mass, and their relocation.

A chain may begin near a minor mode and never leave it. It adds only error to estimates; in warm-up, whose draws are
no part of them, it can be relocated. A chain moves only on evidence: the bound from above on the mass of its region, by
its draws, is negligible beside the bound from below on the mass elsewhere, by evaluations of the log density there.
Without such evidence a chain stays, and R-hat reports that chains sit in different regions.

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

from phalanx.adaptation.tuner import Sample

if TYPE_CHECKING:
    from jaxtyping import Float64, Integer, Shaped

DENSE = 2
"""Draws per coordinate from which correlations are estimated."""

MIXED = 8.0
"""Fewest independent draws that each chain must have made of its region: with fewer, it may have seen only a part."""

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
        mean = rows.mean(0)
        scale = rows.std(0, ddof=1)
        return cls(mean, scale[:, None] * np.linalg.cholesky(np.corrcoef(rows, rowvar=False)) if dense else scale)

    @property
    def log_volume(self) -> float:
        """Half the logarithm of the covariance's determinant."""
        return float(np.log(self.root if self.root.ndim == 1 else np.diag(self.root)).sum())

    def whiten(self, rows: Float64[np.ndarray, "draw coordinate"]) -> Float64[np.ndarray, "draw coordinate"]:
        """Map draws of this density to standard normals."""
        deviations = rows - self.mean
        return deviations / self.root if self.root.ndim == 1 else np.linalg.solve(self.root, deviations.T).T

    def unwhiten(self, standard: Float64[np.ndarray, "draw coordinate"]) -> Float64[np.ndarray, "draw coordinate"]:
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
        each = _independent(fit.whiten(region.rows), region.chain)
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
    heights = np.asarray(log_density(fit.unwhiten(standard)), np.float64)
    weights = heights + 0.5 * np.square(standard).sum(1)
    weights = weights[np.isfinite(weights)]
    if not len(weights):
        return -math.inf
    mean = float(logsumexp(weights)) - math.log(points)
    return mean + fit.log_volume + 0.5 * len(fit.mean) * math.log(2 * math.pi) - CAUTION


def _independent(standard: Float64[np.ndarray, "draw coordinate"], chain: Integer[np.ndarray, "draw"]) -> float:
    """Return the estimated number of independent draws of each chain, averaged over chains and coordinates.

    The means of the two halves of n independent draws differ by a variance of 4 / n, in variances of a draw, which is
    solved for n. A chain that crosses its region once has one or two. No chain has more than it has moves.
    """
    spread = standard.var(0)
    squares = []
    moves = []
    for number in np.unique(chain):
        rows = standard[chain == number]
        half = len(rows) // 2
        if half == 0:
            return 0.0
        squares.append(np.square(rows[:half].mean(0) - rows[-half:].mean(0)) / spread)
        moves.append(1 + np.count_nonzero((rows[1:] != rows[:-1]).any(axis=1)))
    ratio = float(np.mean(squares))
    return min(4 / ratio if ratio > 0 else math.inf, float(np.min(moves)))


SETTLED = 20
"""Mean number of draws that chains must have made in a window. Earlier, many are on their way to different regions."""

MARGIN = 10.0
"""Least difference, in nats, between the bounds on the masses of two regions for which the chains of one are moved."""

MARGIN_PER_COORDINATE = 0.5
"""Addition to that margin for each coordinate, along which a chain may not have covered its region."""

APART = 2.0
"""Chains are in different regions if their means differ by this many standard deviations in any coordinate."""

ROUNDING = 1e-9
"""Relative error of a log density that is allowed for."""

LARGEST = 3
"""Regions, the likeliest ones, in which the bound from below on the posterior's mass is evaluated."""

POINTS = 256
"""Evaluations of the log density in each of them."""

MOST_NUMBERS = 2**24
"""The most numbers, draws of all chains times coordinates, that are compared; with more, chains are not checked."""


class HostTarget(NamedTuple):
    """Target as evaluated from the host.

    Attributes:
        columns: indices of the target's coordinates in a draw whose groups follow one another, in an order that does
            not depend on the mesh; padded rows are left out.
        log_density: of rows of these coordinates, `(row, coordinate)` to `(row,)`.
        seed: of the points at which it is evaluated.
    """

    columns: Integer[np.ndarray, "coordinate"]
    log_density: Callable[[np.ndarray], np.ndarray]
    seed: int


class Relocation(NamedTuple):
    """Move of a chain to the position of another; `log_fraction` bounds the posterior mass of its old region."""

    chain: int
    beside: int
    log_fraction: float


class StuckChains:
    """Detector of stuck chains, from the draws of each chain in a window.

    Args:
        num_chains: chains in all.
        host_target: the target of the chains.
    """

    def __init__(self, num_chains: int, host_target: HostTarget):
        self._num_chains = num_chains
        self._host_target = host_target
        self.compares = num_chains > 1 and SETTLED * num_chains * len(host_target.columns) <= MOST_NUMBERS
        """True if chains are checked: there are several, and there is room for enough draws of all."""

    def relocations(self, sample: Sample, window: int) -> list[Relocation]:
        """Return the chains to be moved after a window, mostly empty; the window's number seeds random points."""
        if not self.compares or len(sample.chain) < SETTLED * self._num_chains:
            return []
        rows = np.concatenate(sample.position, axis=1)[:, self._host_target.columns].astype(np.float64)
        draws = Region(rows, sample.log_density, sample.chain)
        places = self._places(draws)
        if len(places) < 2:
            return []
        regions = [_of_chains(draws, chains) for chains in places]
        guesses = [_guess(region) for region in regions]
        most = np.array([log_mass_at_most(region) for region in regions])
        margin = self._margin(draws)
        if not (most < max(guess for _, guess in guesses) - margin).any():
            return []
        home, least = self._home(guesses, np.random.default_rng([self._host_target.seed, window]))
        is_stuck = most < least - margin
        chains = [(chain, most[i]) for i in np.flatnonzero(is_stuck) for chain in places[i]]
        return [
            Relocation(int(chain), int(places[home][i % len(places[home])]), float(at_most - least))
            for i, (chain, at_most) in enumerate(sorted(chains))
        ]

    def _margin(self, draws: Region) -> float:
        finite = np.abs(draws.log_density[np.isfinite(draws.log_density)])
        return MARGIN + MARGIN_PER_COORDINATE * len(self._host_target.columns) + ROUNDING * float(finite.max())

    def _places(self, draws: Region) -> list[Integer[np.ndarray, "_"]]:
        """Group chains by region: each group has the highest chain that is left and all that overlap with it."""
        chains, first = np.unique(draws.chain, return_index=True)
        counts = np.diff(first, append=len(draws.chain))

        def means(values: Shaped[np.ndarray, "draw *shape"]) -> Shaped[np.ndarray, "chain *shape"]:
            return (np.add.reduceat(values, first, axis=0, dtype=np.float64).T / counts).T

        mean = means(draws.rows)
        height = means(draws.log_density)
        variance = means(np.square(draws.rows - np.repeat(mean, counts, axis=0)))
        places = []
        remaining = np.argsort(-np.nan_to_num(height, nan=-math.inf), kind="stable")
        while len(remaining):
            with np.errstate(all="ignore"):
                apart = np.square(mean[remaining] - mean[remaining[0]]) / (variance[remaining] + variance[remaining[0]])
            here = (apart <= APART**2).all(axis=1) | (remaining == remaining[0])
            places.append(np.sort(chains[remaining[here]]))
            remaining = remaining[~here]
        return places

    def _home(self, guesses: list[tuple[NormalFit | None, float]], random: np.random.Generator) -> tuple[int, float]:
        """Return the region with the largest bound from below on its mass, and that bound."""
        largest = sorted(range(len(guesses)), key=lambda i: -guesses[i][1])[:LARGEST]
        evaluate = self._host_target.log_density
        bounds = {}
        for i in largest:
            fit = guesses[i][0]
            bounds[i] = -math.inf if fit is None else log_mass_at_least(fit, evaluate, random, POINTS)
        home = max(largest, key=bounds.__getitem__)
        return home, bounds[home]


def _guess(region: Region) -> tuple[NormalFit | None, float]:
    """Return a normal density for a region, and the logarithm of its mass if that density is right."""
    fits = normals(region)
    if not fits or not np.isfinite(region.log_density).all():
        return None, -math.inf
    entropy = fits[0].log_volume + 0.5 * len(fits[0].mean) * (1 + math.log(2 * math.pi))
    return fits[0], float(region.log_density.mean(dtype=np.float64)) + entropy


def _of_chains(draws: Region, chains: Integer[np.ndarray, "chain"]) -> Region:
    here = np.isin(draws.chain, chains)
    return Region(*(part[here] for part in draws))
