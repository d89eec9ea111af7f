"""Names of axes: the dimension of each axis, and the names of the entries along it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Word = str | int | float | bool
"""Name of an entry, in a type that files of every format have. Dates are text, as in ISO 8601."""

SHOWN = 3
"""Number of labels of an axis that a message shows."""

Labels = Mapping[str, tuple[tuple[str, ...] | None, ...]]
"""Names of the entries along each axis as text, by variable; None for a numbered axis."""


class EntryLabels(NamedTuple):
    """Labels of the entries along an axis, as checksums: they say whether two axes have equal labels.

    Attributes:
        count: number of entries.
        ordered: checksum of the labels in their order.
        unordered: checksum of the sorted labels.
        shown: the first labels as text, for messages.
        identify: True if the labels identify entries, so that entries with other labels are others. Numbers of rows
            and names of columns do not.
    """

    count: int
    ordered: str
    unordered: str
    shown: tuple[str, ...]
    identify: bool = True

    def reorder(self, other: EntryLabels) -> bool:
        """Return whether the labels are those of `other` in another order."""
        return self.count == other.count and self.unordered == other.unordered and self.ordered != other.ordered

    def contradict(self, other: EntryLabels) -> bool:
        """Return whether both identify entries, as many, and not the same ones."""
        return self.identify and other.identify and self.count == other.count and self.unordered != other.unordered


class Axis(NamedTuple):
    """Names of an axis: its dimension, and the entries along it; None if unknown.

    `entries` has the labels of all entries that came with data, also those that are too many to be kept as `labels`.
    """

    dim: str | None = None
    labels: tuple[Word, ...] | None = None
    entries: EntryLabels | None = None


@dataclass(frozen=True)
class AxisNames:
    """Names of the axes of variables and data.

    Attributes:
        dims: names of the axes by variable or argument of the model; None for an axis without a name.
        coords: names of the entries along the dimensions that have them.
        labels: names of the entries along the axes of each variable, as tables write them.
    """

    dims: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    coords: Mapping[str, tuple[Word, ...]] = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)

    def dims_of(self, name: str, rank: int) -> tuple[str, ...]:
        """Return the names of a variable's axes; `<name>_dim_0`, ..., as ArviZ has them, for those without a name."""
        dims = (*self.dims.get(name, ()), *[None] * rank)[:rank]  # an array may lack the last axes
        return tuple(f"{name}_dim_{axis}" if dim is None else dim for axis, dim in enumerate(dims))

    def labels_of(self, name: str, shape: tuple[int, ...]) -> tuple[tuple[str, ...] | None, ...]:
        """Return the names of the entries along a variable's axes as text; None for an axis without names."""
        levels = (self.coords.get(dim, ()) for dim in self.dims_of(name, len(shape)))
        return tuple(
            tuple(map(str, w)) if w and len(w) == size else None for w, size in zip(levels, shape, strict=True)
        )

    def of_dims(self, dims: Collection[str | None]) -> AxisNames:
        """Return the names of the entries along some dimensions, and of these alone."""
        return AxisNames(self.dims, {dim: labels for dim, labels in self.coords.items() if dim in dims})

    def coords_of(self, name: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the names of the entries along a variable's axes by dimension; numbers for those without names."""
        labels = self.labels.get(name, ())
        labels = labels if len(labels) == len(shape) else (None,) * len(shape)
        axes = zip(self.dims_of(name, len(shape)), labels, shape, strict=True)
        sizes_and_labels = ((dim, size, self.coords.get(dim) or label) for dim, label, size in axes)
        return {
            dim: as_coordinate(levels) if levels and len(levels) == size else np.arange(size)
            for dim, size, levels in sizes_and_labels
        }


def entry_labels(labels: Any, identify: bool = True) -> EntryLabels:
    """Return the labels of entries: numbers, times, or anything else as text.

    Example:
        >>> from phalanx.inputs.axis_names import entry_labels
        >>> entry_labels(["a", "b"]).reorder(entry_labels(["b", "a"]))
        True
    """
    array = np.asarray(labels)
    if array.dtype.kind == "M":
        array = array.astype("datetime64[ns]").astype(np.int64)
    elif array.dtype.kind in "iub" or (array.dtype.kind == "f" and np.array_equal(array, np.rint(array))):
        array = array.astype(np.int64)
    elif array.dtype.kind != "f":
        array = np.array([str(label) for label in array.tolist()], str)
    examples = tuple(str(word) for word in words_of(labels[:SHOWN]))
    return EntryLabels(len(array), _checksum(array), _checksum(np.sort(array)), examples, identify)


def _checksum(array: np.ndarray) -> str:
    content = "\0".join(array.tolist()).encode() if array.dtype.kind == "U" else array.tobytes()
    return f"{array.dtype.kind}{hashlib.sha256(content).hexdigest()}"


def words_of(values: Iterable[Any]) -> tuple[Word, ...]:
    """Return the names of entries in types that files have.

    Example:
        >>> import numpy as np
        >>> from phalanx.inputs.axis_names import words_of
        >>> words_of(np.array(["2020-01-01", "2021-07-01"], "datetime64[ns]")), words_of(range(2))
        (('2020-01-01', '2021-07-01'), (0, 1))
    """
    array = np.asarray(values) if hasattr(values, "dtype") else None
    if array is not None and array.dtype.kind == "M":
        return tuple(np.datetime_as_string(array, unit="auto").tolist())
    return tuple(map(_word, values if array is None else array.tolist()))


def _word(value: object) -> Word:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, str | int | float | bool) else str(value)


def as_coordinate(labels: tuple[Word, ...]) -> np.ndarray:
    """Return names as an array, of text if they differ in type."""
    kinds = {type(word) for word in labels}
    return np.array(labels if len(kinds) == 1 or kinds == {int, float} else list(map(str, labels)))
