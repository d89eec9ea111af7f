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
    from jaxtyping import Bool, Float, Integer, Shaped


@dataclass(frozen=True)
class HostBlock:
    """Recorded draws of a block, of all chains or of some.

    Attributes:
        rows: arrays `(slot, chain, device, column)`, one for each group of coordinates.
        count: draws of each of these chains; later slots are empty.
        layout: layout of a row.
    """

    rows: list[Float[np.ndarray, "slots chains _devices _columns"]]
    count: Integer[np.ndarray, "chains"]
    layout: RowLayout

    @classmethod
    def fetched(cls, sinks: SinkState, layout: RowLayout, groups: int | None = None, every: int = 1) -> HostBlock:
        """Return the recorder's draws of all chains, without slots that are empty for all of them.

        Args:
            sinks: state of the recorder.
            layout: layout of its rows.
            groups: number of groups of coordinates to copy; None for all.
            every: copies every `every`-th chain.
        """
        count, (recorded_rows,) = to_host(sinks.count)[::every], sinks.states
        rows = []
        for array, width in zip(recorded_rows[:groups], layout.widths, strict=False):
            host_array = fetch_slots(array[:, ::every] if every > 1 else array, slice(int(count.max())))
            rows.append(host_array.reshape(*host_array.shape[:2], host_array.shape[2] // max(width, 1), width))
        return cls(rows, count, layout)

    @property
    def filled(self) -> Bool[np.ndarray, "slots chains"]:
        """True for slots with a draw."""
        return np.arange(len(self.rows[0]))[:, None] < self.count

    def sample(self) -> Sample:
        """Return the draws in order of chains, which does not depend on the devices."""
        is_filled = self.filled.T
        layout = self.layout
        rows = [np.swapaxes(part, 0, 1)[is_filled] for part in self.rows]
        position, gradient = layout.whole_vectors(rows)
        log_density = np.asarray(layout.total(rows[0][:, 0, layout.start_of_stats :], "log_density").in_double())
        return Sample(position.parts, gradient.parts, log_density, np.nonzero(is_filled)[0])


@dataclass(frozen=True)
class BlockStats:
    """Statistics of a block's recorded draws, of the chains that this process holds; positions stay on the devices.

    Attributes:
        columns: `(slot, chain, column)`.
        count: slots of each of these chains up to its last draw; later ones are empty.
        delivered: draws of each chain that earlier blocks have delivered; the sinks keep them for reducers.
        first: number of slots before the first one in `columns`.
        layout: layout of a row.
    """

    columns: Float[np.ndarray, "slots chains columns"]
    count: Integer[np.ndarray, "chains"]
    delivered: Integer[np.ndarray, "chains"]
    first: int
    layout: RowLayout

    @classmethod
    def fetched(
        cls,
        sinks: SinkState,
        layout: RowLayout,
        counts: Integer[np.ndarray, "all_chains"],
        held_chains: HeldChains,
        delivered: Integer[np.ndarray, "all_chains"] | None = None,
    ) -> BlockStats:
        """Return the statistics of the chains that this process holds.

        Args:
            sinks: state of the recorder.
            layout: layout of its rows.
            counts: draws of each of all chains.
            held_chains: the chains that this process holds.
            delivered: draws of each of all chains that earlier blocks have delivered; None for none.
        """
        count = held_chains.part(counts)
        before = np.zeros_like(count) if delivered is None else held_chains.part(delivered)
        first = int(before.min())
        (rows,) = sinks.states
        columns = fetch_held(rows[0], slice(first, int(count.max())), held_chains, slice(layout.start_of_stats, None))
        return cls(columns, count - first, before - first, first, layout)

    @cached_property
    def filled(self) -> Bool[np.ndarray, "slots chains"]:
        """True for slots with a draw of this block."""
        slot = np.arange(len(self.columns))[:, None]
        return (slot >= self.delivered) & (slot < self.count)

    @property
    def slots(self) -> slice:
        """Slots that `columns` has."""
        return slice(self.first, self.first + len(self.columns))

    @cached_property
    def by_name(self) -> dict[str, Float[np.ndarray, "slots chains"]]:
        """Statistics by name."""
        return self.layout.statistics(self.columns)


def fetch_slots(
    array: Shaped[Array, "all_slots *shape"], slots: slice, columns: slice = slice(None)
) -> Shaped[np.ndarray, "slots *some"]:
    """Return some slots of a sharded array, and some of its last axis, without copying the others on the host."""
    if not array.is_fully_addressable:
        return to_host(array)[slots][..., columns]
    whole = np.empty(_shape(array, slots, columns), array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            _part(whole, shard.index[1:], columns)[...] = np.asarray(shard.data)[slots][..., columns]
    return whole


def fetch_held(
    array: Shaped[Array, "all_slots all_chains *shape"],
    slots: slice,
    held_chains: HeldChains,
    columns: slice = slice(None),
) -> Shaped[np.ndarray, "slots held *some"]:
    """Return some slots, and some of the last axis, of the chains that this process holds, from its own devices."""
    if held_chains.is_whole:
        return fetch_slots(array, slots, columns)
    if held_chains.is_shared:  # rows of a chain may lie in several processes
        assert isinstance(array.sharding, NamedSharding)
        array = jax.jit(_identity, out_shardings=NamedSharding(array.sharding.mesh, PartitionSpec(None, CHAIN)))(array)
    held_values = np.empty(_shape(array, slots, columns, len(held_chains.numbers)), array.dtype)
    indices = set[str]()
    for shard in array.addressable_shards:
        if (where := str(shard.index)) not in indices:  # other devices have copies
            indices.add(where)
            first = int(np.searchsorted(held_chains.numbers, shard.index[1].start or 0))
            chains = slice(first, first + shard.data.shape[1])
            _part(held_values, (chains, *shard.index[2:]), columns)[...] = np.asarray(shard.data)[slots][..., columns]
    return held_values


def _part(
    array: Shaped[np.ndarray, "slots *some"], index: tuple[slice, ...], columns: slice
) -> Shaped[np.ndarray, "slots *part"]:
    """Return the view of `array` that a shard at `index` fills.

    If `array` has only some columns, the shard fills all of these: its last axis is then not sharded.
    """
    return array[(slice(None), *index)] if columns == slice(None) else array[(slice(None), *index[:-1])]


def _shape(array: Array, slots: slice, columns: slice, chains: int | None = None) -> tuple[int, ...]:
    """Return the shape of some slots and columns of an array, with another number of chains if it is given."""
    shape = [len(range(array.shape[0])[slots]), *array.shape[1:]]
    shape[1] = shape[1] if chains is None else chains
    if columns != slice(None):
        shape[-1] = len(range(shape[-1])[columns])
    return tuple(shape)


def _identity(array: Array) -> Array:
    return array


class BlockTotals(NamedTuple):
    """Totals over the draws of a block, of all chains: their number, trajectory steps, divergences and acceptance."""

    draws: int
    steps: int
    divergences: int
    accepted: float

    @classmethod
    def of(cls, block: BlockStats, held_chains: HeldChains) -> BlockTotals:
        """Return the totals, given each process's draws; all processes must call it together."""
        is_filled = block.filled & held_chains.owned
        stats = block.by_name
        sums = [stats[name][is_filled].sum(dtype=np.float64) for name in ("num_steps", "diverging", "acceptance_rate")]
        draws, steps, divergences, total_acceptance = map(
            float, held_chains.total(np.array([is_filled.sum(), *sums], np.float64))
        )
        return cls(int(draws), int(steps), int(divergences), total_acceptance)


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
    (recorded_rows,) = sinks.states
    num_slots, chains, columns = recorded_rows.stats.shape
    vectors = [
        layout.position.of_whole(part, zero=True).parts for part in (recorded_rows.position, recorded_rows.gradient)
    ]
    rows = []
    for group, (length, axes) in enumerate(zip(layout.position.lengths, layout.position.groups, strict=True)):
        devices = layout.position.devices(axes)
        parts = [v[group].reshape(num_slots, chains, devices, length) for v in vectors if v]
        if not group:  # statistics follow the replicated coordinates
            parts.append(recorded_rows.stats.reshape(num_slots, chains, 1, columns))
        whole = np.concatenate(parts, -1)
        empty = np.zeros((slots - num_slots, *whole.shape[1:]), whole.dtype)
        rows.append(np.concatenate([whole, empty]).reshape(slots, chains, devices * whole.shape[-1]))
    return SinkState(sinks.count, (tuple(rows),))
