"""Draws on the host: filled block by block, in the order (chain, draw, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from phalanx.adaptation.tuner import Sample
from phalanx.mesh.position import Vector
from phalanx.mesh.processes import to_host
from phalanx.mesh.total import Total
from phalanx.run.device.advance import Sunk
from phalanx.run.device.blocks import Blocks
from phalanx.run.device.recorder import RowLayout
from phalanx.run.state import Stored

GROWTH = 2
"""How much more room is made for draws each time it does not suffice."""


@dataclass(frozen=True)
class HostBlock:
    """What a block drew.

    Attributes:
        rows: of each group of coordinates, `(slot, chain, device, row)`.
        count: draws of each chain; slots from there on are empty.
        layout: of a row.
    """

    rows: list[np.ndarray]
    count: np.ndarray
    layout: RowLayout

    @classmethod
    def fetched(cls, sunk: Sunk, layout: RowLayout, groups: int | None = None, every: int = 1) -> HostBlock:
        """What the recorder has, without the slots that no chain filled.

        Args:
            sunk: the recorder's.
            layout: of its rows.
            groups: of coordinates that are fetched; None for all.
            every: one in so many chains is.
        """
        count, (recorded,) = to_host(sunk.count)[::every], sunk.states
        rows = []
        for array, width in zip(recorded[:groups], layout.widths, strict=False):
            fetched = fetch_slots(array[:, ::every] if every > 1 else array, int(count.max()))
            rows.append(fetched.reshape(*fetched.shape[:2], fetched.shape[2] // max(width, 1), width))
        return cls(rows, count, layout)

    @cached_property
    def filled(self) -> np.ndarray:
        """Which slots hold a draw, `(slot, chain)`."""
        return np.arange(len(self.rows[0]))[:, None] < self.count[None]

    @property
    def numbers(self) -> np.ndarray:
        """Which draw of its chain each slot holds, `(slot, chain)`."""
        return np.broadcast_to(np.arange(len(self.filled))[:, None], self.filled.shape)

    @cached_property
    def stats(self) -> dict[str, np.ndarray]:
        """Statistics by name, `(slot, chain)`."""
        return self.layout.statistics([self.rows[0][:, :, 0]])

    def sample(self) -> Sample:
        """The draws one after the other, chain by chain, so that their order does not depend on the devices."""
        filled, layout = self.filled.T, self.layout
        rows = [np.swapaxes(part, 0, 1)[filled] for part in self.rows]
        position, gradient = layout.whole_vectors(rows)
        log_density = np.asarray(layout.total([rows[0][:, 0]], "log_density").in_double())
        return Sample(position.parts, gradient.parts, log_density, np.nonzero(filled)[0])


def fetch_slots(array: Array, slots: int) -> np.ndarray:
    """The first `slots` of an array (slot, ...) spread over devices, copied once and only so far."""
    if not array.is_fully_addressable:
        return to_host(array)[:slots]
    whole = np.empty((slots, *array.shape[1:]), array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[(slice(None), *shard.index[1:])] = np.asarray(shard.data)[:slots]
    return whole


class Latest(NamedTuple):
    """The last draw kept of each chain.

    Attributes:
        position, gradient: `(chain, coordinate)`; a gradient without parts where none is kept.
        log_density: there, `(chain,)`.
    """

    position: Vector
    gradient: Vector
    log_density: Total

    @classmethod
    def after(cls, block: HostBlock, before: Latest | None) -> Latest | None:
        """Those after a block, in which some chains may have ended no draw."""
        chain, layout = np.flatnonzero(block.count), block.layout
        if not len(chain):
            return before
        rows = [part[block.count[chain] - 1, chain] for part in block.rows]
        position, gradient = layout.whole_vectors(rows)

        def put(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            whole = old.copy()
            whole[chain] = new
            return whole

        new = cls(position, gradient, layout.total([rows[0][:, 0]], "log_density"))
        if before is None:
            before = jax.tree.map(lambda part: np.zeros((len(block.count), *part.shape[1:]), part.dtype), new)
        return jax.tree.map(put, before, new)


class HostDraws:
    """Draws of a run: arrays that grow as they fill, and how many draws each chain has.

    Args:
        blocks: the run.
        total: draws of each chain to store, at most.
        room: draws of each chain to make room for at first.
        stored: draws there are already.
        latest: the last draw of each chain so far.
    """

    def __init__(self, blocks: Blocks, total: int, room: int, stored: Stored, latest: Latest | None):
        self._target, self.total, self._room = blocks.target, total, room
        self._draws, self._stats = dict(stored.draws), dict(stored.stats)
        self.counts, self.latest = stored.counts, latest
        self.divergences = stored.divergences

    @property
    def count(self) -> int:
        """Draws that every chain has."""
        return int(self.counts.min())

    @property
    def left(self) -> np.ndarray:
        """Draws that each chain lacks."""
        return np.maximum(self.total - self.counts, 0)

    def add(self, values: Mapping[str, Array], block: HostBlock) -> None:
        """Store what a block drew; `values` are those of its variables, `(slot, chain, ...)`."""
        filled = block.filled
        for name, array in values.items():
            rows = self._target.trim(name, fetch_slots(array, len(filled)), leading=2)
            self._store(self._draws, name, rows, filled)
        for name, rows in block.stats.items():
            self._store(self._stats, name, rows.astype(STAT_TYPES.get(name, rows.dtype)), filled)
        divergences = self.divergences + int(block.stats["diverging"][filled].sum())
        counts, latest = self.counts + block.count, Latest.after(block, self.latest)
        # last, and together: an interrupt before this line leaves a shorter, whole record
        self.counts, self.latest, self.divergences = counts, latest, divergences

    def finish(self, names: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Draws so far of the variables `names`, in that order, and statistics; each (chain, draw, ...)."""
        draws = {name: self._draws[name][:, : self.count] for name in names}
        return draws, {name: values[:, : self.count] for name, values in self._stats.items()}

    @property
    def stored(self) -> Stored:
        """All of it, as a value: without room, so that what is added later goes elsewhere."""
        most = int(self.counts.max())
        draws, stats = ({name: v[:, :most] for name, v in of.items()} for of in (self._draws, self._stats))
        return Stored(draws, stats, self.counts, self.divergences)

    def _store(self, arrays: dict[str, np.ndarray], name: str, rows: np.ndarray, filled: np.ndarray) -> None:
        needed = int((self.counts + filled.sum(0)).max())
        arrays[name] = into = self._with_room(arrays.get(name), needed, rows)
        if filled.all():  # every chain alike, as long as none waits for another
            begin = self.counts[0]
            if (self.counts == begin).all():
                into[:, begin : begin + len(rows)] = np.swapaxes(rows, 0, 1)
                return
        slot, chain = np.nonzero(filled)
        into[chain, self.counts[chain] + slot] = rows[slot, chain]

    def _with_room(self, array: np.ndarray | None, needed: int, rows: np.ndarray) -> np.ndarray:
        """An array with room for `needed` draws of each chain, and for more the more there are."""
        has = 0 if array is None else array.shape[1]
        if array is not None and has >= needed:
            return array
        room = max(needed, min(self.total, max(self._room, GROWTH * has)))
        larger = np.empty((len(self.counts), room, *rows.shape[2:]), rows.dtype)
        if array is not None:
            larger[:, :has] = array
        return larger


STAT_TYPES = {
    "diverging": np.bool_,
    "num_steps": np.int32,
    "tree_depth": np.int32,
    "reached_max_depth": np.bool_,
}
"""Types of the statistics that are no real numbers; blocks write all of them as such."""
