"""The metric, learned window by window from the draws and gradients of all chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from phalanx.adaptation.fisher import Correlations, correlations, scales, uncorrelated
from phalanx.adaptation.moments import Moments
from phalanx.adaptation.tuner import Batch, Stage, Vectors
from phalanx.kernels.low_rank import LowRank

RANK = 128
"""Directions along which correlations are learned where there are more coordinates than this."""

MOST_BYTES = 128 * 2**20
"""Memory for a window's draws; when they need more, every other one is forgotten."""


class Seen(NamedTuple):
    """What a window's draws have told.

    Attributes:
        position, gradient: moments, by group of coordinates.
        rows: draws of the global coordinates and of their gradients, side by side; empty where only variances are
            learned.
        every: one in so many draws is among them.
        count: draws they were taken from.
    """

    position: tuple[Moments, ...]
    gradient: tuple[Moments, ...]
    rows: tuple[np.ndarray, ...] = ()
    every: int = 1
    count: int = 0

    @classmethod
    def nothing(cls, sizes: Sequence[int]) -> Seen:
        """At the start of a window."""
        none = tuple(Moments.of(np.zeros((0, size))) for size in sizes)
        return cls(none, none)

    def then(self, position: Vectors, gradient: Vectors, keeps_rows: bool) -> Seen:
        """After more draws."""
        # side by side: of few numbers each operation costs more than what it does
        rows = [np.concatenate(parts, axis=1) for parts in zip(position, gradient, strict=True)]
        # in float32 a gradient far out may overflow, and one such draw would spoil all
        if not all(np.isfinite(part).all() for part in rows):
            good = np.all([np.isfinite(part).all(1) for part in rows], axis=0)
            rows = [part[good] for part in rows]
        new = [Moments.of(part).split(part.shape[1] // 2) for part in rows]
        seen = self._replace(
            position=tuple(a.merge(b) for a, (b, _) in zip(self.position, new, strict=True)),
            gradient=tuple(a.merge(b) for a, (_, b) in zip(self.gradient, new, strict=True)),
        )
        return seen._with_rows(rows[0]) if keeps_rows else seen

    def _with_rows(self, rows: np.ndarray) -> Seen:
        every = self.every
        kept = (*self.rows, np.ascontiguousarray(rows[-self.count % every :: every]))  # no view of those left out
        if sum(rows.nbytes for rows in kept) > MOST_BYTES:
            kept, every = (np.concatenate(kept)[::2],), 2 * every
        return self._replace(rows=kept, every=every, count=self.count + len(rows))


class MetricState(NamedTuple):
    """The metric in use, what it is made of in float64, and what the window has told so far."""

    metric: LowRank
    variance: tuple[np.ndarray, ...]
    correlations: Correlations
    seen: Seen


@dataclass(frozen=True)
class Metric:
    """The tuner of `metric`; see `phalanx.adaptation.tuner.Tuner`.

    Attributes:
        kind: "diagonal", "dense" or "auto"; see `phx.nuts`.
        bound: the hyperparameter that bounds trajectories, which are long for no good reason before a metric has been
            learned from draws.
        early_bound: its largest value until then; None for any.
    """

    kind: str
    bound: str | None = None
    early_bound: int | None = None

    def init(self, tuning: Any, beginning: Batch, stage: Stage) -> MetricState:
        """Unit mass; in a warm-up, the scales that the gradients tell where the chains begin; or one learned before."""
        sizes, dtype = [part.shape[1] for part in beginning.position], tuning.step_size.dtype
        if tuning.metric is not None:
            return _known(tuning.metric, sizes)
        ones = tuple(np.ones(size) for size in sizes)
        apart = uncorrelated(sizes[0], self._rank(sizes[0]))
        state = MetricState(_as_arrays(ones, apart, dtype), ones, apart, Seen.nothing(sizes))
        if not stage.tunes:
            return state
        variance = _scales(state, state.seen.then(beginning.position, beginning.gradient, keeps_rows=False))
        return state._replace(metric=_as_arrays(variance, apart, dtype), variance=variance)

    def update(self, state: MetricState, batch: Batch, tuning: Any, stage: Stage) -> MetricState:
        """Take in draws."""
        rank = self._rank(len(state.variance[0]))
        return state._replace(seen=state.seen.then(batch.position, batch.gradient, keeps_rows=rank > 0))

    def next_window(self, state: MetricState, stage: Stage) -> MetricState:
        """Take over the metric that the window's draws suggest, and begin the next window."""
        variance, found = _scales(state, state.seen), state.correlations
        size, rank = len(variance[0]), self._rank(len(variance[0]))
        if sum(map(len, state.seen.rows)) > 1:
            together = np.concatenate(state.seen.rows).astype(np.float64)
            position, gradient = np.split(together, 2, axis=1)
            found = correlations(position, gradient, variance[0], rank, self.kind == "dense")
        sizes = [size, *map(len, variance[1:])]
        metric = _as_arrays(variance, found, state.metric.rest.dtype)
        return MetricState(metric, variance, found, Seen.nothing(sizes))

    def apply(self, state: MetricState, tuning: Any, stage: Stage) -> Any:
        """The metric in use."""
        tuning = tuning._replace(metric=state.metric)
        if self.bound is None or self.early_bound is None or stage.window >= 2 or stage.over:
            return tuning
        most = np.minimum(getattr(tuning, self.bound), np.int32(self.early_bound))
        return tuning._replace(**{self.bound: most})

    def _rank(self, size: int) -> int:
        """Directions along which correlations are learned."""
        return {"diagonal": 0, "dense": size, "auto": min(size, RANK)}[self.kind]


def _known(metric: LowRank, sizes: Sequence[int]) -> MetricState:
    """A metric that another warm-up has learned."""
    variance = tuple(np.asarray(part, np.float64) for part in metric.variance)
    directions, along = (np.asarray(part, np.float64) for part in (metric.directions, metric.variances))
    found = Correlations(directions, along, float(metric.rest), bool(metric.correlated))
    return MetricState(metric, variance, found, Seen.nothing(sizes))


def first_metric(kind: str, sizes: Sequence[int], tuning: Any) -> LowRank:
    """The metric before anything is learned, given how many coordinates each group has."""
    nothing = [np.zeros((0, size)) for size in sizes]
    return Metric(kind).init(tuning, Batch(nothing, nothing, {}, np.zeros(0, int)), Stage(0, 0, 0)).metric


def _scales(state: MetricState, seen: Seen) -> tuple[np.ndarray, ...]:
    return tuple(
        scales(x.variance, g.variance, before)
        for x, g, before in zip(seen.position, seen.gradient, state.variance, strict=True)
    )


def _as_arrays(variance: Sequence[np.ndarray], found: Correlations, dtype: Any) -> LowRank:
    """The metric in the type of the draws."""
    return LowRank(
        tuple(part.astype(dtype) for part in variance),
        found.directions.astype(dtype),
        found.variances.astype(dtype),
        np.asarray(found.rest, dtype),
        np.asarray(found.correlated),
    )
