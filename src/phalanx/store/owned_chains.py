"""Chains whose draws a process writes to a folder that all processes share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phalanx.mesh.chains import HeldChains
from phalanx.mesh.processes import is_first
from phalanx.store.lazy_array import LazyArray

CHUNK_BYTES = 4 * 2**20
"""Greatest size of a chunk in memory."""


@dataclass(frozen=True)
class OwnedChains:
    """Chains that this process writes.

    Attributes:
        held: the chains that each process holds.
        at_first: true if the first process writes all chains, which it gathers from the others.
    """

    held: HeldChains
    at_first: bool = False

    @property
    def is_first(self) -> bool:
        """True in the process that makes the folder."""
        return is_first()

    @property
    def processes(self) -> int:
        """Number of processes that report what they have written."""
        return 1 + max(map(max, self.held.holders))

    @property
    def num_chains(self) -> int:
        """Chains in all."""
        return self.held.num_chains

    @property
    def unit(self) -> int:
        """Greatest number such that one process writes so many chains after each of its multiples."""
        return self.num_chains if self.at_first else self.held.unit

    @property
    def runs(self) -> tuple[slice, ...]:
        """Runs of consecutive chains that this process writes."""
        if not self.at_first:
            return self.held.owned_runs
        return (slice(0, self.num_chains),) if self.is_first else ()

    def fitting(self, lengths: Iterable[int]) -> OwnedChains:
        """Return the chains to write if chunks have so many chains: all in the first process if two would share one."""
        owners = self.held.owners
        shared = any(
            len(set(owners[begin : begin + length])) > 1
            for length in lengths for begin in range(0, self.num_chains, length)
        )  # fmt: skip
        return replace(self, at_first=shared)

    def of(self, draws: np.ndarray) -> np.ndarray:
        """Return the draws of the chains that this process writes, given those of the chains that it holds.

        All processes must call it together.
        """
        if not self.at_first:
            writes = self.held.writes
            return draws if writes.all() else draws[writes]
        whole = self.held.gathered(draws)
        return whole if self.is_first else whole[:0].copy()

    def read(self, array: LazyArray, draws: slice) -> np.ndarray:
        """Return draws of the chains that this process writes from an array of all chains in a store."""
        nothing = np.empty((0, draws.stop - draws.start, *array.shape[2:]), array.dtype)
        return np.concatenate([nothing, *(array[run, draws] for run in self.runs)])

    def write(self, array: Any, draws: slice, values: np.ndarray) -> None:
        """Write draws of the chains that this process writes to an array of all chains in a store."""
        first = 0
        for run in self.runs:
            last = first + run.stop - run.start
            array[run, draws] = values[first:last]
            first = last

    def chunk(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
        """Return the shape of a chunk: as many chains as have one writer, and as many draws as fit into `CHUNK_BYTES`.

        Draws of more than that are split, first by chains, then along their own axes, from the first one on.
        """
        chunk = [self.unit, 1, *(max(1, size) for size in shape[2:])]
        for axis in (0, *range(2, len(chunk))):
            excess = -(-itemsize * int(np.prod(chunk)) // CHUNK_BYTES)
            chunk[axis] = max(1, chunk[axis] // excess)
            while axis == 0 and self.unit < shape[0] and self.unit % chunk[0]:
                chunk[0] -= 1
        chunk[1] = min(max(1, CHUNK_BYTES // (itemsize * int(np.prod(chunk)))), shape[1])
        return tuple(chunk)

    def numbers(self, length: int) -> list[int]:
        """Return the numbers of the chunks of so many chains that this process writes."""
        return [number for run in self.runs for number in range(run.start // length, -(-run.stop // length))]
