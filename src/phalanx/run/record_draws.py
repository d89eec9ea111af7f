"""Recording draws inside a block: each lane has slots, and fills one whenever it ends a draw that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from phalanx.kernels.driver import Ended
from phalanx.kernels.lanes import Columns, Lanes
from phalanx.mesh.total import Total

TOTALS = ("energy", "log_density")
"""Statistics in two floats."""


class Partial(NamedTuple):
    """Draws of each lane since the last one kept: how many, and what is added up over them."""

    draws: Any
    num_steps: Any
    diverging: Any

    @classmethod
    def none(cls, count: int) -> Partial:
        """Of `count` lanes that have just kept one."""
        return cls(jnp.zeros(count, jnp.int32), jnp.zeros(count, jnp.int32), jnp.zeros(count, bool))


class Drawn(NamedTuple):
    """Draws of a block, as flat rows: writing a draw is one operation for each group of coordinates.

    Attributes:
        rows: for each group, `(slot, chain, row)`. A row is the position, then the gradient where one is kept and,
            with the global coordinates, the statistics.
        count: draws of each chain; slots from there on are empty.
    """

    rows: Any
    count: Any


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
        return tuple(r[..., part * size : (part + 1) * size] for r, size in zip(rows, self.sizes, strict=True))

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
class DrawRecorder:
    """Writes the draws of a block.

    Attributes:
        lanes: the lanes of a device.
        slots: draws of each lane there is room for.
        layout: of a draw as rows.
        on_cpu: whether the device is one.
    """

    lanes: Lanes
    slots: int
    layout: RowLayout
    on_cpu: bool

    def empty(self) -> Drawn:
        """No draws."""
        shape = (self.slots, self.lanes.count)
        rows = tuple(jnp.zeros((*shape, width), self.lanes.dtype) for width in self.layout.widths)
        return Drawn(rows, jnp.zeros(self.lanes.count, jnp.int32))

    def add(self, partial: Partial, drawn: Drawn, ended: Ended, active: Array, thin: Array) -> tuple[Partial, Drawn]:
        """Record the draws that have ended, every `thin`-th of each lane."""
        done = ended.done & active
        since = Partial(
            partial.draws + done,
            partial.num_steps + jnp.where(done, ended.info.num_steps, 0),
            partial.diverging | done & ended.info.diverging,
        )
        kept = since.draws == thin
        info = ended.info._replace(num_steps=since.num_steps, diverging=since.diverging)
        new = self._rows({**info._asdict(), "log_density": ended.log_density}, ended)
        write = self._write_one_by_one if self.on_cpu else self._write_together
        rows = write(drawn, new, kept)
        partial = jax.tree.map(lambda value: jnp.where(kept, jnp.zeros_like(value), value), since)
        return partial, Drawn(rows, drawn.count + kept)

    def _write_together(self, drawn: Drawn, new: Sequence[Array], kept: Array) -> tuple[Array, ...]:
        # a slot that does not exist is not written to
        slot, lane = jnp.where(kept, drawn.count, self.slots), jnp.arange(self.lanes.count)
        return tuple(
            buffer.at[slot, lane].set(row, mode="drop", unique_indices=True)
            for buffer, row in zip(drawn.rows, new, strict=True)
        )

    def _write_one_by_one(self, drawn: Drawn, new: Sequence[Array], kept: Array) -> tuple[Array, ...]:
        """Lane by lane, those that keep a draw alone.

        On a CPU a tick is quickest where all of it is one function; a scatter would not let it be.
        """
        numbers = jnp.arange(self.lanes.count, dtype=jnp.int32)

        def after(lane: Array) -> Array:
            return jnp.min(jnp.where(kept & (numbers > lane), numbers, self.lanes.count))

        def write(carry: tuple[Array, tuple[Array, ...]]) -> tuple[Array, tuple[Array, ...]]:
            lane, buffers = carry
            rows = (lax.dynamic_slice_in_dim(row, lane, 1)[None] for row in new)
            where = drawn.count[lane], lane, jnp.int32(0)
            return after(lane), tuple(
                lax.dynamic_update_slice(buffer, row, where) for buffer, row in zip(buffers, rows, strict=True)
            )

        return lax.while_loop(lambda carry: carry[0] < self.lanes.count, write, (after(jnp.int32(-1)), drawn.rows))[1]

    def _rows(self, stats: Mapping[str, Any], ended: Ended) -> list[Array]:
        vectors = [ended.position, ended.gradient][: self.layout.parts]
        rows = [list(parts) for parts in zip(*vectors, strict=True)]
        # one type for all: whole numbers up to 2**24 are exact in float32
        rows[0].append(jnp.stack([column.astype(self.lanes.dtype) for column in self.layout.columns(stats)], -1))
        return [jnp.concatenate(row, -1) for row in rows]
