"""The metric, learned window by window from the draws and gradients of all chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from phalanx.adaptation.fisher import Correlations, correlations, scales, uncorrelated
from phalanx.adaptation.moments import Moments
from phalanx.adaptation.tuner import Sample, Stage, Sums
from phalanx.kernels.low_rank import LowRank

RANK = 128
"""Directions along which correlations are learned where there are more coordinates than this."""


class Seen(NamedTuple):
    """Moments of a window's draws, and of gradients there, by group of coordinates."""

    position: tuple[Moments, ...]
    gradient: tuple[Moments, ...]

    @classmethod
    def nothing(cls, sizes: Sequence[int]) -> Seen:
        """At the start of a window."""
        none = tuple(map(Moments.nothing, sizes))
        return cls(none, none)

    def then(self, sums: Sums) -> Seen:
        """After more draws."""
        return Seen(
            tuple(a.merge(b) for a, b in zip(self.position, sums.position, strict=True)),
            tuple(a.merge(b) for a, b in zip(self.gradient, sums.gradient, strict=True)),
        )


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

    def init(self, tuning: Any, beginning: Sums, stage: Stage) -> MetricState:
        """Unit mass; in a warm-up, the scales that the gradients tell where the chains begin; or one learned before."""
        sizes, dtype = [len(part.mean) for part in beginning.position], tuning.step_size.dtype
        if tuning.metric is not None:
            return _known(tuning.metric, sizes)
        ones = tuple(np.ones(size) for size in sizes)
        apart = uncorrelated(sizes[0], self._rank(sizes[0]))
        state = MetricState(_as_arrays(ones, apart, dtype), ones, apart, Seen.nothing(sizes))
        if not stage.tunes:
            return state
        variance = _scales(state, state.seen.then(beginning))
        return state._replace(metric=_as_arrays(variance, apart, dtype), variance=variance)

    def update(self, state: MetricState, sums: Sums, tuning: Any, stage: Stage) -> MetricState:
        """Take in draws."""
        return state._replace(seen=state.seen.then(sums))

    def next_window(self, state: MetricState, sample: Sample | None, stage: Stage) -> MetricState:
        """Take over the metric that the window's draws suggest, and begin the next window."""
        variance, found = _scales(state, state.seen), state.correlations
        size, rank = len(variance[0]), self._rank(len(variance[0]))
        if rank and sample is not None:
            position, gradient = _finite(sample.position[0], sample.gradient[0])
            if len(position) > 1:
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


def _finite(position: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws in float64; in float32 a gradient far out may overflow, and one such draw would spoil all."""
    good = np.isfinite(position).all(1) & np.isfinite(gradient).all(1)
    return position[good].astype(np.float64), gradient[good].astype(np.float64)


def _known(metric: LowRank, sizes: Sequence[int]) -> MetricState:
    """A metric that another warm-up has learned."""
    variance = tuple(np.asarray(part, np.float64) for part in metric.variance)
    directions, along = (np.asarray(part, np.float64) for part in (metric.directions, metric.variances))
    found = Correlations(directions, along, float(metric.rest), bool(metric.correlated))
    return MetricState(metric, variance, found, Seen.nothing(sizes))


def first_metric(kind: str, sizes: Sequence[int], tuning: Any) -> LowRank:
    """The metric before anything is learned, given how many coordinates each group has."""
    return Metric(kind).init(tuning, Sums.nothing(sizes), Stage(0, 0, 0)).metric


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
