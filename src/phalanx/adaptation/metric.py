"""The metric, learned window by window from the draws and gradients of all chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.adaptation.fisher import correlations, scales, uncorrelated
from phalanx.adaptation.moments import Moments
from phalanx.kernels.low_rank import LowRank

RANK = 128
"""Directions along which correlations are learned where there are more coordinates than this."""

MOST_BYTES = 128 * 2**20
"""Memory for a window's draws; when they need more, every other one is forgotten."""

Vectors = Sequence[np.ndarray]
"""Draws `(draw, coordinate)`: the global coordinates, then one array for each group of those spread over devices."""


class MetricLearner:
    """What has been seen of the posterior since the window began, and the metric in use.

    Args:
        sizes: coordinates of each group, the global ones first.
        kind: "diagonal", "dense" or "auto"; see `phx.nuts`.
        dtype: of the metric's arrays.
    """

    def __init__(self, sizes: Sequence[int], kind: str, dtype: Any):
        self._always, self._dtype, self._sizes = kind == "dense", dtype, sizes
        self._rank = {"diagonal": 0, "dense": sizes[0], "auto": min(sizes[0], RANK)}[kind]
        self._variance = [np.ones(size) for size in sizes]
        self._correlations = uncorrelated(sizes[0], self._rank)
        self.forget()

    @property
    def metric(self) -> LowRank:
        """The metric in use."""
        found = self._correlations
        return LowRank(
            tuple(part.astype(self._dtype) for part in self._variance),
            found.directions.astype(self._dtype),
            found.variances.astype(self._dtype),
            np.asarray(found.rest, self._dtype),
            np.asarray(found.correlated),
        )

    def forget(self) -> None:
        """Begin a window."""
        self._position, self._gradient = ([Moments.of(np.zeros((0, n))) for n in self._sizes] for _ in range(2))
        self._rows: list[np.ndarray] = []
        self._every, self._seen = 1, 0

    def see(self, position: Vectors, gradient: Vectors) -> None:
        """Take in draws."""
        # in float32 a gradient far out may overflow, and one such draw would spoil all
        good = np.all([np.isfinite(part).all(1) for part in (*position, *gradient)], axis=0)
        position, gradient = ([part[good] for part in parts] for parts in (position, gradient))
        self._position = [a.merge(Moments.of(b)) for a, b in zip(self._position, position, strict=True)]
        self._gradient = [a.merge(Moments.of(b)) for a, b in zip(self._gradient, gradient, strict=True)]
        if self._rank:
            self._keep(np.concatenate([position[0], gradient[0]], axis=1))

    def update(self) -> None:
        """Take over the metric that the window's draws suggest, and begin the next window."""
        self.update_scales()
        together = np.concatenate(self._rows) if self._rows else np.zeros((0, 0))
        if self._rank and len(together) > 1:
            position, gradient = np.split(together.astype(np.float64), 2, axis=1)
            self._correlations = correlations(position, gradient, self._variance[0], self._rank, self._always)
        self.forget()

    def update_scales(self) -> None:
        """Take over the variances alone."""
        self._variance = [
            scales(x.variance, g.variance, before)
            for x, g, before in zip(self._position, self._gradient, self._variance, strict=True)
        ]

    def _keep(self, rows: np.ndarray) -> None:
        numbers = np.arange(self._seen, self._seen + len(rows))
        self._seen += len(rows)
        self._rows.append(rows[numbers % self._every == 0])
        if sum(rows.nbytes for rows in self._rows) > MOST_BYTES:
            self._every *= 2
            self._rows = [np.concatenate(self._rows)[::2]]
