"""Vectors of coordinates, one for every lane: what kernels add, scale and take inner products of.

A lane is one chain. Coordinates run down and lanes across, `(coordinates, lanes)`, so that elementwise work and sums
over coordinates run along the lanes, which a CPU vectorises. Coordinates that every device holds are one array; those
spread over devices are another for each set of mesh axes. A kernel need not know: it writes `x + step_size * v`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from jaxtyping import Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Vector:
    """A vector of every lane. Sums, differences and negation; products and quotients with a scalar or elementwise.

    A scalar is a number, or an array `(lanes,)` with one for each lane.

    Attributes:
        parts: arrays `(coordinates, lanes)`: the coordinates that are replicated and, where variables are
            spread over mesh axes, one array for each set of axes.

    Example:
        >>> import jax.numpy as jnp
        >>> from phalanx.kernels.vector import Vector
        >>> x = Vector((jnp.ones((3, 2)),))  # three coordinates, two lanes
        >>> (x + jnp.array([1.0, 2.0]) * x).parts[0][0]
        Array([2., 3.], dtype=float32)
    """

    parts: tuple[Any, ...]  # any: the same record holds arrays, their shapes, and how they are laid out over the mesh

    __array_ufunc__ = None  # NumPy's numbers on the left leave the product to us

    def __add__(self, other: Vector) -> Vector:
        return self._with(other, operator.add)

    def __sub__(self, other: Vector) -> Vector:
        return self._with(other, operator.sub)

    def __neg__(self) -> Vector:
        return Vector(tuple(-part for part in self.parts))

    def __mul__(self, other: Vector | float | Float[Array, ""] | Float[Array, "lanes"]) -> Vector:
        return self._with(other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Vector | float | Float[Array, ""] | Float[Array, "lanes"]) -> Vector:
        return self._with(other, operator.truediv)

    def _with(self, other: Any, of_two: Callable[[Array, Any], Array]) -> Vector:
        if isinstance(other, Vector):
            return Vector(tuple(of_two(a, b) for a, b in zip(self.parts, other.parts, strict=True)))
        return Vector(tuple(of_two(part, _across(other, part.ndim)) for part in self.parts))


def _across(scalar: Any, dimensions: int) -> Any:
    """A scalar for each lane, in as many dimensions as what it scales: lanes come last."""
    return jnp.reshape(scalar, (1,) * (dimensions - 1) + jnp.shape(scalar)) if jnp.ndim(scalar) else scalar
