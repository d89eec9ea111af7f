"""Mesh of virtual devices on one real device: `vmap` with named axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from phalanx.mesh.specs import PyTree

F = TypeVar("F", bound=Callable[..., Any])


def on_virtual_mesh(f: Callable[..., Any], sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Return `f` run on a virtual mesh on one real device; its results are those of the first virtual device."""
    for axis, size in sizes.items():
        f = _over(f, axis, size)
    return f


def alone(f: Callable[[], Any], axes: Iterable[str]) -> PyTree:
    """Return `f()` with these mesh axes in scope, of one device each, so that sums over them have one term."""
    return on_virtual_mesh(f, dict.fromkeys(axes, 1))()


def retry_without_mesh(f: F) -> F:
    """Return a function that traces `f`, and traces it again without a mesh in context if that fails.

    Equinox, and with it diffrax, compares the types of traced values. `shard_map` adds a mesh to these types, in
    gradients of ODE solvers only to some of them, so that the comparison fails (diffrax #765, lineax #185). If both
    traces fail, the first error is raised.
    """

    @wraps(f)
    def traced(*args: PyTree) -> PyTree:
        try:
            return f(*args)
        except (TypeError, ValueError) as error:
            leaves, tree = jax.tree.flatten(args)
            shapes = [jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
            try:
                with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                    trace = jax.make_jaxpr(lambda *leaves: f(*jax.tree.unflatten(tree, leaves)), return_shape=True)
                    program, results = trace(*shapes)
            except (TypeError, ValueError):
                raise error from error.__cause__
            return jax.tree.unflatten(jax.tree.structure(results), jaxpr_as_fun(program)(*leaves))

    return traced  # pyright: ignore[reportReturnType]


def _over(f: Callable[..., Any], axis: str, size: int) -> Callable[..., Any]:
    def mapped(*args: PyTree) -> PyTree:
        out = jax.vmap(lambda _: f(*args), axis_name=axis, axis_size=size)(jnp.zeros(size))
        return jax.tree.map(lambda leaf: leaf[0], out)

    return mapped
