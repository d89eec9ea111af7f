"""Rows of the data for a numeric check: all rows if they are few, otherwise blocks of rows and informative rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct
from jax.typing import ArrayLike

from phalanx.inputs.arguments import Arguments
from phalanx.mesh.processes import to_host
from phalanx.mesh.space import RowSharding

LEVELS = 64
"""Most levels of a code of which one row each is sampled, and most columns whose extremes are."""


@dataclass(frozen=True)
class RowSample:
    """Some rows of the data.

    Attributes:
        rows: for each sharding of the data, the sharding in the sample.
        numbers: for each sharding of the data, the indices of the rows.
    """

    rows: Mapping[RowSharding, RowSharding]
    numbers: Mapping[RowSharding, np.ndarray] = field(repr=False)

    def sharding(self, sharding: RowSharding) -> RowSharding:
        """Return the sharding in the sample of something with this sharding in the data."""
        return self.rows.get(sharding, sharding)

    def take(self, values: np.ndarray, sharding: RowSharding) -> np.ndarray:
        """Return the rows of an array that are in the sample."""
        if not sharding.axes:
            return to_host(values)
        numbers = self.numbers[sharding]
        whole = len(numbers) == sharding.rows
        return to_host(values[: sharding.rows] if whole else jnp.asarray(values)[numbers])

    @property
    def count(self) -> int:
        """Number of rows in the sample of the largest array."""
        return max(sharding.rows for sharding in self.rows.values())


def samples(
    arguments: Arguments, shardings: Sequence[RowSharding], sizes: Mapping[str, int], most: float
) -> Iterator[RowSample]:
    """Yield one sample of all rows if `most` is 1; otherwise a sample of blocks, and one of informative rows.

    A sample has as many padded rows as the data.

    Args:
        arguments: the data.
        shardings: shardings of the latent variables. Those over axes without data keep all rows: the program fixes
            their number.
        sizes: devices along each mesh axis.
        most: the largest fraction of the rows in a sample.
    """
    shardings = list(dict.fromkeys(sharding for sharding in (*arguments.shardings, *shardings) if sharding.axes))
    if most >= 1:
        yield RowSample({s: s for s in shardings}, {s: np.arange(s.rows) for s in shardings})
        return
    smaller = {s: max(1, int(s.local_rows * most)) if _is_of_data(s, arguments) else s.local_rows for s in shardings}
    devices = {s: int(np.prod([sizes[axis] for axis in s.axes])) for s in shardings}
    padded = {s: s.local_rows * devices[s] - s.rows for s in shardings}
    rows = {s: RowSharding(s.axes, count * devices[s] - padded[s], count) for s, count in smaller.items()}
    yield RowSample(rows, {s: _blocks(s, count, devices[s])[: rows[s].rows] for s, count in smaller.items()})
    yield RowSample(rows, {s: _informative(arguments, s, rows[s].rows) for s in shardings})


def _is_of_data(sharding: RowSharding, arguments: Arguments) -> bool:
    return any(set(sharding.axes) & set(other.axes) for other in arguments.shardings)


def _blocks(sharding: RowSharding, count: int, devices: int) -> np.ndarray:
    """Return the indices of the first rows of each device."""
    starts = np.arange(devices) * sharding.local_rows
    return np.minimum((starts[:, None] + np.arange(count)[None]).ravel(), sharding.rows - 1)


def _informative(arguments: Arguments, sharding: RowSharding, count: int) -> np.ndarray:
    """Return the indices of rows with extremes, with NaN, of every level of a code, and of random rows, sorted."""
    found: list[int] = []
    for array, other in zip(arguments.arrays, arguments.shardings, strict=True):
        if (other.axes, other.rows) == (sharding.axes, sharding.rows):
            found += _extremes(array, sharding.rows)
    random = np.random.default_rng(0)
    chosen = list(dict.fromkeys(found))[: count // 2]
    others = random.choice(sharding.rows, size=min(sharding.rows, 2 * count), replace=False).tolist()
    return np.sort(list(dict.fromkeys([*chosen, *others]))[:count])


def _extremes(array: np.ndarray, rows: int) -> list[int]:
    values = jnp.asarray(array)[:rows]
    if jnp.issubdtype(values.dtype, jnp.integer):
        values = values.reshape(rows, -1)[:, 0]
        return [int(jnp.argmax(values == level)) for level in range(int(min(values.max() + 1, LEVELS)))]
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return []
    values = values.reshape(rows, -1)[:, :LEVELS]
    where = (jnp.argmin(values, 0), jnp.argmax(values, 0), jnp.argmax(jnp.isnan(values), 0))
    return np.unique(np.concatenate([to_host(w) for w in where])).tolist()


def fraction(
    arguments: Arguments, positions: Mapping[str, Any], shardings: Mapping[str, RowSharding], most: int
) -> float:
    """Return the fraction of rows at which data and position have `most` numbers; 0 if replicated arrays have more."""
    leaves = [
        *zip(arguments.arrays, arguments.shardings, strict=True),
        *((positions[n], s) for n, s in shardings.items()),
    ]
    sizes = [(_size(leaf), _is_of_data(sharding, arguments)) for leaf, sharding in leaves]
    replicated, rows = (sum(size for size, of_rows in sizes if of_rows is wanted) for wanted in (False, True))
    return min(1.0, max(0.0, (most - replicated) / max(rows, 1)))


def _size(leaf: ArrayLike) -> int:
    return int(np.prod(np.shape(leaf) if not isinstance(leaf, ShapeDtypeStruct) else leaf.shape, dtype=np.int64))
