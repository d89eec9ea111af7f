"""The recorder of draws: each lane has slots, and fills one whenever it ends a draw that is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

Rows = tuple[Array, ...]
"""Draws by group of coordinates."""

TOTALS = ("energy", "log_density")
"""Statistics in two floats."""


@dataclass(frozen=True)
class RowLayout:
    """What is where in rows.

    Attributes:
        position: layout of the vectors.
        parts: vectors in a row: the position, or the position and the gradient.
        stats: names of the statistics. The fine parts of those in two floats are behind all others.
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
        """Lengths of the rows on one device."""
        widths = [length * self.parts for length in self.position.lengths]
        return [widths[0] + len(self.stats) + len(self.totals), *widths[1:]]

    @property
    def start_of_stats(self) -> int:
        """Coordinates before the statistics."""
        return self.parts * self.position.lengths[0]

    def vector(self, rows: Any, part: int) -> Vector:
        """The position (part 0) or gradient (part 1) in the rows of one device, `(..., coordinates)`."""
        found = (r[..., part * n : (part + 1) * n] for r, n in zip(rows, self.position.lengths, strict=False))
        return Vector(tuple(found), self.position)

    def whole_vectors(self, rows: Sequence[np.ndarray]) -> tuple[Vector, Vector]:
        """The position and gradient in rows `(number, device, row)` on the host; no gradient where none is kept."""

        def joined(part: int) -> Vector:
            return jax.tree.map(lambda x: x.reshape(len(x), math.prod(x.shape[1:])), self.vector(rows, part))

        return joined(0), joined(1) if self.parts == 2 else Vector((), self.position)

    def statistics(self, rows: Any) -> dict[str, Any]:
        """The statistics in rows on the host, by name; those in two floats in float64."""
        return {
            name: self.total(rows, name).in_double() if name in TOTALS else self._column(rows, number)
            for number, name in enumerate(self.stats)
        }

    def total(self, rows: Any, name: str) -> Total:
        """A statistic in two floats."""
        fine = len(self.stats) + self.totals.index(name)
        return Total(self._column(rows, self.stats.index(name)), self._column(rows, fine))

    def columns(self, stats: Mapping[str, Any]) -> list[Any]:
        """The inverse of `statistics`, on a device."""
        totals = {name: x if isinstance(x := stats[name], Total) else Total.of(x) for name in self.totals}
        whole = [totals[name].coarse if name in totals else stats[name] for name in self.stats]
        return [*whole, *(total.fine for total in totals.values())]

    def _column(self, rows: Any, number: int) -> Any:
        return rows[0][..., self.start_of_stats + number]


@dataclass(frozen=True)
class Recorder:
    """The sink that stores draws, as flat rows: writing a draw is one operation for each group of coordinates.

    Its state are rows `(slot, chain, row)` for each group. A row is the position, then the gradient where one is kept
    and, with the global coordinates, the statistics. Slots that no draw has filled tell nothing.

    Attributes:
        slots: draws of each lane there is room for.
        layout: of a draw as rows.
        one_by_one: whether lanes write their draws one after the other.
    """

    slots: int
    layout: RowLayout
    one_by_one: bool

    def empty(self, target: LaneTarget, before: Array | None = None) -> Rows:
        """No draws."""
        return tuple(jnp.zeros((self.slots, target.count, width), target.dtype) for width in self.layout.widths)

    def first(self, at: Point, target: LaneTarget) -> Rows:
        """Where lanes are as the first draw of each, without its statistics."""
        rows = [jnp.concatenate(pair, -1)[None] for pair in self._vectors(at)]
        empty = self.empty(target)
        return tuple(lax.dynamic_update_slice(into, row, (0, 0, 0)) for into, row in zip(empty, rows, strict=True))

    def update(self, state: Rows, draws: Draws, target: LaneTarget) -> Rows:
        """With the draws of a tick that are kept."""
        info = draws.info._replace(num_steps=draws.since.num_steps, diverging=draws.since.diverging)
        columns = self.layout.columns({**info._asdict(), "log_density": draws.at.log_density})
        rows = self._vectors(draws.at)
        # one type for all: whole numbers up to 2**24 are exact in float32
        rows[0].append(jnp.stack([column.astype(target.dtype) for column in columns], -1))
        new = tuple(jnp.concatenate(row, -1) for row in rows)
        write = _write_one_by_one if self.one_by_one else _write_together
        return write(state, new, draws.number, draws.kept)

    @property
    def specs(self) -> tuple[PartitionSpec, ...]:
        """Rows of a group of coordinates are spread as these are."""
        return self.layout.position.specs(None, CHAIN)

    def _vectors(self, at: Point) -> list[list[Array]]:
        """What a row begins with, `(lanes, coordinates)`, by group."""
        vectors = [at.position, at.gradient][: self.layout.parts]
        return [list(parts) for parts in zip(*(vector.T.parts for vector in vectors), strict=True)]


def _write_together(buffers: Rows, new: Rows, number: Array, kept: Array) -> Rows:
    # a slot that does not exist is not written to
    slot, lane = jnp.where(kept, number, len(buffers[0])), jnp.arange(len(kept))
    return tuple(
        buffer.at[slot, lane].set(row, mode="drop", unique_indices=True)
        for buffer, row in zip(buffers, new, strict=True)
    )


def _write_one_by_one(buffers: Rows, new: Rows, number: Array, kept: Array) -> Rows:
    """Lane by lane, those that keep a draw alone.

    On a CPU a tick is quickest where all of it is one function; a scatter would not let it be.
    """
    count = len(kept)
    numbers = jnp.arange(count, dtype=jnp.int32)

    def after(lane: Array) -> Array:
        return jnp.min(jnp.where(kept & (numbers > lane), numbers, count))

    def write(carry: tuple[Array, Rows]) -> tuple[Array, Rows]:
        lane, buffers = carry
        rows = (lax.dynamic_slice_in_dim(row, lane, 1)[None] for row in new)
        where = number[lane], lane, jnp.int32(0)
        return after(lane), tuple(
            lax.dynamic_update_slice(buffer, row, where) for buffer, row in zip(buffers, rows, strict=True)
        )

    return lax.while_loop(lambda carry: carry[0] < count, write, (after(jnp.int32(-1)), buffers))[1]
