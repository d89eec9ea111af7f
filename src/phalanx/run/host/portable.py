"""What was tuned, as a value of no mesh: variances by variable in place of vectors as devices hold them."""

from __future__ import annotations

from typing import Any

import jax

from phalanx.adaptation.metric import MetricState
from phalanx.adaptation.tuner import Sums
from phalanx.kernels.metric.low_rank import LowRank
from phalanx.mesh.position import Vector, VectorLayout
from phalanx.mesh.processes import to_host


def portable(tree: Any, layout: VectorLayout) -> Any:
    """Hyperparameters, or states of tuners between two windows, with variances by variable."""

    def of(node: Any) -> Any:
        if isinstance(node, LowRank):
            node = jax.tree.map(to_host, node)
            return node._replace(variance=Vector(node.variance, layout).by_variable())
        if isinstance(node, MetricState):
            return node._replace(metric=of(node.metric), variance=Vector(node.variance, layout).by_variable(), seen=())
        return to_host(node) if isinstance(node, jax.Array) else node

    return jax.tree.map(of, tree, is_leaf=_is_metric)


def on_mesh(tree: Any, layout: VectorLayout) -> Any:
    """The inverse of `portable`."""

    def of(node: Any) -> Any:
        if not _is_metric(node):
            return node
        variance = layout.of_whole(node.variance).parts
        if isinstance(node, LowRank):
            return node._replace(variance=variance)
        nothing = Sums.nothing([len(part) for part in variance])
        return node._replace(metric=of(node.metric), variance=variance, seen=nothing)

    return jax.tree.map(of, tree, is_leaf=_is_metric)


def _is_metric(node: Any) -> bool:
    return isinstance(node, LowRank | MetricState)
