"""Adapter for modules of Flax Linen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from jax import Array, random
from jax.typing import DTypeLike

from phalanx.extras import require
from phalanx.mesh.devices import use_every_core
from phalanx.mesh.specs import PyTree, Spec
from phalanx.networks.module import Module
from phalanx.networks.network import Network, Remat, network_of

if TYPE_CHECKING:
    from flax import linen as nn


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
    module: nn.Module, example: tuple[PyTree, ...], training: Mapping[str, Any] | None = None,
    prediction: Mapping[str, Any] | None = None,
) -> Module:  # fmt: skip
    """Return a module of Flax Linen as functions of arrays.

    Args:
        module: the module.
        example: inputs, of which only the shapes are used.
        training: keyword arguments of its calls in training.
        prediction: keyword arguments of its other calls.
    """
    linen, errors = require("flax.linen"), require("flax.errors")
    in_training, in_prediction = dict(training or {}), dict(prediction or {})

    def variables(key: Array) -> dict[str, Any]:
        return dict(module.init(key, *example, **in_prediction))

    def begin(key: Array) -> tuple[PyTree, PyTree]:
        rest = linen.unbox(variables(key))
        return rest.pop("params", {}), rest

    def train(weights: PyTree, rest: PyTree, key: Array, *inputs: PyTree, **options: Any) -> tuple[PyTree, PyTree]:
        # one stream, from which Linen derives all others: a second stream with this key would repeat its numbers
        given = {"params": weights, **rest}
        outputs, changed = module.apply(
            given, *inputs, rngs={"params": key}, mutable=list(rest), **{**in_training, **options}
        )
        return outputs, {**rest, **changed}

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
