"""Recorded draws of one block, copied to the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from phalanx.adaptation.tuner import Sample
from phalanx.mesh.processes import to_host
from phalanx.run.device.advance import SinkState
from phalanx.run.device.recorder import RowLayout


@dataclass(frozen=True)
class HostBlock:
    """Draws of a block.

    Attributes:
        rows: of each group of coordinates, `(slot, chain, device, row)`.
        count: draws of each chain; slots from there on are empty.
        layout: of a row.
    """

    rows: list[np.ndarray]
    count: np.ndarray
    layout: RowLayout

    @classmethod
    def fetched(cls, sinks: SinkState, layout: RowLayout, groups: int | None = None, every: int = 1) -> HostBlock:
        """Return the recorder's draws, without the slots that no chain filled.

        Args:
            sinks: the recorder's.
            layout: of its rows.
            groups: of coordinates that are fetched; None for all.
            every: one in so many chains is.
        """
        count, (recorded,) = to_host(sinks.count)[::every], sinks.states
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


class Recorded(NamedTuple):
    """The recorder's rows as a value of no mesh.

    Attributes:
        position, gradient: by variable, `(slot * chain, ...)`; no gradient where none is kept.
        stats: statistics as they are in a row, `(slot, chain, column)`.
    """

    position: Any
    gradient: Any
    stats: np.ndarray


def rows_by_variable(sinks: SinkState, layout: RowLayout) -> SinkState:
    """Return the recorder's sinks as a value of no mesh, without empty slots."""
    block = HostBlock.fetched(sinks, layout)
    rows = [part.reshape(part.shape[0] * part.shape[1], *part.shape[2:]) for part in block.rows]
    position, gradient = (vector.by_variable() for vector in layout.whole_vectors(rows))
    return SinkState(block.count, (Recorded(position, gradient, block.rows[0][:, :, 0, layout.start_of_stats :]),))


def rows_of(sinks: SinkState, layout: RowLayout, slots: int) -> SinkState:
    """Return the inverse of `rows_by_variable`, with empty slots up to so many, on the host."""
    (recorded,) = sinks.states
    filled, chains, columns = recorded.stats.shape
    vectors = [layout.position.of_whole(part, zero=True).parts for part in (recorded.position, recorded.gradient)]
    rows = []
    for group, (length, axes) in enumerate(zip(layout.position.lengths, layout.position.groups, strict=True)):
        devices = layout.position.devices(axes)
        parts = [v[group].reshape(filled, chains, devices, length) for v in vectors if v]
        if not group:  # statistics are with the coordinates that every device holds
            parts.append(recorded.stats.reshape(filled, chains, 1, columns))
        whole = np.concatenate(parts, -1)
        empty = np.zeros((slots - filled, *whole.shape[1:]), whole.dtype)
        rows.append(np.concatenate([whole, empty]).reshape(slots, chains, devices * whole.shape[-1]))
    return SinkState(sinks.count, (tuple(rows),))
