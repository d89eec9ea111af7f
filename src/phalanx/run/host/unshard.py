"""Conversions between sharded vectors and arrays by variable without padded rows, which depend on no mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from phalanx.adaptation.metric import LowRankMetric, MetricState
from phalanx.adaptation.tuner import Sample, Sums, VectorMoments
from phalanx.mesh.position import ByVariable, Vector, VectorLayout
from phalanx.mesh.processes import to_host

if TYPE_CHECKING:
    from jaxtyping import Shaped

Groups = Sequence[np.ndarray]
"""Arrays `(..., coordinate)`, one for each of the first groups of coordinates of a layout."""


def unshard(tree: Any, layout: VectorLayout) -> Any:
    """Return a tree of hyperparameters, states of tuners and their draws, with its vectors by variable."""

    def moments(groups: Sequence[VectorMoments]) -> VectorMoments | tuple[()]:
        means, squares = ([getattr(group, part) for group in groups] for part in ("mean", "squares"))
        if not groups:
            return ()
        return VectorMoments(groups[0].count, _by_variable(means, layout), _by_variable(squares, layout))

    return _convert(tree, lambda groups: _by_variable(groups, layout), moments)


def reshard(tree: Any, layout: VectorLayout) -> Any:
    """Return the inverse of `unshard`, for any mesh."""

    def moments(whole: VectorMoments | tuple[()]) -> tuple[VectorMoments, ...]:
        if not whole:
            return ()
        parts = zip(_by_group(whole.mean, layout), _by_group(whole.squares, layout), strict=True)
        return tuple(VectorMoments(whole.count, mean, squares) for mean, squares in parts)

    return _convert(tree, lambda values: _by_group(values, layout), moments)


def _convert(tree: Any, vectors: Callable[[Any], Any], moments: Callable[[Any], Any]) -> Any:
    def of(node: Any) -> Any:
        match node:
            case LowRankMetric():
                return jax.tree.map(_fetch, node)._replace(variance=vectors(jax.tree.map(_fetch, node.variance)))
            case MetricState(metric=metric, variance=variance, seen=seen):
                return node._replace(metric=of(metric), variance=vectors(variance), seen=of(seen))
            case Sums(position=position, gradient=gradient):
                return node._replace(position=moments(position), gradient=moments(gradient))
            case Sample(position=position, gradient=gradient):
                return node._replace(position=vectors(position), gradient=vectors(gradient))
        return _fetch(node)

    return jax.tree.map(of, tree, is_leaf=lambda node: isinstance(node, LowRankMetric | MetricState | Sums | Sample))


def _fetch(node: Any) -> Any:
    return to_host(node) if isinstance(node, jax.Array) else node


def _by_variable(groups: Groups, layout: VectorLayout) -> ByVariable:
    return Vector(tuple(groups), layout.of_groups(len(groups))).by_variable() if len(groups) else ()


def _by_group(values: ByVariable, layout: VectorLayout) -> tuple[Shaped[np.ndarray, "..."], ...]:
    """Return the groups of coordinates of the variables in `values`."""
    some = VectorLayout(tuple(v for v in layout.variables if v.name in values), layout.sizes)
    return some.of_whole(values).parts if len(values) else ()
