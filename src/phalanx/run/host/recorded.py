"""Recorded draws of one block, copied to the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.adaptation.tuner import Sample
from phalanx.mesh.chains import HeldChains
from phalanx.mesh.devices import CHAIN
from phalanx.mesh.position import ByVariable
from phalanx.mesh.processes import to_host
from phalanx.run.device.advance import SinkState
from phalanx.run.device.recorder import RowLayout

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Integer, Shaped


@dataclass(frozen=True)
class HostBlock:
    """Recorded draws of a block, of all chains or of those that this process holds.

    Attributes:
        rows: arrays `(slot, chain, device, column)`, one for each group of coordinates.
        count: draws of each of these chains; later slots are empty.
        layout: layout of a row.
        known: number of each chain's first draws that are those of blocks before, which the sinks still hold.
        first: number of slots before the first one in `rows`.
    """

    rows: list[Float[np.ndarray, "slots chains _devices _columns"]]
    count: Integer[np.ndarray, "chains"]
    layout: RowLayout
    known: Integer[np.ndarray, "chains"] | int = 0
    first: int = 0

    @classmethod
    def fetched(cls, sinks: SinkState, layout: RowLayout, groups: int | None = None, every: int = 1) -> HostBlock:
        """Return the recorder's draws of all chains, without slots that are empty for all of them.

        Args:
            sinks: state of the recorder.
            layout: layout of its rows.
            groups: number of groups of coordinates to copy; None for all.
            every: copies every `every`-th chain.
        """
        count, (recorded,) = to_host(sinks.count)[::every], sinks.states
        rows = []
        for array, width in zip(recorded[:groups], layout.widths, strict=False):
            fetched = fetch_slots(array[:, ::every] if every > 1 else array, slice(int(count.max())))
            rows.append(fetched.reshape(*fetched.shape[:2], fetched.shape[2] // max(width, 1), width))
        return cls(rows, count, layout)

    @classmethod
    def held(
        cls,
        sinks: SinkState,
        layout: RowLayout,
        counts: Integer[np.ndarray, "all_chains"],
        held: HeldChains,
        known: Integer[np.ndarray, "all_chains"] | None = None,
    ) -> HostBlock:
        """Return the recorder's draws of the chains that this process holds.

        Args:
            sinks: state of the recorder.
            layout: layout of its rows.
            counts: draws of each of all chains.
            held: the chains that this process holds.
            known: draws of each of all chains that are those of blocks before; None for none.
        """
        count, (recorded,), rows = held.part(counts), sinks.states, []
        before = np.zeros_like(count) if known is None else held.part(known)
        first = int(before.min())
        for array, width in zip(recorded, layout.widths, strict=True):
            fetched = fetch_held(array, slice(first, int(count.max())), held)
            rows.append(fetched.reshape(*fetched.shape[:2], fetched.shape[2] // max(width, 1), width))
        return cls(rows, count - first, layout, before - first, first)

    @cached_property
    def filled(self) -> Bool[np.ndarray, "slots chains"]:
        """True for slots with a draw of this block."""
        slot = np.arange(len(self.rows[0]))[:, None]
        return (slot >= self.known) & (slot < self.count)

    @property
    def slots(self) -> slice:
        """Slots that `rows` has."""
        return slice(self.first, self.first + len(self.rows[0]))

    @property
    def numbers(self) -> Int[np.ndarray, "slots chains"]:
        """Number of the draw in each slot, counted by chain within the block."""
        return np.broadcast_to(np.arange(len(self.filled))[:, None], self.filled.shape)

    @cached_property
    def stats(self) -> dict[str, Float[np.ndarray, "slots chains"]]:
        """Statistics by name."""
        return self.layout.statistics([self.rows[0][:, :, 0]])

    def sample(self) -> Sample:
        """Return the draws in order of chains, which does not depend on the devices."""
        filled = self.filled.T
        layout = self.layout
        rows = [np.swapaxes(part, 0, 1)[filled] for part in self.rows]
        position, gradient = layout.whole_vectors(rows)
        log_density = np.asarray(layout.total([rows[0][:, 0]], "log_density").in_double())
        return Sample(position.parts, gradient.parts, log_density, np.nonzero(filled)[0])


def fetch_slots(array: Shaped[Array, "all_slots *shape"], slots: slice) -> Shaped[np.ndarray, "slots *shape"]:
    """Return some slots of a sharded array, without copying the others to the host."""
    if not array.is_fully_addressable:
        return to_host(array)[slots]
    whole = np.empty((_length(slots), *array.shape[1:]), array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[(slice(None), *shard.index[1:])] = np.asarray(shard.data)[slots]
    return whole


def fetch_held(
    array: Shaped[Array, "all_slots all_chains *shape"], slots: slice, held: HeldChains
) -> Shaped[np.ndarray, "slots held *shape"]:
    """Return some slots of the chains that this process holds, copied from its own devices."""
    if held.is_whole:
        return fetch_slots(array, slots)
    if held.is_shared:  # rows of a chain may lie in several processes
        assert isinstance(array.sharding, NamedSharding)
        array = jax.jit(_identity, out_shardings=NamedSharding(array.sharding.mesh, PartitionSpec(None, CHAIN)))(array)
    own = np.empty((_length(slots), len(held.numbers), *array.shape[2:]), array.dtype)
    known = set[str]()
    for shard in array.addressable_shards:
        if (where := str(shard.index)) not in known:  # other devices have copies
            known.add(where)
            first = int(np.searchsorted(held.numbers, shard.index[1].start or 0))
            chains = slice(first, first + shard.data.shape[1])
            own[(slice(None), chains, *shard.index[2:])] = np.asarray(shard.data)[slots]
    return own


def _length(slots: slice) -> int:
    return slots.stop - (slots.start or 0)


def _identity(array: Array) -> Array:
    return array


class BlockTotals(NamedTuple):
    """Totals over the draws of a block, of all chains: their number, trajectory steps, divergences and acceptance."""

    draws: int
    steps: int
    divergences: int
    accepted: float

    @classmethod
    def of(cls, block: HostBlock, held: HeldChains) -> BlockTotals:
        """Return the totals, given each process's draws; all processes must call it together."""
        filled = block.filled & held.owned
        stats = block.stats
        sums = [stats[name][filled].sum(dtype=np.float64) for name in ("num_steps", "diverging", "acceptance_rate")]
        draws, steps, divergences, accepted = map(float, held.total(np.array([filled.sum(), *sums], np.float64)))
        return cls(int(draws), int(steps), int(divergences), accepted)


