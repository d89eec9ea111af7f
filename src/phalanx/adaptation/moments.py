"""Means and variances of draws that arrive in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64, Shaped


class VectorMoments(NamedTuple):
    """Count, mean and sum of squared deviations of vectors, in float64.

    Source: Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
    """

    count: int
    mean: Float64[np.ndarray, "coordinate"]
    squares: Float64[np.ndarray, "coordinate"]

    @classmethod
    def nothing(cls, size: int) -> VectorMoments:
        """Return the moments of no draws of this many coordinates."""
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def together(
        cls,
        counts: Shaped[np.ndarray, "set"],
        means: Float64[np.ndarray, "set coordinate"],
        squares: Float64[np.ndarray, "set coordinate"],
    ) -> VectorMoments:
        """Return the moments of all draws, from those of several sets of draws."""
        count = counts.sum()
        mean = counts @ means / max(count, 1)
        return cls(int(count), mean, squares.sum(0) + counts @ np.square(means - mean))

    def merge(self, other: VectorMoments) -> VectorMoments:
        """Return the moments of both sets of draws."""
        count = self.count + other.count
        if not count:
            return self
        apart, share = other.mean - self.mean, other.count / count
        return VectorMoments(
            count, self.mean + share * apart, self.squares + other.squares + self.count * share * np.square(apart)
        )

    @property
    def variance(self) -> Float64[np.ndarray, "coordinate"]:
        """Sample variances; NaN for fewer than two draws."""
        return self.squares / (self.count - 1) if self.count > 1 else np.full_like(self.mean, np.nan)
