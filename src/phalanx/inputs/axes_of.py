"""Names of the axes of series, tables and arrays of pandas and xarray."""

from __future__ import annotations

import sys
from typing import Any

from phalanx.inputs.axis_names import SHOWN, Axis, EntryLabels, Word, entry_labels, words_of
from phalanx.inputs.dataframe_input import library_of

MOST_WORDS = 10_000
"""Most entries of a dimension whose names are kept."""


def axes_of(value: Any) -> tuple[Axis, ...]:
    """Return the names of an object's axes; empty if it has none.

    They are the dimensions and coordinates of xarray, the name and the entries of a pandas index, and the name of the
    columns as a whole. Entries of an index without a name are no names, as they often only number rows. The names of
    single columns and levels come with `as_named_array`, since new data must have them. Labels by which two arrays can
    be compared are those of every axis that has some, but repeated ones of an index without a name.

    Example:
        >>> import numpy as np, xarray
        >>> from phalanx.inputs.axes_of import axes_of
        >>> (axis,) = axes_of(xarray.DataArray(np.zeros(2), dims="year", coords={"year": [2024, 2025]}))
        >>> axis.dim, axis.words
        ('year', (2024, 2025))
    """
    library = library_of(value)
    if library == "pandas":
        rows = [value.index] if hasattr(value, "index") else []
        columns = [value.columns] if hasattr(value, "columns") else []
        axes = tuple(
            Axis(_text(index.name), _words(index) if index.name is not None else None, _labels_of_rows(index))
            for index in rows
        )
        axes += tuple(Axis(_text(index.name), None, _labels_of_columns(index)) for index in columns)
    elif library == "xarray" and hasattr(value, "dims"):
        indexes = [value.indexes.get(dim) for dim in value.dims]
        axes = tuple(
            Axis(_text(dim), _words(index), None if index is None else entry_labels(index))
            for dim, index in zip(value.dims, indexes, strict=True)
        )
    else:
        return ()
    return axes if any(map(any, axes)) else ()


def _labels_of_rows(index: Any) -> EntryLabels | None:
    """Return the labels of an index of pandas; None if they only number the rows."""
    if index.name is None and index.nlevels == 1:
        pandas = sys.modules["pandas"]
        if isinstance(index, pandas.RangeIndex):
            # rows of a table, of which two slices are paired by position unless one of them is in another order
            forward = index.step > 0
            ends = sorted((index.start, index.stop - index.step))
            same = f"{type(index).__name__} {ends} {abs(index.step)}"
            shown = tuple(map(str, index[:SHOWN]))
            return EntryLabels(len(index), f"{same} {forward}", same, shown, identify=False)
        if not index.is_unique:
            return None
    return entry_labels(index)


def _labels_of_columns(index: Any) -> EntryLabels | None:
    return entry_labels(index, identify=False) if index.is_unique else None


def _text(name: object) -> str | None:
    """Return a name in the form that groups of ArviZ and Zarr have; None if it is no text."""
    return name.replace("/", ".") if isinstance(name, str) and not name.startswith("__") else None


def _words(index: Any) -> tuple[Word, ...] | None:
    """Return the names of entries that an index has; None if it only numbers them, or there are many."""
    if index is None or index.nlevels > 1 or len(index) > MOST_WORDS or not index.is_unique:
        return None
    words = words_of(index)
    return None if words == tuple(range(len(words))) else words
