"""Draws of many data sets in a store, whose chains are those of all data sets, one data set after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phalanx.store.lazy_array import LazyArray, StoredArray
from phalanx.store.zarr_reading import entry, entry_of

EACH = "each"
"""Entry of the root of a store of many data sets."""


class Sets(NamedTuple):
    """Data sets of a store: their names, and by number the reason of those that failed."""

    names: tuple[Any, ...]
    failed: Mapping[int, str] = {}

    def entries(self) -> dict[str, str]:
        """Return the entries of the root of the store."""
        names = [name if isinstance(name, str | int | float | np.number) else str(name) for name in self.names]
        return {EACH: entry({"names": names, "failed": list(map(list, self.failed.items()))})}

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Sets:
        """Return the data sets, given the entries of the root.

        Raises:
            KeyError, TypeError, ValueError: when these are not what `entries` wrote.
        """
        of_sets = entry_of(entries[EACH])
        names = tuple(of_sets["names"])
        failures = {int(number): str(reason) for number, reason in of_sets["failed"]}
        if not names or any(not 0 <= number < len(names) for number in failures):
            raise ValueError(f"there are {len(names)} data sets, of which these failed: {sorted(failures)}")
        return cls(names, failures)

    def labels(self, num_chains: int) -> np.ndarray:
        """Return a name for each of all chains: that of its data set, and its number there."""
        return np.array([f"{name}/{chain}" for name in self.names for chain in range(num_chains)])

    def by_set(self, arrays: Mapping[str, StoredArray]) -> dict[str, Any]:
        """Return arrays `(set, chain, draw, ...)`.

        Raises:
            ValueError: when their chains are not those of so many data sets.
        """
        if uneven := [name for name, array in arrays.items() if array.shape[0] % len(self.names)]:
            raise ValueError(f"{uneven[0]} has {arrays[uneven[0]].shape[0]} chains of {len(self.names)} data sets")
        return {name: SetsArray(array, len(self.names)) for name, array in arrays.items()}

    def failed_chains(self, num_chains: int) -> list[int]:
        """Return the numbers, among all chains, of those whose data set failed; they have the draws of others."""
        of_one = num_chains // len(self.names)
        return [chain for number in self.failed for chain in range(number * of_one, (number + 1) * of_one)]


class SetsArray(LazyArray):
    """Draws of one variable `(set, chain, draw, ...)` in a store, read when they are used.

    Args:
        lanes: the draws `(set * chain, draw, ...)`.
        sets: number of data sets.
    """

    def __init__(self, lanes: StoredArray, sets: int):
        super().__init__((sets, lanes.shape[0] // sets, *lanes.shape[1:]), lanes.dtype)
        self._lanes = lanes

    def _read(self, index: tuple[slice, ...]) -> np.ndarray:
        sets, chains, *rest = index
        lanes = slice(sets.start * self.shape[1], sets.stop * self.shape[1])
        values = self._lanes[(lanes, *(rest or [slice(0, self.shape[2])]))]
        return values.reshape(sets.stop - sets.start, self.shape[1], *values.shape[1:])[:, chains]


def blanked(values: np.ndarray, failed_numbers: Sequence[int]) -> np.ndarray:
    """Return a copy of an array with NaN, or zero for whole numbers, in the rows of data sets that failed."""
    blank = np.array(values)
    blank[list(failed_numbers)] = np.nan if blank.dtype.kind == "f" else 0
    return blank
