"""Linear maps with a transpose of their own, as a primitive of JAX: they may be differentiated, transposed and mapped.

`jax.custom_vjp` refuses forward mode, and `jax.custom_derivatives.linear_call` cannot be mapped by `vmap`, so neither
serves a Hessian. A map that communicates between devices needs a transpose of its own, because JAX would transpose its
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive

from phalanx.mesh.compatibility import jax_internals
from phalanx.mesh.specs import PyTree

Map = Callable[[PyTree, PyTree], PyTree]
"""`f(given, x)`, linear in the tree `x`."""


def linear_map(forward: Map, backward: Map, residual_tree: PyTree, x: PyTree, is_symmetric: bool = False) -> PyTree:
    """Return `forward(residual_tree, x)`, whose transpose in `x` is `backward(residual_tree, y)`.

    Args:
        forward: a linear function of `x`.
        backward: its transpose, a linear function of results.
        residual_tree: a tree of arrays that both depend on.
        x: a tree of arrays.
        is_symmetric: True if `forward(a, x)` is `forward(x, a)`.
    """
    residuals, of_given = jax.tree.flatten(residual_tree)
    operands, of_x = jax.tree.flatten(x)
    of_result = jax.tree.structure(jax.eval_shape(forward, residual_tree, x))

    def flat_forward(residuals: Sequence[Array], operands: Sequence[Array]) -> list[Array]:
        return jax.tree.leaves(forward(of_given.unflatten(residuals), of_x.unflatten(operands)))

    def flat_backward(residuals: Sequence[Array], cotangents: Sequence[Array]) -> list[Array]:
        return jax.tree.leaves(backward(of_given.unflatten(residuals), of_result.unflatten(cotangents)))

    return of_result.unflatten(_bind(residuals, operands, flat_forward, flat_backward, is_symmetric))


def _bind(
    residuals: Sequence[Array], operands: Sequence[Array], forward: Any, backward: Any, is_symmetric: bool
) -> list[Array]:
    parameters = {"forward": forward, "backward": backward, "is_symmetric": is_symmetric}
    return _primitive().bind(*residuals, *operands, count=len(residuals), **parameters)


@cache
def _primitive() -> Primitive:
    primitive = Primitive("linear_map")
    primitive.multiple_results = True
    primitive.def_impl(_evaluate)
    primitive.def_abstract_eval(_types)
    jax_internals.define(primitive, _evaluate, _derivative, _transpose, _batch)
    return primitive


def _evaluate(*arrays: Array, count: int, forward: Any, backward: Any, is_symmetric: bool) -> list[Array]:
    return forward(arrays[:count], arrays[count:])


def _types(*avals: Any, count: int, forward: Any, backward: Any, is_symmetric: bool) -> list[ShapedArray]:
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return [ShapedArray(s.shape, s.dtype) for s in jax.eval_shape(forward, shapes[:count], shapes[count:])]


def _derivative(
    primals: Sequence[Array], tangents: Sequence[Array], *, count: int, forward: Any, backward: Any, is_symmetric: bool
) -> tuple[list[Array], list[Array]]:
    """Return results and their tangents; all tangents are arrays."""
    residuals = primals[:count]
    operands = primals[count:]
    maps = forward, backward, is_symmetric
    results = _bind(residuals, operands, *maps)
    changes = [_bind(residuals, tangents[count:], *maps)]
    if is_symmetric:
        changes.append(_bind(operands, tangents[:count], *maps))
    else:
        changes.append(_by_residuals(residuals, operands, tangents[:count], forward))
    return results, [reduce(jnp.add, parts) for parts in zip(*filter(None, changes), strict=True)]


def _by_residuals(
    residuals: Sequence[Array], operands: Sequence[Array], tangents: Sequence[Array], forward: Any
) -> list[Array]:
    """Return the tangents of results by those of the residuals; none without real residuals."""
    is_real = [jnp.issubdtype(residual.dtype, jnp.inexact) for residual in residuals]
    pairs = [(x, t) for real, x, t in zip(is_real, residuals, tangents, strict=True) if real]
    if not pairs:
        return []

    def of_real(some: list[Array]) -> list[Array]:
        following = iter(some)
        all_residuals = [next(following) if real else x for real, x in zip(is_real, residuals, strict=True)]
        return forward(all_residuals, operands)

    return jax.jvp(of_real, ([x for x, _ in pairs],), ([t for _, t in pairs],))[1]


def _transpose(
    cotangents: Sequence[Array], residuals: Sequence[Array], *, forward: Any, backward: Any, is_symmetric: bool
) -> list[Array]:
    """Return cotangents of the operands."""
    return _bind(residuals, cotangents, backward, forward, is_symmetric=False)


def _batch(
    arrays: Sequence[Array], dims: Sequence[int | None], *, count: int, forward: Any, backward: Any, is_symmetric: bool
) -> list[Array]:
    """Return results of a batch, along the first dimension."""
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)

    def leading(array: Array, dim: int | None) -> Array:
        return jnp.broadcast_to(array, (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)

    residuals = list(arrays[:count])
    of_residuals = list(dims[:count])
    if is_symmetric:  # they may become operands
        residuals = [leading(*pair) for pair in zip(residuals, of_residuals, strict=True)]
        of_residuals = [0] * count
    operands = [leading(*pair) for pair in zip(arrays[count:], dims[count:], strict=True)]

    def mapped(one: Any) -> Callable[..., list[Array]]:
        return lambda residual_list, x: jax.vmap(one, in_axes=(of_residuals, 0))(list(residual_list), list(x))

    return _bind(residuals, operands, mapped(forward), mapped(backward), is_symmetric)