class Recorded(NamedTuple):
    """Recorded rows as arrays that depend on no mesh.

    Attributes:
        position, gradient: by variable, `(slot * chain, ...)`; the gradient is empty if rows have none.
        stats: the columns of statistics.
    """

    position: ByVariable
    gradient: ByVariable
    stats: Float[np.ndarray, "slots chains columns"]


def rows_by_variable(sinks: SinkState, layout: RowLayout) -> SinkState:
    """Return the recorder's sinks as arrays that depend on no mesh, without empty slots."""
    block = HostBlock.fetched(sinks, layout)
    rows = [part.reshape(part.shape[0] * part.shape[1], *part.shape[2:]) for part in block.rows]
    position, gradient = (vector.by_variable() for vector in layout.whole_vectors(rows))
    return SinkState(block.count, (Recorded(position, gradient, block.rows[0][:, :, 0, layout.start_of_stats :]),))


def rows_of(sinks: SinkState, layout: RowLayout, slots: int) -> SinkState:
    """Return the inverse of `rows_by_variable` on the host, filled up to `slots` slots."""
    (recorded,) = sinks.states
    filled, chains, columns = recorded.stats.shape
    vectors = [layout.position.of_whole(part, zero=True).parts for part in (recorded.position, recorded.gradient)]
    rows = []
    for group, (length, axes) in enumerate(zip(layout.position.lengths, layout.position.groups, strict=True)):
        devices = layout.position.devices(axes)
        parts = [v[group].reshape(filled, chains, devices, length) for v in vectors if v]
        if not group:  # statistics follow the replicated coordinates
            parts.append(recorded.stats.reshape(filled, chains, 1, columns))
        whole = np.concatenate(parts, -1)
        empty = np.zeros((slots - filled, *whole.shape[1:]), whole.dtype)
        rows.append(np.concatenate([whole, empty]).reshape(slots, chains, devices * whole.shape[-1]))
    return SinkState(sinks.count, (tuple(rows),))
