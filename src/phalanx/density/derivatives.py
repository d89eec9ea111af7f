"""Derivative rules of the log density as a function of the position, for any code that differentiates it.

With `log_density = differentiable(functions, data)`, a user's kernel or an optimiser may call

    jax.grad(log_density)(position)                     # first rule: `value_and_grad`
    jax.jvp(jax.grad(log_density), [position], [step])  # second rule: `hessian_product`

On a mesh, the log density and its gradient contain sums over devices. JAX would differentiate these sums as if each
device had a result of its own, which gives wrong derivatives, so that here they follow from the functions instead:

- the derivative of the log density in a direction is the inner product of its gradient and the direction;
- the derivative of the gradient is the product of the Hessian and the direction, and its transpose is the same product.
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
    """Return the inner product of two positions whose entries are all on one device."""
    return sum((jnp.vdot(a[name], b[name]) for name in a), start=jnp.zeros(()))


class DensityFunctions(NamedTuple):
    """A log density and its derivatives, as functions of its data and of a position by variable.

    Attributes:
        value: the log density.
        value_and_grad: the log density and its gradient.
        hessian_product: the product of the Hessian with a direction, `hessian_product(data, position, direction)`; None
            if value and gradient contain no sums over devices, so that JAX differentiates the gradient itself.
        inner_product: the inner product of two positions, over all devices; it takes no data.
    """

    value: Callable[[Any, ByVariable], Array]
    value_and_grad: Callable[[Any, ByVariable], tuple[Array, ByVariable]]
    hessian_product: Callable[[Any, ByVariable, ByVariable], ByVariable] | None = None
    inner_product: Callable[[ByVariable, ByVariable], Array] = inner_product_here


def differentiable(log_density: DensityFunctions, data: Any) -> Callable[[ByVariable], Array]:
    """Return a log density as a function of the position that JAX may differentiate twice, forward or in reverse.

    Args:
        log_density: the functions that compute it and its derivatives.
        data: a tree of arrays that is passed to them.
    """
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
    """Return `value_and_grad` with a derivative rule, which computes the gradient's by `hessian_product`."""

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
