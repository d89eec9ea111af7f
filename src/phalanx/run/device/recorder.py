"""Sink that records draws: each lane has slots, and fills one with each draw that thinning keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.kernels.protocol.kernel import Point
from phalanx.kernels.protocol.lane_target import LaneTarget
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import Vector, VectorLayout
from phalanx.mesh.total import Total
from phalanx.run.device.sink import Draws

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Rows = tuple[Array, ...]
"""Draws `(slot, lane, column)`, one array for each group of coordinates."""

TOTALS = ("energy", "log_density")
"""Statistics in two floats."""


@dataclass(frozen=True)
class RowLayout:
    """Layout of the columns of recorded draws.

    A row is the position and, if a metric is learned, the gradient; in the first group statistics follow, and then the
    fine parts of the statistics in two floats.

    Attributes:
        position: layout of a position.
        parts: 1 for rows with positions only, 2 with gradients.
        stats: names of the statistics.
    """

    position: VectorLayout
    parts: int
    stats: tuple[str, ...]

    @property
    def totals(self) -> list[str]:
        """Names of the statistics in two floats."""
        return [name for name in self.stats if name in TOTALS]

    @property
    def widths(self) -> list[int]:
        """Number of columns of each group on one device."""
        widths = [length * self.parts for length in self.position.lengths]
        return [widths[0] + len(self.stats) + len(self.totals), *widths[1:]]

    @property
    def start_of_stats(self) -> int:
        """Number of columns before the statistics."""
        return self.parts * self.position.lengths[0]

    def vector(self, rows: Sequence[Array] | Sequence[np.ndarray], part: int) -> Vector:
        """Return the position (part 0) or gradient (part 1) in rows of one device, `(..., coordinates)`."""
        parts = (r[..., part * n : (part + 1) * n] for r, n in zip(rows, self.position.lengths, strict=False))
        return Vector(tuple(parts), self.position)

    def whole_vectors(self, rows: Sequence[Float[np.ndarray, "rows _devices _columns"]]) -> tuple[Vector, Vector]:
        """Return position and gradient in rows of all devices; the gradient is empty if `parts` is 1."""

        def joined(part: int) -> Vector:
            return jax.tree.map(lambda x: x.reshape(len(x), math.prod(x.shape[1:])), self.vector(rows, part))

        return joined(0), joined(1) if self.parts == 2 else Vector((), self.position)

    def statistics(self, columns: Float[np.ndarray, "*rows columns"]) -> dict[str, Any]:
        """Return the statistics in their columns on the host by name; those in two floats as float64."""
        return {
            name: self.total(columns, name).in_double() if name in TOTALS else columns[..., number]
            for number, name in enumerate(self.stats)
        }

    def total(self, columns: Float[np.ndarray, "*rows columns"], name: str) -> Total:
        """Return a statistic in two floats, given the columns of statistics."""
        fine = len(self.stats) + self.totals.index(name)
        return Total(columns[..., self.stats.index(name)], columns[..., fine])

    def columns(self, stats: Mapping[str, Any]) -> list[Array]:
        """Return the columns of statistics on a device: the inverse of `statistics`."""
        totals = {name: x if isinstance(x := stats[name], Total) else Total.of(x) for name in self.totals}
        whole = [totals[name].coarse if name in totals else stats[name] for name in self.stats]
        return [*whole, *(total.fine for total in totals.values())]


@dataclass(frozen=True)
class Recorder:
    """Sink that records draws as rows, so that writing a draw is one operation for each group of coordinates.

    Attributes:
        slots: maximal number of draws of each lane; slots without a draw have arbitrary values.
        layout: layout of a row.
        one_by_one: true if lanes write their draws one after the other.
    """

    slots: int
    layout: RowLayout
    one_by_one: bool

    def empty(self, target: LaneTarget, before: Int[Array, "lanes"] | None = None) -> Rows:
        """Return rows without draws."""
        return tuple(jnp.zeros((self.slots, target.count, width), target.dtype) for width in self.layout.widths)

    def first(self, at: Point, target: LaneTarget) -> Rows:
        """Return rows with the position of each lane as its first draw, without statistics."""
        rows = [jnp.concatenate(pair, -1)[None] for pair in self._vectors(at)]
        empty = self.empty(target)
        return tuple(lax.dynamic_update_slice(into, row, (0, 0, 0)) for into, row in zip(empty, rows, strict=True))

    def update(self, state: Rows, draws: Draws, target: LaneTarget) -> Rows:
        """Return the rows with a tick's kept draws."""
        info = draws.info._replace(num_steps=draws.since.num_steps, diverging=draws.since.diverging)
        columns = self.layout.columns({**info._asdict(), "log_density": draws.at.log_density})
        rows = self._vectors(draws.at)
        # whole numbers up to 2**24 are exact in float32
        rows[0].append(jnp.stack([column.astype(target.dtype) for column in columns], -1))
        new = tuple(jnp.concatenate(row, -1) for row in rows)
        write = _write_one_by_one if self.one_by_one else _write_together
        return write(state, new, draws.number, draws.kept)

    @property
    def specs(self) -> tuple[PartitionSpec, ...]:
        """Partition of the rows: a group is sharded as its coordinates are."""
        return self.layout.position.specs(None, CHAIN)

    def _vectors(self, at: Point) -> list[list[Array]]:
        """Return position and gradient `(lanes, coordinates)` by group."""
        vectors = [at.position, at.gradient][: self.layout.parts]
        return [list(parts) for parts in zip(*(vector.T.parts for vector in vectors), strict=True)]


def _write_together(buffers: Rows, new: Rows, number: Int[Array, "lanes"], keeps_draw: Bool[Array, "lanes"]) -> Rows:
    # writes to a slot out of range are dropped
    slot = jnp.where(keeps_draw, number, len(buffers[0]))
    lane = jnp.arange(len(keeps_draw))
    return tuple(
        buffer.at[slot, lane].set(row, mode="drop", unique_indices=True)
        for buffer, row in zip(buffers, new, strict=True)
    )


def _write_one_by_one(buffers: Rows, new: Rows, number: Int[Array, "lanes"], keeps_draw: Bool[Array, "lanes"]) -> Rows:
    """Write draws lane by lane, for the lanes that keep one.

    On a CPU a tick is fastest if XLA compiles all of it to one function, which a scatter prevents.
    """
    count = len(keeps_draw)
    numbers = jnp.arange(count, dtype=jnp.int32)

    def after(lane: Array) -> Array:
        return jnp.min(jnp.where(keeps_draw & (numbers > lane), numbers, count))

    def write(carry: tuple[Array, Rows]) -> tuple[Array, Rows]:
        lane, buffers = carry
        rows = (lax.dynamic_slice_in_dim(row, lane, 1)[None] for row in new)
        where = number[lane], lane, jnp.int32(0)
        return after(lane), tuple(
            lax.dynamic_update_slice(buffer, row, where) for buffer, row in zip(buffers, rows, strict=True)
        )

    return lax.while_loop(lambda carry: carry[0] < count, write, (after(jnp.int32(-1)), buffers))[1]
