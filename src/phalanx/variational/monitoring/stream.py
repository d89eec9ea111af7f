"""Data that come in batches, one after the other, and are never in memory at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from phalanx.density.minibatch import ROWS, Minibatch
from phalanx.inputs.arguments import Arguments
from phalanx.inputs.dataframe_input import columns_of
from phalanx.learning.batches import Batches
from phalanx.learning.loop import EndOfData
from phalanx.variational.problem import Problem

if TYPE_CHECKING:
    from phalanx.variational.data_checks import DataChecks


AHEAD = 8
"""Batches of which is not known yet whether their data can be, while steps are made with them."""


@dataclass(frozen=True)
class Streamed(Minibatch):
    """Rows of which the data are one batch."""

    argument: ClassVar[str] = "num_rows"

    @classmethod
    def one_of(cls, arguments: Arguments, num_rows: Any) -> Streamed:
        """The first batch, of so many rows in all.

        Raises:
            ValueError: when there are no rows, more than there should be, or they are spread over devices.
        """
        if not isinstance(num_rows, int | np.integer) or isinstance(num_rows, bool) or num_rows < 1:
            raise ValueError(f"num_rows must be the whole number of rows that all batches stand for; got {num_rows!r}.")
        if any(sharding.axes for sharding in arguments.shardings):
            raise ValueError("data: batches are plain arrays; these were placed with phx.shard. Leave it out.")
        shapes = arguments.whole_shapes()
        size = max((s.shape[0] for s in shapes if s.shape), default=0)
        if not size:
            raise ValueError("data: the first batch has no rows.")
        if size > num_rows:
            raise ValueError(f"num_rows={num_rows} is less than the {size} rows of the first batch.")
        of_rows = tuple(bool(s.shape) and s.shape[0] == size for s in shapes)
        return cls(size, int(num_rows), of_rows, ())

    def draw(self, arrays: Sequence[Array], key: Array, mesh: Mesh) -> list[Array]:
        """The batch as it came."""
        return list(arrays)


class Stream:
    """Batches, each checked against the first and placed on the devices.

    What can be iterated over again, such as a list or a loader, begins anew at its end; an iterator ends. Rows lie
    along the mesh's `data` axis where it divides them.

    Attributes:
        first: the first batch, as the model's keyword arguments.
    """

    def __init__(self, data: Iterable[Any]):
        self._source: Any = data
        self._batches: Iterator[Any] = iter(data)
        self._again = self._batches is not data
        self._number, self._next = 1, None
        self._short, self._told = 0, False
        self._looks: list[tuple[int, Arguments, Array | None]] = []
        try:
            self.first: Mapping[str, Any] = next(self._batches)
        except StopIteration:
            raise ValueError("data: there is no first batch; it may have been used up.") from None

    def begin(self, problem: Problem, data_checks: DataChecks) -> tuple[Array, ...]:
        """Say what batches are for, and what looks at them; gives the arrays of the first."""
        self._problem, self._data_checks = problem, data_checks
        self._next = place_rows(problem, problem.arguments)
        return self._next

    def skip_to(self, step: int) -> None:
        """Go to the batch of a step.

        Raises:
            ValueError: when batches come in no order that follows from a seed.
        """
        if step == 0:
            return
        if not self.is_ordered:
            raise ValueError(
                "data: these batches come in an order of their own, and cannot be gone on with where a fit has ended. "
                "Use phx.batches(arrays, batch_size), whose order follows from a seed."
            )
        self._batches, self._number, self._next = self._source.from_step(step), step, None

    @property
    def is_ordered(self) -> bool:
        """Whether the batch of a step follows from its number."""
        return isinstance(self._source, Batches)

    def take(self) -> tuple[Array, ...]:
        """The next batch.

        Raises:
            EndOfData: when there is none.
            Exception: what reading it has raised, or a ValueError when it is not like the first.
        """
        if self._next is None:
            self.look_ahead()
        found, self._next = self._next, None
        if isinstance(found, Exception):
            raise found
        assert found is not None
        return found

    def look_ahead(self) -> None:
        """Read the next batch, while the devices are busy with one; what goes wrong is said when it is taken."""
        try:
            self._next = self._read()
        except Exception as error:
            self._next = error

    def word(self) -> str:
        """What there is to say of batches that were left out, once."""
        if not self._short or self._told:
            return ""
        self._told = True
        return f"Batch {self._short} has fewer rows than the first: it is left out, as others like it will be."

    def _read(self) -> tuple[Array, ...]:
        anew = False
        while True:
            batch = next(self._batches, None)
            if batch is None:
                if anew or not self._again:
                    raise EndOfData
                self._batches, anew = iter(self._source), True
                continue
            self._number += 1
            arguments = self._problem.known_data.split(self._problem.model, batch)
            if self._is_short(arguments):
                self._short = self._short or self._number
                continue
            self._check(arguments)
            self._looks.append((self._number, arguments, self._data_checks.look(on_host(arguments))))
            self.settle(AHEAD)
            return place_rows(self._problem, arguments)

    def settle(self, still: int = 0) -> None:
        """See what looks at batches have found, but for so many of the latest: none is waited for when it is read.

        Raises:
            ValueError: naming the batch, and what of its data cannot be.
        """
        while len(self._looks) > still:
            number, arguments, found = self._looks.pop(0)
            try:
                self._data_checks.judge(arguments, found)
            except ValueError as error:
                raise ValueError(f"data: batch {number}: {error}") from None

    def _is_short(self, arguments: Arguments) -> bool:
        """Whether a batch is as the first, but of fewer rows."""
        known, minibatch = self._problem.arguments, self._problem.minibatch
        assert minibatch is not None
        if arguments.names != known.names:
            return False
        rows = {a.shape[0] for a, wanted in zip(arguments.arrays, minibatch.of_rows, strict=True) if wanted and a.shape}
        return len(rows) == 1 and rows.pop() < minibatch.size

    def _check(self, arguments: Arguments) -> None:
        known = self._problem.arguments
        first, here = ([(n, a.shape, np.dtype(a.dtype)) for n, a in zip(x.names, x.arrays, strict=True)]
                       for x in (known, arguments))  # fmt: skip
        for (name, *was), (other, *found) in zip(first, here, strict=False):
            if name == other and was != found:
                raise ValueError(
                    f"data: in batch {self._number} {name} is {found[1]} {found[0]}, and in the first {was[1]} "
                    f"{was[0]}. All batches must be alike."
                )
        if arguments.names != known.names or arguments.layout != known.layout:
            raise ValueError(
                f"data: batch {self._number} has {', '.join(arguments.names)}, and the first "
                f"{', '.join(known.names)}; or what is no array differs. All batches must be alike."
            )


def on_host(arguments: Arguments) -> list[np.ndarray]:
    """A batch's arrays as they came."""
    return list(map(np.asarray, arguments.arrays))


