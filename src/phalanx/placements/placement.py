"""Placements of a value along a mesh axis, and values with their placements.

There are three placements, as in PyTorch's DTensor: *replicated*, the same array on all devices; *sharded* along a
dimension, `ceil(n / devices)` rows on each device; *partial sum*, arrays whose sum over devices is the value. A value
of shape (203, 3) on a mesh of 2 devices along `data`:

    REPLICATED   (203, 3) on both
    0            (102, 3) on both: rows 0 to 101, and rows 102 to 202 with a copy of row 202
    PARTIAL      (203, 3) on both, to be added

Padded rows are copies of the last real row. Every rule keeps that, so no arithmetic on padded rows fails where that on
real rows does not, and one mask where rows are contracted is enough: `0 * inf` never arises in a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import JaxprEqn
from jax.typing import ArrayLike

REPLICATED: Final = "replicated"
PARTIAL: Final = "partial sum"

Placement = int | str
"""REPLICATED, PARTIAL, or the dimension along which a value is sharded."""

Placements = tuple[Placement, ...]
"""One placement for each mesh axis."""


def is_sharded(placement: Placement) -> TypeGuard[int]:
    """Return whether a placement is a dimension, of Python or NumPy."""
    return not isinstance(placement, str)


class PlacedValue:
    """Value of a program: its whole shape, and its arrays by placement.

    A conversion is made once: `forms` remembers its result. Values that are cheap to compute again know their
    equation and operands, so that operands can be moved in place of the value where they are smaller.

    Attributes:
        shape, dtype: those of the whole value.
        placements: the placements of the array that the program made.
        forms: this device's array, by placements.
        equation, operands, output: the origin of the value, if it can be computed again from operands with other
            placements, and its number among the results.
        leaves: the values to move in order to compute this value, replicated, on every device: operands that are not
            replicated, if together they have less than half its size; else the value itself.
        sums: the partial sums to add in order to have the sum of this value: operands, if together they are no larger,
            since other values computed from them then share the all-reduce; else the value itself.
        demanded: numbers of the mesh axes along which the replicated value was needed.
        constant: the numbers of a constant of the program.
    """

    def __init__(
        self,
        array: Any,
        placements: Placements,
        shape: Sequence[int],
        dtype: Any,
        origin: tuple[JaxprEqn, Sequence[PlacedValue], int] | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.placements = placements
        self.forms: dict[Placements, Array] = {placements: array}
        self.demanded: set[int] = set()
        self.constant: ArrayLike | None = None
        self.equation = origin[0] if origin else None
        self.operands: Sequence[PlacedValue] = origin[1] if origin else ()
        self.output = origin[2] if origin else 0
        self.leaves = self._leaves()
        self.sums = self._sums()

    @property
    def array(self) -> Array:
        """This device's array with the value's own placements."""
        return self.forms[self.placements]

    @property
    def nbytes(self) -> int:
        """Size of the whole value in bytes."""
        return math.prod(self.shape) * getattr(self.dtype, "itemsize", 4)

    @property
    def is_replicated(self) -> bool:
        """True if all devices have the whole value."""
        return all(placement == REPLICATED for placement in self.placements)

    def has_equal_rows(self, dim: int) -> bool:
        """Return whether the value is a constant that is the same in all rows along a dimension."""
        if self.constant is None or jnp.issubdtype(self.dtype, jax.dtypes.extended):
            return False
        numbers = np.asarray(self.constant)
        return bool(np.all(numbers == np.take(numbers, [0], dim)))

    def _leaves(self) -> frozenset[PlacedValue]:
        if self.is_replicated:
            return frozenset()
        if self.equation is None:
            return frozenset({self})
        below = frozenset[PlacedValue]().union(*(operand.leaves for operand in self.operands))
        return below if 2 * sum(leaf.nbytes for leaf in below) < self.nbytes else frozenset({self})

    def _sums(self) -> frozenset[PlacedValue]:
        if PARTIAL not in self.placements:
            return frozenset()
        begins = any(
            at == PARTIAL and is_sharded(of_operand)
            for operand in self.operands
            for at, of_operand in zip(self.placements, operand.placements, strict=True)
        )
        below = frozenset[PlacedValue]().union(*(operand.sums for operand in self.operands))
        if begins or not below or sum(each.nbytes for each in below) > self.nbytes:
            return frozenset({self})
        return below

    @property
    def is_added_before(self) -> bool:
        """True if operands are added instead of this value."""
        return self.sums != frozenset({self})

    @property
    def is_recomputed(self) -> bool:
        """True if the replicated value is computed from its operands, which are smaller."""
        return self.leaves != frozenset({self})


def is_inexact(dtype: Any) -> bool:
    """Return whether a type holds real or complex numbers."""
    return np.issubdtype(dtype, np.inexact) or str(dtype) == "bfloat16"
