"""Adapters for modules of Flax NNX, Flax Linen and Equinox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, random
from jax.tree_util import tree_flatten_with_path
from jax.typing import DTypeLike

from phalanx.errors.message_text import first_few
from phalanx.extras import require
from phalanx.mesh.devices import use_every_core
from phalanx.mesh.specs import PyTree, Spec, path_of
from phalanx.networks.network import Module, Network, Remat, network_of

if TYPE_CHECKING:
    from flax import linen as nn


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
        if used_streams := [name for name, value in counts(module).items() if value is not before.get(name)]:
            raise ValueError(
                f"from_nnx: {type(module).__name__} draws random numbers when it is called (its "
                f"{first_few(used_streams)} advanced), but a network is a function of its inputs: every call would "
                f"have the same noise. Leave dropout to the module's own switch, without deterministic=False in the "
                f"call; draw noise in the model, with phx.sample, and give it to the network as an input."
            )
        return outputs

    def counts(module: Any) -> dict[str, Any]:
        """Return the counts of random numbers drawn, by their names in the module."""
        nodes = {".".join(map(str, path)): node for path, node in nnx.iter_graph(module)}
        return {name: node.get_value() for name, node in nodes.items() if isinstance(node, nnx.RngCount)}

    variables = nnx.split_state(rest, nnx.RngState, ...)[1]
    keeps = tuple(sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(variables)}))
    specs = nnx.to_pure_dict(nnx.get_partition_spec(like))
    return Module(begin, train, predict, keeps, specs)


def from_linen(
    module: nn.Module, *example: PyTree, spec: Spec = None, dtype: DTypeLike | None = None, remat: Remat = False
) -> Network:
    """Make a network from a module of Flax Linen.

    Args:
        module: the module. It is called without random numbers, so dropout must be off by default.
        *example: inputs, of which only the shapes are used.
        spec: layout of the weights over a mesh; see `from_functions`. None takes the module's own metadata, for weights
            made with `linen.with_partitioning`.
        dtype: type in which it computes; see `from_functions`.
        remat: whether to recompute activations for the gradient; see `from_functions`. For single blocks of a network
            use `linen.remat` within the module.

    Returns:
        The network. Its `apply` takes the arguments of the module's call, and `method=`.

    Raises:
        ImportError: when Flax is not installed.
        ValueError: when the module keeps collections other than its parameters.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> from flax import linen
        >>> network = phx.networks.from_linen(linen.Dense(3), jnp.ones((1, 4)))
        >>> jax.tree.map(jnp.shape, network.init(jax.random.key(0)))
        {'bias': (3,), 'kernel': (4, 3)}
    """
    return network_of(linen_module(module, example), "from_linen", spec, dtype, remat)


def linen_module(
    module: nn.Module,
    example: tuple[PyTree, ...],
    training: Mapping[str, Any] | None = None,
    prediction: Mapping[str, Any] | None = None,
) -> Module:
    """Return a module of Flax Linen as functions of arrays.

    Args:
        module: the module.
        example: inputs, of which only the shapes are used.
        training: keyword arguments of its calls in training.
        prediction: keyword arguments of its other calls.
    """
    linen = require("flax.linen")
    errors = require("flax.errors")
    in_training = dict(training or {})
    in_prediction = dict(prediction or {})

    def variables(key: Array) -> dict[str, Any]:
        return dict(module.init(key, *example, **in_prediction))

    def begin(key: Array) -> tuple[PyTree, PyTree]:
        rest = linen.unbox(variables(key))
        return rest.pop("params", {}), rest

    def train(weights: PyTree, rest: PyTree, key: Array, *inputs: PyTree, **options: Any) -> tuple[PyTree, PyTree]:
        # one stream, from which Linen derives all others: a second stream with this key would repeat its numbers
        collections = {"params": weights, **rest}
        outputs, new_collections = module.apply(
            collections, *inputs, rngs={"params": key}, mutable=list(rest), **{**in_training, **options}
        )
        return outputs, {**rest, **new_collections}

    def predict(weights: PyTree, rest: PyTree, *inputs: PyTree, **options: Any) -> PyTree:
        try:
            return module.apply({"params": weights, **rest}, *inputs, **{**in_prediction, **options})
        except errors.InvalidRngError:
            raise ValueError(
                f"from_linen: {type(module).__name__} draws random numbers when it is called, but a network is a "
                f"function of its inputs: every call would have the same noise. Call it with dropout off, such as "
                f"deterministic=True; draw noise in the model, with phx.sample, and give it to the network as an input."
            ) from None

    use_every_core()
    like = jax.eval_shape(variables, random.key(0))
    keeps = tuple(f"the collection {name!r}" for name in like if name != "params")
    return Module(begin, train, predict, keeps, linen.get_partition_spec(like).get("params", {}))


def from_equinox(
    make: Callable[[Array], Any], *, spec: Spec = None, dtype: DTypeLike | None = None, remat: Remat = False
) -> Network:
    """Make a network from a module of Equinox.

    Args:
        make: `make(key)` makes the module. It is called in inference mode, with dropout off; most of Equinox's layers
            take a single example, so wrap the network in `jax.vmap`.
        spec: layout of the weights over a mesh; see `from_functions`.
        dtype: type in which it computes; see `from_functions`.
        remat: whether to recompute activations for the gradient; see `from_functions`.

    Returns:
        The network. Its weights are the module's arrays of real numbers, by path; its `apply` takes the arguments of
        the module's call, or those of another method that `method=` names.

    Raises:
        ImportError: when Equinox is not installed.
        TypeError: when `make` is a module itself.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp, phalanx as phx
        >>> network = phx.networks.from_equinox(lambda key: eqx.nn.Linear(4, 3, key=key))
        >>> weights = network.init(jax.random.key(0))
        >>> jax.tree.map(jnp.shape, weights)
        {'bias': (3,), 'weight': (3, 4)}
        >>> jax.vmap(lambda x: network.apply(weights, x))(jnp.ones((5, 4))).shape
        (5, 3)
    """
    return network_of(equinox_module(make), "from_equinox", spec, dtype, remat)


def equinox_module(make: Callable[[Array], Any]) -> Module:
    """Return a module of Equinox as functions of arrays."""
    eqx = require("equinox")
    if isinstance(make, eqx.Module):
        raise TypeError(
            f"from_equinox: expected a function that makes the module from a key, as in from_equinox(lambda key: "
            f"{type(make).__name__}(..., key=key)); got a module."
        )
    use_every_core()
    like = eqx.filter_eval_shape(make, random.key(0))
    leaves, structure = tree_flatten_with_path(like)
    names = [path_of(path) for path, _ in leaves]
    is_array = [isinstance(leaf, jax.ShapeDtypeStruct) for _, leaf in leaves]
    is_weight = [
        array and jnp.issubdtype(leaf.dtype, jnp.inexact) for array, (_, leaf) in zip(is_array, leaves, strict=True)
    ]

    def begin(key: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        entries = list(zip(names, jax.tree.leaves(make(key)), is_array, is_weight, strict=True))
        weights = {name: leaf for name, leaf, _, weight in entries if weight}
        return weights, {name: leaf for name, leaf, array, weight in entries if array and not weight}

    def predict(weights: PyTree, rest: PyTree, *inputs: PyTree, method: str = "__call__", **options: Any) -> PyTree:
        leaves_by_name = {**weights, **rest}
        new_leaves = [leaves_by_name.get(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]
        module = eqx.nn.inference_mode(jax.tree.unflatten(structure, new_leaves))
        return getattr(module, method)(*inputs, **options)

    def train(weights: PyTree, rest: PyTree, key: Array, *inputs: PyTree, **options: Any) -> tuple[PyTree, PyTree]:
        raise NotImplementedError  # Equinox has no uniform way to pass keys to layers; ensembles take `apply`

    return Module(begin, train, predict)
