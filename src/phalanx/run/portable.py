"""What was tuned, as a value of no mesh: variances by variable in place of vectors as devices hold them."""

from __future__ import annotations

from typing import Any

import jax

from phalanx.adaptation.metric import MetricState, Seen
from phalanx.kernels.low_rank import LowRank
from phalanx.kernels.whole import by_group, by_variable
from phalanx.mesh.processes import to_host
from phalanx.programs.target import Target


def portable(tree: Any, target: Target) -> Any:
    """Hyperparameters, or states of tuners between two windows, with variances by variable."""

    def of(node: Any) -> Any:
        if isinstance(node, LowRank):
            node = jax.tree.map(to_host, node)
            return node._replace(variance=by_variable(target, node.variance))
        if isinstance(node, MetricState):
            return node._replace(metric=of(node.metric), variance=by_variable(target, node.variance), seen=())
        return to_host(node) if isinstance(node, jax.Array) else node

    return jax.tree.map(of, tree, is_leaf=_is_metric)


def on_mesh(tree: Any, target: Target) -> Any:
    """The inverse of `portable`."""

    def of(node: Any) -> Any:
        if not _is_metric(node):
            return node
        variance = by_group(target, node.variance)
        if isinstance(node, LowRank):
            return node._replace(variance=variance)
        nothing = Seen.nothing([len(part) for part in variance])
        return node._replace(metric=of(node.metric), variance=variance, seen=nothing)

    return jax.tree.map(of, tree, is_leaf=_is_metric)


def _is_metric(node: Any) -> bool:
    return isinstance(node, LowRank | MetricState)
