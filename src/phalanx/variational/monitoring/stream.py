"""Streams of batches of rows, for data that are never in memory at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from phalanx.density.minibatch import ROWS, Minibatch
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.dataframe_input import columns_of
from phalanx.learning.batches import Batches
from phalanx.learning.loop import EndOfData
from phalanx.mesh.processes import to_devices
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    from phalanx.variational.data_checks import DataChecks

AHEAD = 8
"""Greatest number of batches whose data checks are still running while steps are made with them."""


def streamed_rows(arguments: Arguments, num_rows: object) -> Minibatch:
    """Return the rows of the first batch of a stream, which represent `num_rows` rows in all.

    Raises:
        ValueError: when the batch has no rows, more than there should be, or rows that are sharded.
    """
    if not isinstance(num_rows, int | np.integer) or isinstance(num_rows, bool) or num_rows < 1:
        raise ValueError(f"num_rows must be the whole number of rows of all batches together; got {num_rows!r}.")
    if any(sharding.axes for sharding in arguments.shardings):
        raise ValueError("data: batches are plain arrays; these were placed with phx.shard. Leave it out.")
    shapes = arguments.whole_shapes()
    size = max((s.shape[0] for s in shapes if s.shape), default=0)
    if not size:
        raise ValueError("data: the first batch has no rows.")
    if size > num_rows:
        raise ValueError(f"num_rows={num_rows} is less than the {size} rows of the first batch.")
    of_rows = tuple(bool(s.shape) and s.shape[0] == size for s in shapes)
    return Minibatch(size, int(num_rows), of_rows, (), is_streamed=True)


class Stream:
    """Stream of batches, each checked against the first and placed on the devices.

    An iterable such as a list or a loader begins anew at its end; an iterator ends. Rows are sharded over the mesh's
    `data` axis where it divides them.

    Attributes:
        first: the first batch, as the model's keyword arguments.
    """

    def __init__(self, data: Iterable[Any]):
        self._source: Any = data
        self._batches: Iterator[Any] = iter(data)
        self._again = self._batches is not data
        self._number = 1
        self._next = None
        self._short = 0
        self._told = False
        self._looks: list[tuple[int, Arguments, Array | None]] = []
        try:
            self.first: Mapping[str, Any] = next(self._batches)
        except StopIteration:
            raise ValueError("data: there is no first batch; it may have been used up.") from None

    def place_first_batch(self, problem: Problem, data_checks: DataChecks) -> tuple[Array, ...]:
        """Set the model and the checks that batches must pass; return the arrays of the first batch, on the devices."""
        self._problem = problem
        self._data_checks = data_checks
        self._next = place_rows(problem, problem.arguments)
        return self._next

    def skip_to(self, step: int) -> None:
        """Go to the batch of a step.

        Raises:
            ValueError: when no seed determines the order of the batches.
        """
        if step == 0:
            return
        if not self.is_ordered:
            raise ValueError(
                "data: these batches come in an order of their own, and cannot be continued where a fit has ended. Use "
                "phx.batches(arrays, batch_size), whose order a seed determines."
            )
        self._batches = self._source.from_step(step)
        self._number = step
        self._next = None

    @property
    def is_ordered(self) -> bool:
        """True if the number of a step determines its batch."""
        return isinstance(self._source, Batches)

    def take(self) -> tuple[Array, ...]:
        """Return the next batch.

        Raises:
            EndOfData: when the batches have ended.
            Exception: the error that reading it has raised, or a ValueError when it is not like the first.
        """
        if self._next is None:
            self.look_ahead()
        batch = self._next
        self._next = None
        if isinstance(batch, Exception):
            raise batch
        assert batch is not None
        return batch

    def look_ahead(self) -> None:
        """Read the next batch while the devices are busy with one; `take` raises an error of it."""
        try:
            self._next = self._read()
        except Exception as error:
            self._next = error

    def word(self) -> str:
        """Return a line about batches that were left out, once; else an empty one."""
        if not self._short or self._told:
            return ""
        self._told = True
        return f"Batch {self._short} has fewer rows than the first: it is left out, as other smaller ones will be."

    def _read(self) -> tuple[Array, ...]:
        anew = False
        while True:
            batch = next(self._batches, None)
            if batch is None:
                if anew or not self._again:
                    raise EndOfData
                self._batches = iter(self._source)
                anew = True
                continue
            self._number += 1
            arguments = self._problem.known_data.split(self._problem.program, batch)
            if self._is_short(arguments):
                self._short = self._short or self._number
                continue
            self._check(arguments)
            self._looks.append((self._number, arguments, self._data_checks.look(on_host(arguments))))
            self.settle(AHEAD)
            return place_rows(self._problem, arguments)

    def settle(self, still: int = 0) -> None:
        """Wait for the data checks of all batches but the `still` latest: reading a batch does not wait for its own.

        Raises:
            ValueError: when data are invalid; the message names the batch and the values.
        """
        while len(self._looks) > still:
            number, arguments, loss = self._looks.pop(0)
            try:
                self._data_checks.judge(arguments, loss)
            except ValueError as error:
                raise ValueError(f"data: batch {number}: {error}") from None

    def _is_short(self, arguments: Arguments) -> bool:
        """Return True if a batch is like the first, but has fewer rows."""
        of_fit = self._problem.arguments
        minibatch = self._problem.minibatch
        assert minibatch is not None
        if arguments.names != of_fit.names:
            return False
        rows = {
            a.shape[0] for a, has_rows in zip(arguments.arrays, minibatch.of_rows, strict=True) if has_rows and a.shape
        }
        return len(rows) == 1 and rows.pop() < minibatch.size

    def _check(self, arguments: Arguments) -> None:
        of_fit = self._problem.arguments
        first, here = (
            [(n, a.shape, np.dtype(a.dtype)) for n, a in zip(x.names, x.arrays, strict=True)]
            for x in (of_fit, arguments)
        )
        for (name, *was), (other, *is_now) in zip(first, here, strict=False):
            if name == other and was != is_now:
                raise ValueError(
                    f"data: in batch {self._number} {name} is {is_now[1]} {is_now[0]}, and in the first {was[1]} "
                    f"{was[0]}. All batches must have the same arrays."
                )
        if arguments.names != of_fit.names or arguments.layout != of_fit.layout:
            raise ValueError(
                f"data: batch {self._number} has {', '.join(arguments.names)}, and the first "
                f"{', '.join(of_fit.names)}; or other values than arrays differ. All batches must have the same arrays."
            )


def on_host(arguments: Arguments) -> list[np.ndarray]:
    """Return a batch's arrays on the host."""
    return list(map(np.asarray, arguments.arrays))


