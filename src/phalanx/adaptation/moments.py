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
    def of(cls, rows: np.ndarray) -> Moments:
        """Those of `rows`, (draw, coordinate)."""
        rows = rows.astype(np.float64)
        mean = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
        return cls(len(rows), mean, np.square(rows - mean).sum(0))

    def merge(self, other: Moments) -> Moments:
        """Those of both sets of draws."""
        count = self.count + other.count
        if not count:
            return self
        difference = other.mean - self.mean
        return Moments(
            count,
            self.mean + difference * (other.count / count),
            self.squares + other.squares + np.square(difference) * (self.count * other.count / count),
        )

    @property
    def variance(self) -> np.ndarray:
        """Sample variances; NaN of fewer than two draws."""
        return self.squares / (self.count - 1) if self.count > 1 else np.full_like(self.mean, np.nan)
