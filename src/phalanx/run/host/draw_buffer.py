"""Draw buffer: stored draws on the host in arrays `(chain, draw, ...)` with room for later draws.

States of a run share these arrays until they are full or draws move to a store; later states then have new ones. In a
run of several processes the arrays have the chains that the process holds, and room for as many draws as the chain with
most draws has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jax import Array

from phalanx.density.target import Target
from phalanx.mesh.chains import HeldChains
from phalanx.programs.centring import CENTRING
from phalanx.run.host.recorded import BlockStats, fetch_held
from phalanx.run.state import LateCopy, Stored

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


class DrawIndices(NamedTuple):
    """Indices of a block's draws in arrays `(chain, draw, ...)`, the same for all variables.

    Attributes:
        first: number of the first slot's draw if all chains are aligned; None otherwise.
        chain, draw: indices of the draws, chain by chain, so that writing is fast.
        row: number of each among the slots, `slot * chains + chain`.
    """

    first: int | None
    chain: Integer[np.ndarray, "draws"]
    draw: Integer[np.ndarray, "draws"]
    row: Integer[np.ndarray, "draws"]

    @classmethod
    def of(cls, is_filled: Bool[np.ndarray, "slots held"], counts: Integer[np.ndarray, "held"]) -> DrawIndices:
        """Return the indices, given the number of the draw that a chain's first slot holds, or would hold."""
        if is_filled.all() and (counts == counts[0]).all():
            none = np.zeros(0, np.int64)
            return cls(int(counts[0]), none, none, none)
        chain, slot = np.nonzero(is_filled.T)
        return cls(None, chain, counts[chain] + slot, slot * len(counts) + chain)

    def write(
        self, rows: Shaped[np.ndarray, "slots held *shape"], into: Shaped[np.ndarray, "held room *shape"]
    ) -> None:
        """Write the draws into an array."""
        if self.first is not None:
            into[:, self.first : self.first + len(rows)] = np.swapaxes(rows, 0, 1)
        else:
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])
            into[self.chain, self.draw] = np.take(flat, self.row, axis=0)


@dataclass(frozen=True)
class DrawBuffer:
    """Writer of recorded draws into the draw buffer, the arrays of `Stored`.

    Attributes:
        target: the model.
        held_chains: the chains that this process holds.
        total: maximal number of draws of each chain.
        room: initial room, in draws of each chain.
    """

    target: Target
    held_chains: HeldChains
    total: int
    room: int

    def num_missing(self, stored_draws: Stored) -> Integer[np.ndarray, "chains"]:
        """Return the number of draws that each chain still has to make."""
        return np.maximum(self.total - stored_draws.counts, 0)

    def with_block(
        self,
        stored_draws: Stored,
        values: Mapping[str, Array],
        block: BlockStats,
        counts: Integer[np.ndarray, "chains"],
        divergences: int,
    ) -> Stored:
        """Return the stored draws after a block, which are copied by `Stored.settle`.

        Args:
            stored_draws: the draws before.
            values: values `(slot, chain, ...)` of the variables on the devices, by the names of `Blocks.constrain`.
            block: statistics of the block.
            counts: number of its draws, of each of all chains.
            divergences: number of divergent ones.
        """
        stored_draws.settle()
        draws = dict(stored_draws.draws)
        stats = dict(stored_draws.stats)
        lengths = stored_draws.counts - stored_draws.moved

        def copy() -> None:
            is_filled = block.filled
            of_variables = dict(values)
            stored_stats = block.by_name
            indices = DrawIndices.of(is_filled, self.held_chains.part(lengths) - block.delivered)
            num_draws = int((lengths + counts).max())
            if (jacobian := of_variables.pop(CENTRING, None)) is not None:
                # the density is that of the model's own positions
                less = fetch_held(jacobian, block.slots, self.held_chains)
                stored_stats = {**stored_stats, "log_density": stored_stats["log_density"] - less}
            for name, array in of_variables.items():
                rows = self.target.trim(name, fetch_held(array, block.slots, self.held_chains), leading=2)
                draws[name] = self._written(draws.get(name), indices, rows, num_draws)
            for name, rows in stored_stats.items():
                rows = rows.astype(STAT_TYPES.get(name, rows.dtype))
                stats[name] = self._written(stats.get(name), indices, rows, num_draws)

        late = LateCopy(copy)
        if self.held_chains.is_shared:  # processes exchange rows by a program, which must not run beside the next block
            late.finish()
        return Stored(
            draws, stats, stored_draws.counts + counts, stored_draws.divergences + divergences, stored_draws.moved, late
        )

    def _written(
        self,
        array: Shaped[np.ndarray, "held room *shape"] | None,
        indices: DrawIndices,
        rows: Shaped[np.ndarray, "slots held *shape"],
        num_draws: int,
    ) -> Shaped[np.ndarray, "held new_room *shape"]:
        into = self._with_room(array, num_draws, rows)
        indices.write(rows, into)
        return into

    def _with_room(
        self,
        array: Shaped[np.ndarray, "held room *shape"] | None,
        num_draws: int,
        rows: Shaped[np.ndarray, "slots held *shape"],
    ) -> Shaped[np.ndarray, "held new_room *shape"]:
        """Return an array with room for at least `num_draws` draws of each chain."""
        has = 0 if array is None else array.shape[1]
        if array is not None and has >= num_draws:
            return array
        room = max(num_draws, min(self.total, max(self.room, GROWTH * has)))
        larger = np.empty((rows.shape[1], room, *rows.shape[2:]), rows.dtype)
        if array is not None:
            larger[:, :has] = array
        return larger
