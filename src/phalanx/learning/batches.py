"""Batches of rows in a repeatable order: a seed and the number of the step determine the rows of a step.

Fits take `Batches` of a dict of arrays, ensembles the row numbers of `EpochBatches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from phalanx.inputs.dataframe_input import as_named_array, in_form_of, is_categorical
from phalanx.mesh.random_numbers import check_seed

if TYPE_CHECKING:
    from jaxtyping import Integer

ORDERS = ("shared", "own", "bootstrap")
"""Orders in which the members of an ensemble see rows."""

Transform = Callable[[dict[str, np.ndarray], np.random.Generator], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of rows, epoch after epoch without end; see `phx.batches`.

    Attributes:
        data: arrays with one row for each example.
        batch_size: rows of a batch.
        seed: seed of the order.
        transform: function of a batch and a generator; None leaves batches as they are.
    """

    data: Mapping[str, Any]
    batch_size: int
    seed: int = 0
    transform: Transform | None = field(default=None, repr=False)

    @property
    def num_rows(self) -> int:
        """Number of rows that the batches represent."""
        return len(next(iter(self.data.values())))

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch; rows of a smaller last batch are left out, other rows in each epoch."""
        return self.num_rows // self.batch_size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.from_step(0)

    def from_step(self, step: int) -> Iterator[dict[str, Any]]:
        """Yield the batches from that of a step on."""
        while True:
            epoch, first = divmod(step, self.per_epoch)
            order = _shuffle_rows(self.num_rows, self.seed, epoch)
            for rows in _cut_order(order, self.batch_size, drop_last=True)[first:]:
                yield self._taken(rows, step)
                step += 1

    def in_order(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of one epoch, rows in the order of the data."""
        for number, rows in enumerate(_cut_order(np.arange(self.num_rows), self.batch_size, drop_last=True)):
            yield self._taken(rows, number)

    def _taken(self, rows: Integer[np.ndarray, "batch"], step: int) -> dict[str, Any]:
        batch = {name: array[rows] for name, array in self.data.items()}
        if self.transform is None:
            return batch
        return dict(self.transform(batch, np.random.default_rng((self.seed, step, 1))))


def batches(data: Mapping[str, Any], batch_size: int, *, seed: int = 0, transform: Transform | None = None) -> Batches:
    """Make batches of rows for `phx.fit`, one for each step, in an order that a resumed fit repeats.

    Every epoch has all rows in an order of its own, each once. The seed and the number of a step determine its rows: a
    resumed fit continues with the next batch.

    Args:
        data: the model's arguments, arrays with one row for each example. They stay where they are, in memory or in a
            file (`numpy.memmap`); each batch is copied to the devices during the step before.
        batch_size: rows of a batch. A last batch of fewer rows is left out, other rows in each epoch.
        seed: seed of the order.
        transform: a function of a batch and a `numpy.random.Generator` that returns the batch for the model, such as
            pixels drawn to be black or white. Seed and step determine the generator, too.

    Returns:
        Data for `phx.fit`, which takes the number of rows from them.

    Raises:
        TypeError: when data are not a dict of arrays.
        ValueError: when arrays differ in their number of rows, or have fewer rows than a batch.

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


@dataclass(frozen=True)
class EpochBatches:
    """Row numbers of the batches of an ensemble, epoch by epoch.

    Attributes:
        rows: number of rows.
        size: rows of a batch.
        order: one of `ORDERS`; with "bootstrap" each member draws its rows with replacement once, and shuffles them
            anew in every epoch.
        seed: seed of the order.
        members: number of members.
        drop_last: whether a last batch of fewer rows is left out.
    """

    rows: int
    size: int
    order: str
    seed: int
    members: int
    drop_last: bool

    def of_epoch(self, epoch: int) -> tuple[Integer[np.ndarray, "*members batch"], ...]:
        """Return the batches of an epoch: `(batch,)` where the order is shared, else `(members, batch)`."""
        if self.order == "shared":
            order = _shuffle_rows(self.rows, self.seed, epoch).astype(np.int32)
        else:
            order = np.stack([self._of_member(member, epoch) for member in range(self.members)])
        return _cut_order(order, self.size, self.drop_last)

    def _of_member(self, member: int, epoch: int) -> Integer[np.ndarray, "rows"]:
        order = _shuffle_rows(self.rows, self.seed, epoch, member).astype(np.int32)
        if self.order != "bootstrap":
            return order
        rows = np.random.default_rng([self.seed, 2**31, member]).integers(0, self.rows, self.rows)
        return rows.astype(np.int32)[order]


def _shuffle_rows(rows: int, *seed: int) -> Integer[np.ndarray, "rows"]:
    return np.random.default_rng(seed).permutation(rows)


def _cut_order(
    order: Integer[np.ndarray, "*members rows"], size: int, drop_last: bool
) -> tuple[Integer[np.ndarray, "*members batch"], ...]:
    """Cut an order of rows, its last axis, into batches."""
    rows = order.shape[-1]
    end = rows // size * size if drop_last else rows
    return tuple(order[..., first : first + size] for first in range(0, end, size))


def _by_place(name: str, array: Array) -> Array | np.ndarray:
    """Return an array whose rows are indexed by position: those of a table's column would be indexed by label.

    A categorical keeps its levels, all of them in each batch.
    """
    if is_categorical(array):
        return in_form_of(getattr(array, "values", array), as_named_array(f"batches: {name}", array).array)
    return array if isinstance(array, np.ndarray | Array) else np.asarray(array)
