"""Draw buffer: draws on the host in the order (chain, draw, ...), in arrays that have room for those to come.

States of a run share these arrays. A later state has more draws in them, behind those of the earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jax import Array

from phalanx.density.target import Target
from phalanx.run.host.recorded import HostBlock, fetch_slots
from phalanx.run.state import Stored

GROWTH = 2
"""How much more room is made for draws each time it does not suffice."""

STAT_TYPES = {
    "diverging": np.bool_,
    "num_steps": np.int32,
    "tree_depth": np.int32,
    "reached_max_depth": np.bool_,
}
"""Types of the statistics that are no real numbers; blocks write all of them as such."""


@dataclass(frozen=True)
class DrawBuffer:
    """Writer of a run's draws.

    Attributes:
        target: the model.
        total: draws of each chain to store, at most.
        room: draws of each chain to make room for at first.
    """

    target: Target
    total: int
    room: int

    def left(self, stored: Stored) -> np.ndarray:
        """Return the draws that each chain lacks."""
        return np.maximum(self.total - stored.counts, 0)

    def with_block(self, stored: Stored, values: Mapping[str, Array], block: HostBlock) -> Stored:
        """Return the draws with those of a block; `values` are those of its variables, `(slot, chain, ...)`."""
        filled, draws, stats = block.filled, dict(stored.draws), dict(stored.stats)
        for name, array in values.items():
            rows = self.target.trim(name, fetch_slots(array, len(filled)), leading=2)
            draws[name] = self._written(draws.get(name), stored.counts, rows, filled)
        for name, rows in block.stats.items():
            rows = rows.astype(STAT_TYPES.get(name, rows.dtype))
            stats[name] = self._written(stats.get(name), stored.counts, rows, filled)
        divergences = stored.divergences + int(block.stats["diverging"][filled].sum())
        return Stored(draws, stats, stored.counts + block.count, divergences)

    def _written(
        self, array: np.ndarray | None, counts: np.ndarray, rows: np.ndarray, filled: np.ndarray
    ) -> np.ndarray:  # fmt: skip
        into = self._with_room(array, int((counts + filled.sum(0)).max()), rows)
        if filled.all() and (counts == counts[0]).all():  # no chain is ahead of another
            into[:, counts[0] : counts[0] + len(rows)] = np.swapaxes(rows, 0, 1)
        else:
            slot, chain = np.nonzero(filled)
            into[chain, counts[chain] + slot] = rows[slot, chain]
        return into

    def _with_room(self, array: np.ndarray | None, needed: int, rows: np.ndarray) -> np.ndarray:
        """Return an array with room for `needed` draws of each chain, and for more the more there are."""
        has = 0 if array is None else array.shape[1]
        if array is not None and has >= needed:
            return array
        room = max(needed, min(self.total, max(self.room, GROWTH * has)))
        larger = np.empty((rows.shape[1], room, *rows.shape[2:]), rows.dtype)
        if array is not None:
            larger[:, :has] = array
        return larger
