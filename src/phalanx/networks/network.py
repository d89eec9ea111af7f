"""Network as a function of its weights, the form that programs, fits and ensembles take; and its checks and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from jax.typing import ArrayLike, DTypeLike

from phalanx.mesh.devices import use_every_core
from phalanx.mesh.specs import PyTree, Spec, specs_of

Remat = bool | Callable[..., bool]
"""Recomputation for the gradient: of everything, of nothing, or by one of `jax.checkpoint_policies`."""


class Module(NamedTuple):
    """A module as functions of arrays.

    Attributes:
        begin: `begin(key)`, its weights, which are differentiated, and other state, which is not: statistics of
            batches, counts of random numbers. Both are trees of arrays.
        train: `train(weights, state, key, *inputs, **options)`, its outputs in training, and the state after it.
        predict: `predict(weights, state, *inputs, **options)`, its outputs in prediction.
        keeps: the library's names of the state that changes from call to call, except for random numbers.
        specs: partition specs from the module's own metadata, a tree like the weights; None without metadata.
    """

    begin: Callable[[Array], tuple[Any, Any]]
    train: Callable[..., tuple[Any, Any]]
    predict: Callable[..., Any]
    keeps: tuple[str, ...] = ()
    specs: Any = None


@dataclass(frozen=True)
class Network:
    """A network, as two functions and the layout of its weights.

    Attributes:
        init: `init(key)` makes its weights, a tree of arrays.
        apply: `apply(weights, *inputs, **options)`, its outputs.
        specs: layout of the weights over a mesh, a tree like them of `jax.sharding.PartitionSpec`; None for copies on
            every device.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> from flax import nnx
        >>> network = phx.networks.from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
        >>> weights = network.init(jax.random.key(0))
        >>> jax.tree.map(jnp.shape, weights)
        {'bias': (2,), 'kernel': (3, 2)}
        >>> network.apply(weights, jnp.ones((5, 3))).shape
        (5, 2)
    """

    init: Callable[[Array], Any]
    apply: Callable[..., Any]
    specs: Any = None


def _check_functions(init: object, apply: object) -> None:
    """Raise unless `init` takes a key, and `apply` weights."""
    requirement = (
        "expected init(key), which makes the weights, and then apply(weights, *inputs), which computes with them"
    )
    for name, f in (("init", init), ("apply", apply)):
        if not callable(f):
            raise TypeError(f"from_functions: {name} is a {type(f).__name__}, not a function; {requirement}.")
        try:
            signature = inspect.signature(f)
        except (TypeError, ValueError):  # built-ins and some callables have no signature
            continue
        try:
            signature.bind(None)
        except TypeError:
            if name == "init" or not signature.parameters:
                swapped = " Are the two swapped?" if name == "init" and len(signature.parameters) > 1 else ""
                raise TypeError(
                    f"from_functions: {name} is {getattr(f, '__name__', type(f).__name__)}{signature}; {requirement}."
                    f"{swapped}"
                ) from None


def from_functions(
    init: Callable[[Array], Any],
    apply: Callable[..., Any],
    *,
    spec: Spec = None,
    dtype: DTypeLike | None = None,
    remat: Remat = False,
) -> Network:
    """Make a network from two functions.

    Args:
        init: `init(key)` makes its weights, a tree of arrays.
        apply: `apply(weights, *inputs, **options)`, its outputs.
        spec: layout of the weights over a mesh: a tree of specs like the weights; or a function of a weight's path,
            such as "layers.0.kernel", and its shape, that returns a `jax.sharding.PartitionSpec`, a tuple of mesh axes,
            or None for a copy on every device.
        dtype: type in which it computes, such as `jnp.bfloat16`; weights, gradients and outputs keep their types.
        remat: True recomputes activations for the gradient instead of storing them; one of `jax.checkpoint_policies`
            selects the stored ones.

    Returns:
        The network.

    Example:
        >>> import jax, jax.numpy as jnp, phalanx as phx
        >>> network = phx.networks.from_functions(
        ...     lambda key: {"w": jax.random.normal(key, (4, 8))}, lambda p, x: x @ p["w"],
        ...     spec=lambda path, shape: (None, "model"),
        ... )
        >>> network.specs
        {'w': P(None, 'model')}
    """
    _check_functions(init, apply)

    def predict(weights: PyTree, _: PyTree, *inputs: PyTree, **options: Any) -> PyTree:
        return apply(weights, *inputs, **options)

    module = Module(lambda key: (init(key), ()), _no_training, predict)
    return network_of(module, "from_functions", spec, dtype, remat)


def network_of(module: Module, what: str, spec: Spec, dtype: DTypeLike | None, remat: Remat) -> Network:
    """Return a module as a network: a function of its weights alone, in prediction mode.

    Raises:
        ValueError: when a module keeps state from call to call, which the message names.
    """
    if module.keeps:
        raise ValueError(
            f"{what}: the module keeps {', '.join(module.keeps)} from call to call, but a network is a function of its "
            f"weights and inputs. Use a module without, such as one that normalises by layer and not by batch; an "
            f"ensemble takes such modules, by phx.ensembles.nnx_learner or linen_learner."
        )
    use_every_core()
    like, rest = jax.eval_shape(module.begin, random.key(0))

    @cache
    def others() -> PyTree:
        """Return the module's state without its weights."""
        with jax.ensure_compile_time_eval():
            return jax.jit(lambda: module.begin(random.key(0))[1])() if jax.tree.leaves(rest) else rest

    def apply(weights: PyTree, *inputs: PyTree, **options: Any) -> PyTree:
        return module.predict(weights, others(), *inputs, **options)

    specs = specs_of(like, spec, module.specs, what)
    return Network(lambda key: module.begin(key)[0], _remat(_computed_in(apply, dtype), remat), specs)


def _computed_in(apply: Callable[..., Any], dtype: DTypeLike | None) -> Callable[..., Any]:
    """Return `apply` with weights and inputs converted to `dtype`, and outputs converted back to the weights' type."""
    if dtype is None:
        return apply

    def lower(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.asarray(x).astype(dtype) if _is_real(x) else x, tree)

    def run(weights: PyTree, *inputs: PyTree, **options: Any) -> PyTree:
        of_weights = jnp.result_type(*(leaf for leaf in jax.tree.leaves(weights) if _is_real(leaf)))
        outputs = apply(lower(weights), *lower(inputs), **options)
        return jax.tree.map(lambda x: x.astype(of_weights) if _is_real(x) else x, outputs)

    return run


def _remat(apply: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    if remat is False:
        return apply
    policy = None if remat is True else remat

    def run(weights: PyTree, *inputs: PyTree, **options: Any) -> PyTree:
        return jax.checkpoint(lambda *arrays: apply(*arrays, **options), policy=policy)(weights, *inputs)

    return run


def _is_real(leaf: ArrayLike) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _no_training(*_: PyTree) -> PyTree:
    raise NotImplementedError  # ensembles train two functions themselves, and pass a key to those that take one
