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
        mean = rows.sum(0) / max(len(rows), 1)
        apart = rows - mean
        return cls(len(rows), mean, np.einsum("ij,ij->j", apart, apart))

    def split(self, at: int) -> tuple[Moments, Moments]:
        """Those of the first coordinates, up to `at`, and of the others."""
        return tuple(Moments(self.count, self.mean[part], self.squares[part]) for part in (slice(at), slice(at, None)))  # pyright: ignore[reportReturnType]

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
