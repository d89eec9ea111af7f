"""Where the rows of an array live: all of them on every device, or sharded over mesh axes."""

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
    """Where one leaf lives: replicated (no axes), or its rows spread over `axes`.

    Attributes:
        axes: mesh axes the leading dimension is spread over, outermost first.
        rows: rows of the whole leaf; devices hold `ceil(rows / devices)` each, the last ones padded. 0 for a term of
            a log density that needs no row left out.
        local_rows: rows one device holds.
    """

    axes: tuple[str, ...] = ()
    rows: int = 0
    local_rows: int = 0

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape on all devices, without padded rows, of what has this shape on one."""
        return (self.rows, *shape[1:]) if self.axes else shape

    def spec(self, *leading: str | None) -> PartitionSpec:
        """The partition of an array whose first dimensions are `leading` and whose next are rows."""
        return PartitionSpec(*leading, self.axes) if self.axes else PartitionSpec(*leading)

    def trim(self, values: Any, leading: int = 0) -> Any:
        """Whole values without padded rows, which lie behind `leading` dimensions."""
        return values[(slice(None),) * leading + (slice(0, self.rows),)] if self.axes else values

    def row_numbers(self) -> Int[Array, "{self.local_rows}"]:
        """Numbers, in the whole leaf, of the rows this device holds."""
        return lax.axis_index(self.axes) * self.local_rows + jnp.arange(self.local_rows)

    def real_rows(self) -> Bool[Array, "{self.local_rows}"] | None:
        """Which of the rows this device holds are not padded; None where none is."""
        if not self.axes or self.rows in (0, self.local_rows * self._devices()):
            return None
        return self.row_numbers() < self.rows

    def keep_rows(self, values: Shaped[Array, "*shape"], fill: float = 0.0) -> Shaped[Array, "*shape"]:
        """`values` with padded rows replaced by `fill`; unchanged where there is no padding."""
        real = self.real_rows()
        return values if real is None else only_rows(real, values, fill)

    def _devices(self) -> int:
        return math.prod(lax.axis_size(axis) for axis in self.axes)


GLOBAL = RowSharding()


def only_rows(
    wanted: Bool[Array, "rows"], values: Shaped[Array, "rows *row"], fill: float = 0.0
) -> Shaped[Array, "rows *row"]:
    """`values` with the rows that are not wanted replaced by `fill`, in the same type."""
    return jnp.where(wanted.reshape(-1, *(1,) * (values.ndim - 1)), values, jnp.asarray(fill, values.dtype))
