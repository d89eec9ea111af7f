"""Means and variances of draws that arrive in batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of vectors, in float64.

    Source: Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def nothing(cls, size: int) -> Moments:
        """Of no draws, of so many coordinates."""
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def together(cls, counts: np.ndarray, means: np.ndarray, squares: np.ndarray) -> Moments:
        """Those of several sets of draws, `(set,)` and `(set, coordinate)`."""
        count = counts.sum()
        mean = counts @ means / max(count, 1)
        return cls(int(count), mean, squares.sum(0) + counts @ np.square(means - mean))

    def merge(self, other: Moments) -> Moments:
        """Those of both sets of draws."""
        count = self.count + other.count
        if not count:
            return self
        apart, share = other.mean - self.mean, other.count / count
        return Moments(
            count, self.mean + share * apart, self.squares + other.squares + self.count * share * np.square(apart)
        )

    @property
    def variance(self) -> np.ndarray:
        """Sample variances; NaN of fewer than two draws."""
        return self.squares / (self.count - 1) if self.count > 1 else np.full_like(self.mean, np.nan)
