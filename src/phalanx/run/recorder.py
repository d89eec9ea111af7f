"""The recorder of draws: each lane has slots, and fills one whenever it ends a draw that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from phalanx.kernels.driver import Ended
from phalanx.kernels.lanes import Columns, Lanes
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.total import Total
from phalanx.run.sink import Draws

Rows = tuple[Array, ...]
"""Draws by group of coordinates."""

TOTALS = ("energy", "log_density")
"""Statistics in two floats."""


@dataclass(frozen=True)
class RowLayout:
    """What is where in rows.

    Attributes:
        sizes: coordinates of each group, on one device.
        parts: vectors in a row: the position, or the position and the gradient.
        stats: names of the statistics. The fine parts of those in two floats are behind all others.
    """

    sizes: tuple[int, ...]
    parts: int
    stats: tuple[str, ...]

    @property
    def totals(self) -> list[str]:
        """Names of the statistics in two floats."""
        return [name for name in self.stats if name in TOTALS]

    @property
    def widths(self) -> list[int]:
        """Lengths of the rows on one device."""
        widths = [size * self.parts for size in self.sizes]
        return [widths[0] + len(self.stats) + len(self.totals), *widths[1:]]

    def vectors(self, rows: Any, part: int) -> Columns:
        """The positions (part 0) or gradients (part 1) in the rows of one device, `(..., coordinates)` by group."""
        return tuple(r[..., part * size : (part + 1) * size] for r, size in zip(rows, self.sizes, strict=False))

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
        return rows[0][..., self.parts * self.sizes[0] + number]


@dataclass(frozen=True)
class Recorder:
    """The sink that stores draws, as flat rows: writing a draw is one operation for each group of coordinates.

    Its state are rows `(slot, chain, row)` for each group. A row is the position, then the gradient where one is kept
    and, with the global coordinates, the statistics. Slots that no draw has filled tell nothing.

    Attributes:
        slots: draws of each lane there is room for.
        layout: of a draw as rows.
        groups: the mesh axes that coordinates are spread over, by group.
        one_by_one: whether lanes write their draws one after the other.
    """

    slots: int
    layout: RowLayout
    groups: tuple[tuple[str, ...], ...]
    one_by_one: bool

    def empty(self, lanes: Lanes, before: Array | None = None) -> Rows:
        """No draws."""
        return tuple(jnp.zeros((self.slots, lanes.count, width), lanes.dtype) for width in self.layout.widths)

    def first(self, position: Columns, gradient: Columns, lanes: Lanes) -> Rows:
        """Positions `(lanes, coordinates)` and gradients as the first draw of each lane, without its statistics."""
        rows = [jnp.concatenate(pair, -1)[None] for pair in zip(position, gradient, strict=True)]
        empty = self.empty(lanes)
        return tuple(lax.dynamic_update_slice(into, row, (0, 0, 0)) for into, row in zip(empty, rows, strict=True))

    def update(self, state: Rows, draws: Draws, lanes: Lanes) -> Rows:
        """With the draws of a tick that are kept."""
        info = draws.ended.info._replace(num_steps=draws.since.num_steps, diverging=draws.since.diverging)
        new = self._rows({**info._asdict(), "log_density": draws.ended.log_density}, draws.ended, lanes)
        write = _write_one_by_one if self.one_by_one else _write_together
        return write(state, new, draws.number, draws.kept)

    @property
    def specs(self) -> tuple[PartitionSpec, ...]:
        """Rows of a group of coordinates are spread as these are."""
        return tuple(PartitionSpec(None, CHAIN, axes or None) for axes in self.groups)

    def _rows(self, stats: Mapping[str, Any], ended: Ended, lanes: Lanes) -> Rows:
        vectors = [ended.position, ended.gradient][: self.layout.parts]
        rows = [list(parts) for parts in zip(*vectors, strict=True)]
        # one type for all: whole numbers up to 2**24 are exact in float32
        rows[0].append(jnp.stack([column.astype(lanes.dtype) for column in self.layout.columns(stats)], -1))
        return tuple(jnp.concatenate(row, -1) for row in rows)


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
