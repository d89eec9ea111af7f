"""Adapter for modules of Flax NNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.typing import DTypeLike

from phalanx.errors.words import first_few
from phalanx.extras import require
from phalanx.mesh.specs import PyTree, Spec
from phalanx.networks.module import Module
from phalanx.networks.network import Network, Remat, network_of


def from_nnx(
    make: Callable[[Any], Any], *, spec: Spec = None, dtype: DTypeLike | None = None, remat: Remat = False
) -> Network:
    """Make a network from a module of Flax NNX.

    Args:
        make: `make(rngs)` makes the module, from `nnx.Rngs`. It is called in evaluation mode, with dropout off.
        spec: layout of the weights over a mesh; see `from_functions`. None takes the module's own metadata, for weights
            made with `nnx.with_partitioning`.
        dtype: type in which it computes; see `from_functions`.
        remat: whether to recompute activations for the gradient; see `from_functions`. For single blocks of a network
            use `nnx.remat` within the module.

    Returns:
        The network. Its `apply` takes the arguments of the module's call, or those of another method that `method=`
        names.

    Raises:
        ImportError: when Flax is not installed.
        TypeError: when `make` is a module itself.
        ValueError: when the module keeps statistics of batches; and by a call that draws random numbers.

    Example:
        >>> import jax, phalanx as phx
        >>> from flax import nnx
        >>> split = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        >>> network = phx.networks.from_nnx(lambda rngs: nnx.Linear(3, 8, kernel_init=split, rngs=rngs))
        >>> network.specs
        {'bias': P(), 'kernel': P(None, 'model')}
    """
    return network_of(nnx_module(make), "from_nnx", spec, dtype, remat)


def nnx_module(make: Callable[[Any], Any]) -> Module:
    """Return a module of Flax NNX as functions of arrays."""
    nnx = require("flax.nnx")
    if isinstance(make, nnx.Module):
        raise TypeError(
            f"from_nnx: expected a function that makes the module from nnx.Rngs, as in from_nnx(lambda rngs: "
            f"{type(make).__name__}(..., rngs=rngs)); got a module."
        )

    def split(rngs: Any) -> tuple[PyTree, PyTree, PyTree]:
        # a fit shards the weights later; eager sharding would need a mesh now
        with nnx.use_eager_sharding(False):
            return nnx.split(make(rngs), nnx.Param, ...)

    with nnx.use_eager_sharding(False):
        graph, like, rest = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param, ...)

    def begin(key: Array) -> tuple[PyTree, PyTree]:
        _, params, rest = split(nnx.Rngs(key))
        return nnx.to_pure_dict(params), jax.tree.leaves(rest)

    def merge(weights: PyTree, others: PyTree) -> PyTree:
        params = jax.tree.map(lambda leaf: leaf, like)
        nnx.replace_by_pure_dict(params, weights)
        with nnx.use_eager_sharding(False):
            return nnx.merge(graph, params, jax.tree.unflatten(jax.tree.structure(rest), others), copy=True)

    def train(
        weights: PyTree, others: PyTree, _: Array, *inputs: PyTree, method: str = "__call__", **options: Any
    ) -> PyTree:
        module = merge(weights, others)
        module.train()
        outputs = getattr(module, method)(*inputs, **options)
        return outputs, jax.tree.leaves(nnx.split(module, nnx.Param, ...)[2])

    def predict(weights: PyTree, others: PyTree, *inputs: PyTree, method: str = "__call__", **options: Any) -> PyTree:
        module = merge(weights, others)
        module.eval()
        before = counts(module)
        outputs = getattr(module, method)(*inputs, **options)
        if used := [name for name, value in counts(module).items() if value is not before.get(name)]:
            raise ValueError(
                f"from_nnx: {type(module).__name__} draws random numbers when it is called (its {first_few(used)} "
                f"advanced), but a network is a function of its inputs: every call would have the same noise. Leave "
                f"dropout to the module's own switch, without deterministic=False in the call; draw noise in the "
                f"model, with phx.sample, and give it to the network as an input."
            )
        return outputs

    def counts(module: Any) -> dict[str, Any]:
        """Return the counts of random numbers drawn, by their names in the module."""
        found = {".".join(map(str, path)): node for path, node in nnx.iter_graph(module)}
        return {name: node.get_value() for name, node in found.items() if isinstance(node, nnx.RngCount)}

    kept = nnx.split_state(rest, nnx.RngState, ...)[1]
    keeps = tuple(sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(kept)}))
    specs = nnx.to_pure_dict(nnx.get_partition_spec(like))
    return Module(begin, train, predict, keeps, specs)