def place_rows(problem: Problem, arguments: Arguments) -> tuple[Array, ...]:
    """A batch's arrays on the mesh: rows over its `data` axis where that divides them, the rest on every device."""
    minibatch, mesh = problem.minibatch, problem.mesh
    assert minibatch is not None
    along = PartitionSpec(ROWS if minibatch.size % mesh.shape[ROWS] == 0 else None)
    return tuple(
        jax.device_put(array, NamedSharding(mesh, along if of_rows else PartitionSpec()))
        for array, of_rows in zip(arguments.arrays, minibatch.of_rows, strict=True)
    )


def rows_of(data: Any, num_rows: Any) -> Any:
    """How many rows batches stand for, which those of `phx.batches` know."""
    if not isinstance(data, Batches):
        return num_rows
    if num_rows is not None:
        raise ValueError(f"num_rows={num_rows}: phx.batches knows how many rows there are. Leave it out.")
    return data.num_rows


def stream_of(data: Any, num_rows: Any, batch_size: Any) -> Stream | None:
    """The batches, where data come in batches; None where they are all there.

    Raises:
        TypeError, ValueError: when the number of rows is left out, or given of data that are all there.
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
            f"each such a dict, say how many rows they stand for, num_rows=."
        )
    if batch_size is not None:
        raise ValueError("batch_size: rows are drawn from data that are all there, and these come in batches.")
    return Stream(data)


def check_all_there(problem: Problem, what: str) -> None:
    """Refuse what needs all rows, of a fit to data that came in batches."""
    if isinstance(problem.minibatch, Streamed):
        raise ValueError(
            f"{what}: it needs all rows, and this fit's came in batches, of which none is kept. Fit to data that are "
            f"all there, or to a part of them."
        )
