"""Detection of chains that are stuck in regions of negligible posterior mass, and their relocation.

A chain may begin near a minor mode and never leave it. It adds only error to estimates; in warm-up, whose draws are
no part of them, it can be relocated. A chain moves only on evidence: the bound from above on the mass of its region, by
its draws, is negligible beside the bound from below on the mass elsewhere, by evaluations of the log density there; see
`mass_bounds`. Without such evidence a chain stays, and R-hat reports that chains sit in different regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.adaptation.mass_bounds import NormalFit, Region, log_mass_at_least, log_mass_at_most, normals
from phalanx.adaptation.tuner import Sample

if TYPE_CHECKING:
    from jaxtyping import Integer, Shaped

SETTLED = 20
"""Mean number of draws that chains must have made in a window. Earlier, many are on their way to different regions."""

MARGIN, PER_COORDINATE = 10.0, 0.5
"""Least difference of the logarithms of the masses: a constant, and a term for every coordinate, along which a chain
may not have covered its region."""

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
        self._num_chains, self._host_target = num_chains, host_target
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
        most, margin = np.array([log_mass_at_most(region) for region in regions]), self._margin(draws)
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
        return MARGIN + PER_COORDINATE * len(self._host_target.columns) + ROUNDING * float(finite.max())

    def _places(self, draws: Region) -> list[Integer[np.ndarray, "_"]]:
        """Group chains by region: each group has the highest chain that is left and all that overlap with it."""
        chains, first = np.unique(draws.chain, return_index=True)
        counts = np.diff(first, append=len(draws.chain))

        def means(values: Shaped[np.ndarray, "draw *shape"]) -> Shaped[np.ndarray, "chain *shape"]:
            return (np.add.reduceat(values, first, axis=0, dtype=np.float64).T / counts).T

        mean, height = means(draws.rows), means(draws.log_density)
        variance = means(np.square(draws.rows - np.repeat(mean, counts, axis=0)))
        places, left = [], np.argsort(-np.nan_to_num(height, nan=-math.inf), kind="stable")
        while len(left):
            with np.errstate(all="ignore"):
                apart = np.square(mean[left] - mean[left[0]]) / (variance[left] + variance[left[0]])
            here = (apart <= APART**2).all(axis=1) | (left == left[0])
            places.append(np.sort(chains[left[here]]))
            left = left[~here]
        return places

    def _home(
        self, guesses: list[tuple[NormalFit | None, float]], random: np.random.Generator
    ) -> tuple[int, float]:  # fmt: skip
        """Return the region with the largest bound from below on its mass, and that bound."""
        largest = sorted(range(len(guesses)), key=lambda i: -guesses[i][1])[:LARGEST]
        evaluate, bounds = self._host_target.log_density, {}
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
