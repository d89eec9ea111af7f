"""Chains that have settled where the posterior has next to no mass, and beside which chains they go on.

A chain may begin near a minor mode and never leave it. It adds nothing to the answer but error; in warm-up, whose draws
are not kept, it may go anywhere. But a chain is moved only where the evidence leaves no other explanation: the most
mass that its region can have, by its draws, is next to nothing beside the least that the posterior has elsewhere, by
evaluations of the log density there; see `regions`. What cannot be told is not moved, and R-hat says that chains sit in
different places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from phalanx.adaptation.mass_bounds import Normal, Region, log_mass_at_least, log_mass_at_most, normals
from phalanx.adaptation.tuner import Sample

SETTLED = 20
"""Draws that chains must have made in a window on average. Before, many are on their way, and to different places."""

MARGIN, PER_COORDINATE = 10.0, 0.5
"""How much less the logarithm of the mass must be: so much, and so much for every coordinate, in whose direction a
chain may not have been everywhere."""

APART = 2.0
"""Chains are in different places if their means differ by so many standard deviations in any coordinate."""

ROUNDING = 1e-9
"""By what share of it a log density may be off, against others."""

LARGEST = 3
"""Places looked at for the mass that the posterior has at least."""

POINTS = 256
"""Evaluations of the log density in each of them."""

MOST_NUMBERS = 2**24
"""Coordinates of so many draws of all chains, at most; with more nothing is told."""


class Landscape(NamedTuple):
    """The target as seen from the host.

    Attributes:
        columns: of the coordinates of a draw, groups one after the other, those that are the target's, in an order that
            does not depend on the mesh; padded rows are left out.
        log_density: of rows of these coordinates, `(row, coordinate)` to `(row,)`.
        seed: of the points at which it is evaluated.
    """

    columns: np.ndarray
    log_density: Callable[[np.ndarray], np.ndarray]
    seed: int


class Relocation(NamedTuple):
    """A chain that goes on beside another; `log_share` bounds the share of the posterior where it was."""

    chain: int
    beside: int
    log_share: float


class StuckChains:
    """Finds chains that are stuck, by what each has drawn in a window.

    Args:
        num_chains: chains in all.
        landscape: what they move in.
    """

    def __init__(self, num_chains: int, landscape: Landscape):
        self._num_chains, self._landscape = num_chains, landscape
        self.tells = num_chains > 1 and SETTLED * num_chains * len(landscape.columns) <= MOST_NUMBERS
        """Whether chains can be told apart: there is room for enough draws of all."""

    def relocations(self, sample: Sample, window: int) -> list[Relocation]:
        """The chains to be moved after a window, mostly none; the number of the window seeds what is drawn here."""
        if not self.tells or len(sample.chain) < SETTLED * self._num_chains:
            return []
        rows = np.concatenate(sample.position, axis=1)[:, self._landscape.columns].astype(np.float64)
        draws = Region(rows, sample.log_density, sample.chain)
        places = self._places(draws)
        if len(places) < 2:
            return []
        regions = [_of_chains(draws, chains) for chains in places]
        guesses = [_guess(region) for region in regions]
        most, margin = np.array([log_mass_at_most(region) for region in regions]), self._margin(draws)
        if not (most < max(guess for _, guess in guesses) - margin).any():
            return []
        home, least = self._home(guesses, np.random.default_rng([self._landscape.seed, window]))
        is_stuck = most < least - margin
        chains = [(chain, most[i]) for i in np.flatnonzero(is_stuck) for chain in places[i]]
        return [
            Relocation(int(chain), int(places[home][i % len(places[home])]), float(at_most - least))
            for i, (chain, at_most) in enumerate(sorted(chains))
        ]

    def _margin(self, draws: Region) -> float:
        finite = np.abs(draws.log_density[np.isfinite(draws.log_density)])
        return MARGIN + PER_COORDINATE * len(self._landscape.columns) + ROUNDING * float(finite.max())

    def _places(self, draws: Region) -> list[np.ndarray]:
        """Chains by where they are: with the highest of those left go all that overlap with it."""
        chains, first = np.unique(draws.chain, return_index=True)
        counts = np.diff(first, append=len(draws.chain))

        def means(values: np.ndarray) -> np.ndarray:
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
        self, guesses: list[tuple[Normal | None, float]], random: np.random.Generator
    ) -> tuple[int, float]:  # fmt: skip
        """The place that has most of the mass for certain, and the bound from below."""
        largest = sorted(range(len(guesses)), key=lambda i: -guesses[i][1])[:LARGEST]
        evaluate, bounds = self._landscape.log_density, {}
        for i in largest:
            fit = guesses[i][0]
            bounds[i] = -math.inf if fit is None else log_mass_at_least(fit, evaluate, random, POINTS)
        home = max(largest, key=bounds.__getitem__)
        return home, bounds[home]


def _guess(region: Region) -> tuple[Normal | None, float]:
    """A normal density for a region, and the logarithm of the mass it has if that density is right."""
    fits = normals(region)
    if not fits or not np.isfinite(region.log_density).all():
        return None, -math.inf
    entropy = fits[0].log_volume + 0.5 * len(fits[0].mean) * (1 + math.log(2 * math.pi))
    return fits[0], float(region.log_density.mean(dtype=np.float64)) + entropy


def _of_chains(draws: Region, chains: np.ndarray) -> Region:
    here = np.isin(draws.chain, chains)
    return Region(*(part[here] for part in draws))
