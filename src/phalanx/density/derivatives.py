"""Log density that any code may differentiate, forward or in reverse, twice: a stranger's kernel, an optimiser.

Value and gradient on a mesh contain messages, which JAX would differentiate as if each device had a value of its own.
So the derivatives are given: that of the log density is the inner product with its gradient, and that of the gradient
the product with the Hessian, which is its own transpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from phalanx.mesh.compatibility.linear_maps import linear_map
from phalanx.mesh.position import ByVariable


def inner_product_here(a: ByVariable, b: ByVariable) -> Array:
    """Return the inner product of two positions that one device has."""
    return sum((jnp.vdot(a[name], b[name]) for name in a), start=jnp.zeros(()))


class DensityFunctions(NamedTuple):
    """Functions of a log density, given its data and a position by variable.

    Attributes:
        value: the log density.
        value_and_grad: the log density and its gradient.
        hessian_product: the product of the Hessian with a direction, which follows the position; None if value and
            gradient contain no messages, so that JAX may differentiate them.
        inner_product: the inner product of two positions, over all devices, without data.
    """

    value: Callable[[Any, ByVariable], Array]
    value_and_grad: Callable[[Any, ByVariable], tuple[Array, ByVariable]]
    hessian_product: Callable[[Any, ByVariable, ByVariable], ByVariable] | None = None
    inner_product: Callable[[ByVariable, ByVariable], Array] = inner_product_here


def differentiable(log_density: DensityFunctions, data: Any) -> Callable[[ByVariable], Array]:
    """Return a log density, of data that are a tree of arrays, as a function of the position."""
    hessian_product = log_density.hessian_product
    inner_product = log_density.inner_product

    def both(position: ByVariable, data: Any) -> tuple[Array, ByVariable]:
        return log_density.value_and_grad(data, position)

    if hessian_product is not None:
        both = _with_curvature(both, hessian_product, inner_product)

    def dot(a: ByVariable, b: ByVariable) -> Array:
        return inner_product(a, b) if hessian_product is None else _dot(inner_product, a, b)

    @jax.custom_jvp
    def value(position: ByVariable, data: Any) -> Array:
        return log_density.value(data, position)

    @value.defjvp
    def _value(primals: Any, tangents: Any) -> Any:
        (position, data), (direction, _) = primals, tangents
        total, gradient = both(position, data)
        return total, dot(gradient, direction)

    return lambda position: value(position, data)


def _with_curvature(value_and_grad: Any, hessian_product: Any, inner_product: Any) -> Any:
    """Return value and gradient as a function of position and data, with derivatives of both."""

    @jax.custom_jvp
    def both(position: ByVariable, data: Any) -> tuple[Array, ByVariable]:
        return value_and_grad(position, data)

    @both.defjvp
    def _both(primals: Any, tangents: Any) -> Any:
        (position, data), (direction, _) = primals, tangents
        total, gradient = both(position, data)

        def product(point: Any, direction: ByVariable) -> ByVariable:
            position, data = point
            return hessian_product(data, position, direction)

        curvature = linear_map(product, product, (position, data), direction)
        return (total, gradient), (_dot(inner_product, gradient, direction), curvature)

    return both


def _dot(inner_product: Any, a: ByVariable, b: ByVariable) -> Array:
    """Return an inner product over devices, which JAX may differentiate and transpose."""

    def scaled(a: ByVariable, scale: Array) -> ByVariable:
        return jax.tree.map(lambda leaf: scale * leaf, a)

    return linear_map(inner_product, scaled, a, b, is_symmetric=True)
