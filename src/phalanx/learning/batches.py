"""Rows in an order that is repeated: which rows a step sees follows from a seed and the step's number alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import Array

from phalanx.inputs.dataframe_input import in_form_of, is_categorical, take
from phalanx.mesh.keys import check_seed

ORDERS = ("shared", "own", "bootstrap")
"""Orders in which the members of an ensemble see rows."""

Transform = Callable[[dict[str, np.ndarray], np.random.Generator], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of rows, epoch after epoch without end; see `phx.batches`.

    Attributes:
        data: arrays with one row for each example.
        batch_size: rows of a batch.
        seed: of the order.
        transform: what is done to each batch.
    """

    data: Mapping[str, Any]
    batch_size: int
    seed: int = 0
    transform: Transform | None = field(default=None, repr=False)

    @property
    def num_rows(self) -> int:
        """Rows that the batches stand for."""
        return len(next(iter(self.data.values())))

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch; the rows of a last, smaller one are left out, other rows in each epoch."""
        return self.num_rows // self.batch_size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.from_step(0)

    def from_step(self, step: int) -> Iterator[dict[str, Any]]:
        """The batches from that of a step on."""
        while True:
            epoch, first = divmod(step, self.per_epoch)
            order = _shuffled(self.num_rows, self.seed, epoch)
            for number in range(first, self.per_epoch):
                rows = order[number * self.batch_size : (number + 1) * self.batch_size]
                yield self._taken(rows, step)
                step += 1

    def in_order(self) -> Iterator[dict[str, Any]]:
        """One epoch, rows as they are."""
        for number in range(self.per_epoch):
            rows = np.arange(number * self.batch_size, (number + 1) * self.batch_size)
            yield self._taken(rows, number)

    def _taken(self, rows: np.ndarray, step: int) -> dict[str, Any]:
        batch = {name: array[rows] for name, array in self.data.items()}
        if self.transform is None:
            return batch
        return dict(self.transform(batch, np.random.default_rng((self.seed, step, 1))))


def batches(data: Mapping[str, Any], batch_size: int, *, seed: int = 0, transform: Transform | None = None) -> Batches:
    """Rows for `phx.fit`, a batch for each step, in an order that a fit which is gone on with repeats.

    Every epoch has all rows in an order of its own, each once. Which rows a step sees follows from the seed and the
    step's number alone: a fit that is resumed goes on with the very next batch.

    Args:
        data: the model's arguments, arrays with one row for each example. They stay where they are, in memory or in a
            file (`numpy.memmap`), and a batch goes to the devices while they are busy with the one before.
        batch_size: rows of a batch. Rows that make no whole batch are left out, other rows in each epoch.
        seed: of the order.
        transform: a function of a batch and a `numpy.random.Generator` that gives the batch which the model sees, such
            as pixels drawn to be black or white. The generator, too, follows from seed and step.

    Returns:
        What `phx.fit` takes as data. `num_rows` is known from it.

    Raises:
        TypeError: when data are no dict of arrays.
        ValueError: when arrays differ in how many rows they have, or have fewer than a batch.

    Example:
        >>> import numpy as np, phalanx as phx
        >>> rows = phx.batches({"x": np.arange(6)}, 2)
        >>> sorted(np.concatenate([batch["x"] for batch, _ in zip(rows, range(3))]).tolist())
        [0, 1, 2, 3, 4, 5]
    """
    if not isinstance(data, Mapping) or not data:
        raise TypeError(f"batches: data must be a dict of arrays, by the model's arguments; got {type(data).__name__}.")
    check_seed(seed)
    arrays = {name: _by_place(name, array) for name, array in data.items()}
    counts = {name: array.shape[0] if array.shape else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(
            f"batches: all arrays must have one row for each example; got "
            f"{', '.join(f'{count} of {name}' for name, count in counts.items())}."
        )
    rows = next(iter(counts.values()))
    if not isinstance(batch_size, int | np.integer) or isinstance(batch_size, bool) or not 1 <= batch_size <= rows:
        raise ValueError(f"batches: batch_size must be a whole number from 1 to the {rows} rows; got {batch_size!r}.")
    return Batches(arrays, int(batch_size), int(seed), transform)


def rows_of_epoch(order: str, seed: int, epoch: int, members: int, rows: int) -> np.ndarray:
    """Numbers of the rows in the order of an epoch: `(rows,)` where it is shared, else `(members, rows)`.

    With `"bootstrap"` each member has drawn its rows with replacement once, and shuffles them anew in every epoch.
    """
    if order == "shared":
        return _shuffled(rows, seed, epoch).astype(np.int32)
    found = np.empty((members, rows), np.int32)
    for member in range(members):
        own = _shuffled(rows, seed, epoch, member)
        drawn = np.random.default_rng([seed, 2**31, member]).integers(0, rows, rows) if order == "bootstrap" else None
        found[member] = own if drawn is None else drawn[own]
    return found


def _shuffled(rows: int, *seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(rows)


def _by_place(name: str, array: Any) -> Any:
    """An array whose rows are found by their place: those of a table's column would be found by their label.

    A categorical keeps its levels, all of them in each batch.
    """
    if is_categorical(array):
        return in_form_of(getattr(array, "values", array), take(f"batches: {name}", array).array)
    return array if isinstance(array, np.ndarray | Array) else np.asarray(array)
