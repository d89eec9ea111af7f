"""Sharding of the rows of an array: replicated on every device, or sharded over mesh axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped


@dataclass(frozen=True)
class RowSharding:
    """Sharding of one array: replicated (no axes), or its rows sharded over `axes`.

    Attributes:
        axes: mesh axes that the leading dimension is sharded over, outermost first.
        rows: rows of the whole array; each device holds `ceil(rows / devices)`, the last ones with padding. 0 for a
            term of a log density without padded rows.
        local_rows: rows on one device.
    """

    axes: tuple[str, ...] = ()
    rows: int = 0
    local_rows: int = 0

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in the whole, without padded rows, of an array of this shape on one device."""
        return (self.rows, *shape[1:]) if self.axes else shape

    def spec(self, *leading: str | None) -> PartitionSpec:
        """Return the partition of an array whose first dimensions are `leading` and whose next are rows."""
        return PartitionSpec(*leading, self.axes) if self.axes else PartitionSpec(*leading)

    def trim(self, values: Any, leading: int = 0) -> Any:
        """Return whole values without padded rows; rows follow `leading` dimensions."""
        return values[(slice(None),) * leading + (slice(0, self.rows),)] if self.axes else values

    def row_numbers(self) -> Int[Array, "{self.local_rows}"]:
        """Return the indices, in the whole array, of this device's rows."""
        return lax.axis_index(self.axes) * self.local_rows + jnp.arange(self.local_rows)

    def real_rows(self) -> Bool[Array, "{self.local_rows}"] | None:
        """Return True for each row of this device that is not padding; None if there is no padding."""
        if not self.axes or self.rows in (0, self.local_rows * self._devices()):
            return None
        return self.row_numbers() < self.rows

    def keep_rows(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """Return `values` with zeros in padded rows; unchanged if there is no padding."""
        real = self.real_rows()
        return values if real is None else only_rows(real, values)

    def _devices(self) -> int:
        return math.prod(lax.axis_size(axis) for axis in self.axes)


GLOBAL = RowSharding()


def only_rows(is_wanted: Bool[Array, "rows"], values: Shaped[Array, "rows *row"]) -> Shaped[Array, "rows *row"]:
    """Return `values` with zeros in the rows that are not wanted, in the same type."""
    return jnp.where(is_wanted.reshape(-1, *(1,) * (values.ndim - 1)), values, jnp.asarray(0.0, values.dtype))
