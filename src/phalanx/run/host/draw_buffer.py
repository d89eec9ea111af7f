"""Draw buffer: stored draws on the host in arrays `(chain, draw, ...)` with room for later draws.

All states of a run share these arrays; a later state has filled more of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jax import Array

from phalanx.density.target import Target
from phalanx.run.host.recorded import HostBlock, fetch_slots
from phalanx.run.state import Stored

if TYPE_CHECKING:
    from jaxtyping import Bool, Integer, Shaped

GROWTH = 2
"""Factor by which a full array grows."""

STAT_TYPES = {
    "diverging": np.bool_,
    "num_steps": np.int32,
    "tree_depth": np.int32,
    "reached_max_depth": np.bool_,
}
"""Types of statistics that are not real numbers; blocks record all statistics as floats."""


@dataclass(frozen=True)
class DrawBuffer:
    """Writer of a run's draws.

    Attributes:
        target: the model.
        total: maximal number of draws of each chain.
        room: initial room, in draws of each chain.
    """

    target: Target
    total: int
    room: int

    def left(self, stored: Stored) -> Integer[np.ndarray, "chains"]:
        """Return the number of draws that each chain lacks."""
        return np.maximum(self.total - stored.counts, 0)

    def with_block(self, stored: Stored, values: Mapping[str, Array], block: HostBlock) -> Stored:
        """Return the stored draws after a block, whose variables have the values `(slot, chain, ...)`."""
        filled, draws, stats = block.filled, dict(stored.draws), dict(stored.stats)
        for name, array in values.items():
            rows = self.target.trim(name, fetch_slots(array, len(filled)), leading=2)
            draws[name] = self._written(draws.get(name), stored.counts - stored.moved, rows, filled)
        for name, rows in block.stats.items():
            rows = rows.astype(STAT_TYPES.get(name, rows.dtype))
            stats[name] = self._written(stats.get(name), stored.counts - stored.moved, rows, filled)
        divergences = stored.divergences + int(block.stats["diverging"][filled].sum())
        return Stored(draws, stats, stored.counts + block.count, divergences, stored.moved)

    def _written(
        self, array: Shaped[np.ndarray, "chains room *shape"] | None, counts: Integer[np.ndarray, "chains"],
        rows: Shaped[np.ndarray, "slots chains *shape"], filled: Bool[np.ndarray, "slots chains"],
    ) -> Shaped[np.ndarray, "chains new_room *shape"]:  # fmt: skip
        into = self._with_room(array, int((counts + filled.sum(0)).max()), rows)
        if filled.all() and (counts == counts[0]).all():  # no chain is ahead of another
            into[:, counts[0] : counts[0] + len(rows)] = np.swapaxes(rows, 0, 1)
        else:
            slot, chain = np.nonzero(filled)
            into[chain, counts[chain] + slot] = rows[slot, chain]
        return into

    def _with_room(
        self, array: Shaped[np.ndarray, "chains room *shape"] | None, needed: int,
        rows: Shaped[np.ndarray, "slots chains *shape"],
    ) -> Shaped[np.ndarray, "chains new_room *shape"]:  # fmt: skip
        """Return an array with room for at least `needed` draws of each chain."""
        has = 0 if array is None else array.shape[1]
        if array is not None and has >= needed:
            return array
        room = max(needed, min(self.total, max(self.room, GROWTH * has)))
        larger = np.empty((rows.shape[1], room, *rows.shape[2:]), rows.dtype)
        if array is not None:
            larger[:, :has] = array
        return larger
