r"""Chains that have settled where the posterior has next to no mass, and beside which chains they go on.

A chain may begin near a minor mode and never leave it. What mass the region has that a chain explores, its draws tell:
if they are draws of $q$, the logarithm of the mass is at least $E_q[\log \pi(x)] + H(q)$. With the entropy $H$ of a
normal distribution of the same variances this is a rough estimate, but one that a narrow peak of high density does not
deceive, as the log density alone would. A chain whose region weighs less than another's by a factor that no roughness
explains adds nothing to the answer but error; in warm-up, whose draws are not kept, it may go anywhere.
"""

from __future__ import annotations

import numpy as np

from phalanx.adaptation.metric import Vectors

LEAST = 5
"""Draws of a chain from which the extent of its region is told; of a chain that has fewer, it is taken as usual."""

SETTLED = 20
"""Draws that chains must have made in a window on average. Before, many are on their way, and to different places."""

MARGIN = 10.0
"""How much less the logarithm of the mass must be, besides one for every coordinate, by which the entropy may err."""

MOST = 2**24
"""Coordinates of all chains together beyond which nothing is told, to save memory."""


class Strays:
    """What each chain has seen since the window began.

    Args:
        num_chains: chains in all.
        coordinates: of a position.
    """

    def __init__(self, num_chains: int, coordinates: int):
        self._shape = (num_chains, coordinates)
        self._tells = num_chains > 1 and num_chains * coordinates <= MOST
        self.forget()

    def forget(self) -> None:
        """Begin a window."""
        if self._tells:
            self._count, self._log_density = (np.zeros(self._shape[0]) for _ in range(2))
            self._sum, self._squares = (np.zeros(self._shape) for _ in range(2))
            self._origin = np.zeros(0)

    def see(self, position: Vectors, log_density: np.ndarray, chain: np.ndarray) -> None:
        """Take in draws; `chain` says whose each is, in ascending order."""
        if not self._tells or not len(chain):
            return
        rows = np.concatenate(position, axis=1).astype(np.float64)
        self._origin = self._origin if len(self._origin) else rows[0]  # so that squares of the rest are small
        rows = rows - self._origin
        chains, first = np.unique(chain, return_index=True)
        for total, values in (
            (self._count, np.ones(len(chain))),
            (self._log_density, log_density.astype(np.float64)),
            (self._sum, rows),
            (self._squares, np.square(rows)),
        ):
            total[chains] += np.add.reduceat(values, first)

    def log_mass(self) -> np.ndarray:
        """The logarithm of the mass of each chain's region, up to a constant; NaN where it cannot be told."""
        with np.errstate(all="ignore"):
            count = self._count[:, None]
            variance = (self._squares - np.square(self._sum) / count) / (count - 1)
            entropy = 0.5 * np.log(np.maximum(variance, 0.0)).sum(1)
            told = self._count >= LEAST
            if not told.any():
                return np.full(len(told), np.nan)
            mass = self._log_density / self._count + np.where(told, entropy, np.median(entropy[told]))
        return np.where(np.isposinf(mass), np.nan, mass)

    def sources(self) -> np.ndarray | None:
        """The chain beside which each goes on when some have strayed, its own number for the rest; None if none has."""
        if not self._tells or self._count.mean() < SETTLED:
            return None
        mass = self.log_mass()
        if np.isnan(mass).all():
            return None
        stray = mass < np.nanmax(mass) - MARGIN - self._shape[1]
        if not stray.any():
            return None
        good = np.flatnonzero(~stray & ~np.isnan(mass))
        sources = np.arange(len(mass))
        sources[stray] = good[np.arange(stray.sum()) % len(good)]
        return sources
