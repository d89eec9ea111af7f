"""Draws on the host: filled block by block, in the order (chain, draw, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array

from phalanx.programs.target import Target
from phalanx.run.blocks import Advanced, Blocks


class HostBlock(NamedTuple):
    """What a block drew.

    Attributes:
        rows: of each group of coordinates, `(slot, chain, device, row)`.
        stats: statistics by name, `(slot, chain)`.
        count: draws of each chain; slots from there on are empty.
    """

    rows: list[np.ndarray]
    stats: dict[str, np.ndarray]
    count: np.ndarray

    @property
    def filled(self) -> np.ndarray:
        """Which slots hold a draw, `(slot, chain)`."""
        return np.arange(len(self.rows[0]))[:, None] < self.count[None]


def fetch_block(blocks: Blocks, advanced: Advanced) -> HostBlock:
    """What a block drew, without the slots that no chain filled."""
    layout, count = blocks.row_layout, np.asarray(advanced.drawn.count)
    rows = []
    for array, width in zip(advanced.drawn.rows, layout.widths, strict=True):
        fetched = fetch_slots(array, int(count.max()))
        rows.append(fetched.reshape(*fetched.shape[:2], fetched.shape[2] // max(width, 1), width))
    return HostBlock(rows, layout.statistics([rows[0][:, :, 0]]), count)


def fetch_slots(array: Array, slots: int) -> np.ndarray:
    """The first `slots` of an array (slot, ...) spread over devices, copied once and only so far."""
    whole = np.empty((slots, *array.shape[1:]), array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[(slice(None), *shard.index[1:])] = np.asarray(shard.data)[:slots]
    return whole


class HostDraws:
    """Arrays for all draws of a run, and how many of them each chain has."""

    def __init__(self, target: Target, num_chains: int, total: int):
        self._target, self.total = target, total
        self._draws: dict[str, np.ndarray] = {}
        self._stats: dict[str, np.ndarray] = {}
        self.counts = np.zeros(num_chains, np.int64)
        self.divergences = 0

    @property
    def count(self) -> int:
        """Draws that every chain has."""
        return int(self.counts.min())

    @property
    def left(self) -> np.ndarray:
        """Draws that each chain lacks."""
        return self.total - self.counts

    def add(self, values: Mapping[str, Array], block: HostBlock) -> None:
        """Store what a block drew; `values` are those of its variables, `(slot, chain, ...)`."""
        filled = block.filled
        for name, array in values.items():
            rows = self._target.trim(name, fetch_slots(array, len(filled)), leading=2)
            self._store(self._draws, name, rows, filled)
        for name, rows in block.stats.items():
            self._store(self._stats, name, rows.astype(STAT_TYPES.get(name, rows.dtype)), filled)
        self.divergences += int(block.stats["diverging"][filled].sum())
        self.counts = self.counts + block.count  # last: an interrupt before this line leaves a shorter, whole record

    def finish(self, names: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Draws so far of the variables `names`, in that order, and statistics; each (chain, draw, ...)."""
        draws = {name: self._draws[name][:, : self.count] for name in names}
        return draws, {name: values[:, : self.count] for name, values in self._stats.items()}

    def _store(self, arrays: dict[str, np.ndarray], name: str, rows: np.ndarray, filled: np.ndarray) -> None:
        if name not in arrays:
            arrays[name] = np.empty((len(self.counts), self.total, *rows.shape[2:]), rows.dtype)
        if filled.all():  # every chain alike, as long as none waits for another
            begin = self.counts[0]
            if (self.counts == begin).all():
                arrays[name][:, begin : begin + len(rows)] = np.swapaxes(rows, 0, 1)
                return
        slot, chain = np.nonzero(filled)
        arrays[name][chain, self.counts[chain] + slot] = rows[slot, chain]


STAT_TYPES = {
    "diverging": np.bool_,
    "num_steps": np.int32,
    "tree_depth": np.int32,
    "reached_max_depth": np.bool_,
}
"""Types of the statistics that are no real numbers; blocks write all of them as such."""
