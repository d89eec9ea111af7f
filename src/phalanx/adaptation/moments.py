"""Means and variances of draws that arrive in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64, Int, Shaped


class VectorMoments(NamedTuple):
    """Count, mean and sum of squared deviations of vectors, in float64; of many data sets, with an entry for each.

    Source: Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance.
    """

    count: int | Int[np.ndarray, "sets"]
    mean: Float64[np.ndarray, "*sets coordinate"]
    squares: Float64[np.ndarray, "*sets coordinate"]

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
        apart, share = other.mean - self.mean, _each(other.count / np.maximum(count, 1))
        spread = _each(self.count) * share * np.square(apart)
        return VectorMoments(count, self.mean + share * apart, self.squares + other.squares + spread)

    @property
    def variance(self) -> Float64[np.ndarray, "*sets coordinate"]:
        """Sample variances; NaN for fewer than two draws."""
        fewer = np.where(np.greater(self.count, 1), np.subtract(self.count, 1), np.nan)
        return self.squares / _each(fewer)


def _each(counts: Any) -> np.ndarray:
    """Return counts with a dimension for the coordinates."""
    return np.asarray(counts)[..., None]