def place_rows(problem: Problem, arguments: Arguments) -> tuple[Array, ...]:
    """Put a batch's arrays on the mesh: rows over its `data` axis where that divides them, others on every device."""
    minibatch = problem.minibatch
    mesh = problem.mesh
    assert minibatch is not None
    along = PartitionSpec(ROWS if minibatch.size % mesh.shape[ROWS] == 0 else None)
    return tuple(
        to_devices(array, NamedSharding(mesh, along if of_rows else PartitionSpec()))
        for array, of_rows in zip(arguments.arrays, minibatch.of_rows, strict=True)
    )


def rows_of(data: object, num_rows: int | None) -> int | None:
    """Return the number of rows of all batches together, which `phx.batches` knows."""
    if not isinstance(data, Batches):
        return num_rows
    if num_rows is not None:
        raise ValueError(f"num_rows={num_rows}: phx.batches knows how many rows there are. Leave it out.")
    return data.num_rows


def stream_of(data: object, num_rows: int | None, batch_size: int | None) -> Stream | None:
    """Return the stream of data that come in batches; None for data that are in memory as a whole.

    Raises:
        TypeError, ValueError: when the number of rows is left out, or given for data in memory.
    """
    if data is None or isinstance(data, Mapping) or columns_of(data) is not None:
        if num_rows is not None:
            raise ValueError(
                f"num_rows={num_rows} is the number of rows of data that come in batches; these are all there. Leave "
                f"it out, or give an iterable of dicts."
            )
        return None
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | np.ndarray | Array):
        return None
    if num_rows is None:
        raise TypeError(
            f"data must be a dict of the model's keyword arguments; got {type(data).__name__}. If it gives batches, "
            f"each such a dict, pass the number of rows of all together, num_rows=."
        )
    if batch_size is not None:
        raise ValueError("batch_size: rows are drawn from data in memory, and these come in batches. Leave it out.")
    return Stream(data)


def check_all_there(problem: Problem, what: str) -> None:
    """Raise if the data of a fit came in batches: `what` needs all rows."""
    if problem.is_streamed:
        raise ValueError(
            f"{what}: it needs all rows, and this fit's came in batches, which are not kept. Fit to data in memory, or "
            f"to a part of them."
        )
