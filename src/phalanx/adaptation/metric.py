"""Tuner of the metric, window by window, from the draws and gradients of all chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from phalanx.adaptation.fisher import Correlations, correlations, scales, uncorrelated
from phalanx.adaptation.tuner import Sample, Stage, Sums, Tuner
from phalanx.mesh.position import VectorLayout
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Float, Float64

KINDS = ("auto", "diagonal", "dense")
"""Forms of a metric that warm-up can learn; see `phx.nuts`."""

RANK = 128
"""The most directions along which correlations are learned by default."""

SPACINGS = 4.0
"""Spacings of floats that are the least scale of a coordinate: chains that all begin at 2e11, where float32 has a
spacing of 16,384, would never move along it with a scale of 1, and their draws would look like a constant."""


class LowRankMetric(NamedTuple):
    """Metric as an argument of compiled blocks; `phalanx.kernels.metric.low_rank` has the formula.

    Attributes:
        variance: variances of all coordinates, one flat array per group: the global coordinates, then the sharded.
        directions: U, `(global coordinates, rank)`.
        variances: the diagonal of Λ, `(rank,)`.
        outside: c, the variance outside of U.
        correlated: true if U is used; an unused U costs no time.
    """

    variance: Any
    directions: Any
    variances: Any
    outside: Any
    correlated: Any

    @classmethod
    def specs(cls, layout: VectorLayout) -> LowRankMetric:
        """Return its partition over the mesh, given the layout of positions."""
        everywhere = PartitionSpec()
        return cls(layout.specs(), everywhere, everywhere, everywhere, everywhere)


class MetricState(NamedTuple):
    """Metric in use, its parts in float64, and the moments of the window's draws so far."""

    metric: LowRankMetric
    variance: tuple[Float64[np.ndarray, "*sets _"], ...]
    correlations: Correlations
    seen: Sums


@dataclass(frozen=True)
class Metric(Tuner):
    """Tuner of `metric`.

    Attributes:
        kind: "diagonal", "dense" or "auto"; see `phx.nuts`.
        early_bound: name of a hyperparameter that bounds trajectories, and its maximum until a metric is learned from
            draws (until then long trajectories waste gradients); None for no bound.

    Example:
        >>> import phalanx as phx
        >>> phx.kernels.Metric("diagonal").learns_from
        'moments'
    """

    kind: str
    early_bound: tuple[str, int] | None = None
    renews: ClassVar[bool] = True
    on_devices: ClassVar[bool] = True

    @property
    def learns_from(self) -> Literal["moments", "draws"]:
        """Data that the tuner learns from: for correlations draws, those of the global coordinates; else moments."""
        return "moments" if self.kind == "diagonal" else "draws"

    def init(self, tuning: PyTree, beginning: Sums, stage: Stage) -> MetricState:
        """Return the metric of an earlier run if given; else unit mass or, in warm-up, scales from first gradients."""
        sizes = [part.mean.shape[-1] for part in beginning.position]
        dtype = tuning.step_size.dtype
        if tuning.metric is not None:
            return _state_of_known_metric(tuning.metric, sizes)
        ones = tuple(np.ones_like(part.mean) for part in beginning.position)
        apart = uncorrelated(sizes[0], self._rank(sizes[0]))
        state = MetricState(_as_arrays(ones, apart, dtype), ones, apart, Sums.nothing(sizes))
        if not stage.tunes:
            return state
        variance = _scales(state, state.seen.merge(beginning))
        return state._replace(metric=_as_arrays(variance, apart, dtype), variance=variance)

    def update(self, state: MetricState, sums: Sums, tuning: PyTree, stage: Stage) -> MetricState:
        """Accumulate draws."""
        return state._replace(seen=state.seen.merge(sums))

    def next_window(self, state: MetricState, sample: Sample | None, stage: Stage) -> MetricState:
        """Adopt the metric that the window's draws suggest, and begin the next window."""
        variance = _scales(state, state.seen)
        new_correlations = state.correlations
        sizes = [part.shape[-1] for part in variance]
        rank = self._rank(sizes[0])
        if rank and sample is not None:
            position, gradient = _finite(sample.position[0], sample.gradient[0])
            if len(position) > 1:
                new_correlations = correlations(position, gradient, variance[0], rank, self.kind == "dense")
        metric = _as_arrays(variance, new_correlations, state.metric.outside.dtype)
        return MetricState(metric, variance, new_correlations, Sums.nothing(sizes))

    def apply(self, state: MetricState, tuning: PyTree, stage: Stage) -> PyTree:
        """Set the metric in use."""
        tuning = tuning._replace(metric=state.metric)
        if self.early_bound is None or stage.window >= 2 or stage.over:
            return tuning
        name, most = self.early_bound
        return tuning._replace(**{name: np.minimum(getattr(tuning, name), np.int32(most))})

    def _rank(self, size: int) -> int:
        """Return the number of directions along which correlations are learned."""
        return {"diagonal": 0, "dense": size, "auto": min(size, RANK)}[self.kind]


def _finite(
    position: Float[np.ndarray, "draw coordinate"], gradient: Float[np.ndarray, "draw coordinate"]
) -> tuple[Float64[np.ndarray, "finite coordinate"], Float64[np.ndarray, "finite coordinate"]]:
    """Return the finite draws in float64: a gradient in a far tail may overflow float32, and would spoil all sums."""
    good = np.isfinite(position).all(1) & np.isfinite(gradient).all(1)
    return position[good].astype(np.float64), gradient[good].astype(np.float64)


def _state_of_known_metric(metric: LowRankMetric, sizes: Sequence[int]) -> MetricState:
    """Return the state of a metric that another warm-up has learned."""
    variance = tuple(np.asarray(part, np.float64) for part in metric.variance)
    directions, along = (np.asarray(part, np.float64) for part in (metric.directions, metric.variances))
    known_correlations = Correlations(directions, along, float(metric.outside), bool(metric.correlated))
    return MetricState(metric, variance, known_correlations, Sums.nothing(sizes))


def _scales(state: MetricState, sums: Sums) -> tuple[Float64[np.ndarray, "*sets _"], ...]:
    """Return a variance for every coordinate, at least that of a few spacings of floats where the draws are."""
    spacing = SPACINGS * np.finfo(state.metric.outside.dtype).eps
    return tuple(
        np.maximum(scales(x.variance, g.variance, before), np.square(spacing * x.mean))
        for x, g, before in zip(sums.position, sums.gradient, state.variance, strict=True)
    )


def _as_arrays(variance: Sequence[np.ndarray], low_rank: Correlations, dtype: DTypeLike) -> LowRankMetric:
    """Return the metric in the dtype of the draws."""
    return LowRankMetric(
        tuple(part.astype(dtype) for part in variance),
        low_rank.directions.astype(dtype),
        low_rank.variances.astype(dtype),
        np.asarray(low_rank.outside, dtype),
        np.asarray(low_rank.correlated),
    )
