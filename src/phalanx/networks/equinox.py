"""Adapter for modules of Equinox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random
from jax.tree_util import tree_flatten_with_path
from jax.typing import DTypeLike

from phalanx.extras import require
from phalanx.mesh.devices import use_every_core
from phalanx.mesh.specs import PyTree, Spec, path_of
from phalanx.networks.module import Module
from phalanx.networks.network import Network, Remat, network_of


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
        found = list(zip(names, jax.tree.leaves(make(key)), is_array, is_weight, strict=True))
        weights = {name: leaf for name, leaf, _, weight in found if weight}
        return weights, {name: leaf for name, leaf, array, weight in found if array and not weight}

    def predict(weights: PyTree, rest: PyTree, *inputs: PyTree, method: str = "__call__", **options: Any) -> PyTree:
        known = {**weights, **rest}
        filled = [known.get(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]
        module = eqx.nn.inference_mode(jax.tree.unflatten(structure, filled))
        return getattr(module, method)(*inputs, **options)

    def train(weights: PyTree, rest: PyTree, key: Array, *inputs: PyTree, **options: Any) -> tuple[PyTree, PyTree]:
        raise NotImplementedError  # Equinox has no uniform way to pass keys to layers; ensembles take `apply`

    return Module(begin, train, predict)
