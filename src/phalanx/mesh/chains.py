"""Assignment of chains to devices, lanes and processes.

A lane has one chain, and a device several lanes along the `chain` axis. A process holds the chains of its devices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from phalanx.mesh.devices import CHAIN
from phalanx.mesh.processes import exchange
from phalanx.mesh.specs import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped

ALL = slice(None)


@dataclass(frozen=True)
class HeldChains:
    """Chains of a run that each process holds: those of its devices.

    A chain whose rows lie on devices of several processes is held by each of them, and owned by the first.

    Attributes:
        holders: for each block of chains, in order, the processes that hold it, in ascending order.
        num_chains: chains in all.
        process: number of this process.
    """

    holders: tuple[tuple[int, ...], ...]
    num_chains: int
    process: int = 0

    @classmethod
    def of(cls, mesh: Mesh, num_chains: int) -> HeldChains:
        """Return the chains that processes hold on a mesh, as many on each device along `chain`."""
        blocks = np.moveaxis(mesh.devices, mesh.axis_names.index(CHAIN), 0).reshape(mesh.shape[CHAIN], -1)
        holders = (tuple(sorted({device.process_index for device in block})) for block in blocks)
        return cls(tuple(holders), num_chains, jax.process_index())

    @cached_property
    def is_whole(self) -> bool:
        """True if each process holds all chains, as a single process does."""
        return all(block == self.holders[0] for block in self.holders)

    @property
    def is_shared(self) -> bool:
        """True if several processes hold a chain."""
        return any(len(block) > 1 for block in self.holders)

    @cached_property
    def numbers(self) -> Int[np.ndarray, "held"]:
        """Numbers of the chains that this process holds, in ascending order."""
        return np.flatnonzero(self._of_chains([self.process in block for block in self.holders]))

    @property
    def most(self) -> int:
        """Most chains that a process holds."""
        return max(Counter(process for block in self.holders for process in block).values()) * self._per_block

    @cached_property
    def owners(self) -> Int[np.ndarray, "chains"]:
        """For each chain, the process that owns it."""
        return self._of_chains([block[0] for block in self.holders])

    @cached_property
    def owned(self) -> Bool[np.ndarray, "held"]:
        """True for the held chains that count for this process; if each holds all chains, no process counts alone."""
        return np.ones(self.num_chains, bool) if self.is_whole else self.owners[self.numbers] == self.process

    @property
    def writes(self) -> Bool[np.ndarray, "held"]:
        """True for the held chains that this process owns."""
        return self.owners[self.numbers] == self.process

    @property
    def owned_runs(self) -> tuple[slice, ...]:
        """The chains that this process owns, as runs of consecutive ones."""
        numbers = self.numbers[self.writes]
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []
        return tuple(slice(int(run[0]), int(run[-1]) + 1) for run in runs)

    @property
    def unit(self) -> int:
        """Greatest number such that so many chains after each of its multiples have one owner."""
        changes = np.flatnonzero(np.diff(self.owners)) + 1
        return math.gcd(self.num_chains, *map(int, changes))

    def _of_chains(self, of_blocks: list[Any]) -> np.ndarray:
        return np.repeat(of_blocks, self._per_block)

    @property
    def _per_block(self) -> int:
        return self.num_chains // len(self.holders)

    def part(self, whole: PyTree) -> PyTree:
        """Return the held chains of an array `(chain, ...)` of all."""
        if self.is_whole:
            return whole
        first = int(self.numbers[0])
        last = int(self.numbers[-1]) + 1
        if last - first == len(self.numbers) and np.ndim(whole) > 1:
            return whole[first:last, :]  # of an array in a store only this part is read
        return np.asarray(whole)[self.numbers]

    def gathered(
        self, part_of_array: Shaped[np.ndarray, "held *shape"], of: slice = ALL
    ) -> Shaped[np.ndarray, "some *shape"]:
        """Return the chains `of` an array, given those that this process holds; all processes must call it together."""
        if self.is_whole:
            return part_of_array[of]
        chains = np.arange(self.num_chains)[of]
        whole = np.empty((len(chains), *part_of_array.shape[1:]), part_of_array.dtype)
        if not whole.size:
            return whole
        owners = self.owners[chains]
        mine = part_of_array[np.searchsorted(self.numbers, chains[owners == self.process])]
        processes = range(1 + max(map(max, self.holders)))
        parts = exchange(mine, [int(np.sum(owners == process)) for process in processes])
        for process, part in zip(processes, parts, strict=True):
            whole[owners == process] = part
        return whole

    def total(self, part: Shaped[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
        """Return the sum of what each process adds up over the chains that it owns; all must call it together."""
        if self.is_whole:
            return part
        return np.asarray(np.sum(exchange(part[None], [1] * (1 + max(map(max, self.holders)))), axis=0)[0])


def lane_chains(lanes: int) -> Int[Array, "{lanes}"]:
    """Return the numbers of the chains in this device's lanes."""
    return lax.axis_index(CHAIN) * lanes + jnp.arange(lanes)


def over_lanes(f: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    """Return `f` mapped over the leading dimension of its arguments, one entry per lane.

    A single lane is not mapped: a batch of one turns a plain matrix product into a batched one, which is slower.
    """
    if lanes > 1:
        return jax.vmap(f)

    def single(*args):
        out = f(*jax.tree.map(lambda leaf: leaf[0], args))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], out)

    return single
