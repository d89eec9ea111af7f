"""The metric, learned window by window from the draws and gradients of all chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jax.sharding import PartitionSpec

from phalanx.adaptation.fisher import Correlations, correlations, scales, uncorrelated
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.mesh.position import VectorLayout

KINDS = ("auto", "diagonal", "dense")
"""What warm-up may learn of a metric; see `phx.nuts`."""

RANK = 128
"""Directions along which correlations are learned where there are more coordinates than this."""


class LowRank(NamedTuple):
    """The metric as blocks of a run pass it around; `phalanx.kernels.metric.low_rank` has the formula.

    Attributes:
        variance: one for every coordinate, flat, by group: the global coordinates, then those spread over devices.
        directions: U, `(global coordinates, rank)`.
        variances: the diagonal of Λ, `(rank,)`.
        rest: c, the variance outside of U.
        correlated: whether U counts; where it does not, no time is spent on it.
    """

    variance: Any
    directions: Any
    variances: Any
    rest: Any
    correlated: Any

    @classmethod
    def specs(cls, layout: VectorLayout) -> LowRank:
        """How it is laid out over the mesh, given the layout of positions."""
        replicated = PartitionSpec()
        return cls(layout.specs(), replicated, replicated, replicated, replicated)


class MetricState(NamedTuple):
    """The metric in use, what it is made of in float64, and the moments of the window's draws so far."""

    metric: LowRank
    variance: tuple[np.ndarray, ...]
    correlations: Correlations
    seen: Sums


@dataclass(frozen=True)
class Metric(Tuner):
    """The tuner of `metric`.

    Attributes:
        kind: "diagonal", "dense" or "auto"; see `phx.nuts`.
        early_bound: the hyperparameter that bounds trajectories, which are long for no good reason before a metric has
            been learned from draws, and its largest value until then; None for any.
    """

    kind: str
    early_bound: tuple[str, int] | None = None
    renews: ClassVar[bool] = True

    @property
    def learns_from(self) -> Literal["moments", "draws"]:
        """Correlations are learned from draws, of the global coordinates alone."""
        return "moments" if self.kind == "diagonal" else "draws"

    def init(self, tuning: Any, beginning: Sums, stage: Stage) -> MetricState:
        """Unit mass; in a warm-up, the scales that the gradients tell where the chains begin; or one learned before."""
        sizes, dtype = [len(part.mean) for part in beginning.position], tuning.step_size.dtype
        if tuning.metric is not None:
            return _known(tuning.metric, sizes)
        ones = tuple(np.ones(size) for size in sizes)
        apart = uncorrelated(sizes[0], self._rank(sizes[0]))
        state = MetricState(_as_arrays(ones, apart, dtype), ones, apart, Sums.nothing(sizes))
        if not stage.tunes:
            return state
        variance = _scales(state, state.seen.merge(beginning))
        return state._replace(metric=_as_arrays(variance, apart, dtype), variance=variance)

    def update(self, state: MetricState, sums: Sums, tuning: Any, stage: Stage) -> MetricState:
        """Take in draws."""
        return state._replace(seen=state.seen.merge(sums))

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
        return MetricState(metric, variance, found, Sums.nothing(sizes))

    def apply(self, state: MetricState, tuning: Any, stage: Stage) -> Any:
        """The metric in use."""
        tuning = tuning._replace(metric=state.metric)
        if self.early_bound is None or stage.window >= 2 or stage.over:
            return tuning
        name, most = self.early_bound
        return tuning._replace(**{name: np.minimum(getattr(tuning, name), np.int32(most))})

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
    return MetricState(metric, variance, found, Sums.nothing(sizes))


def _scales(state: MetricState, seen: Sums) -> tuple[np.ndarray, ...]:
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
