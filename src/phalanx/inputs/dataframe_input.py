"""Conversion of series, tables, tensors and lists into one array each, with the names that come with them.

It imports no library: an object of a library can only be passed after that library was imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import numpy as np

from phalanx.inputs.axis_names import SHOWN, Axis, EntryLabels, Word, entry_labels, words_of
from phalanx.inputs.dtype_checks import refuse_first, to_jax_dtype

Labels = tuple[str, ...]
"""Names of the entries along the last axis; or, as `Levels`, of the levels that the numbers encode."""

MOST_WORDS = 10_000
"""Most entries of a dimension whose names are kept."""


class DataTable(Protocol):
    """A table of pandas or Polars, as type checkers see it."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""

    def __getitem__(self, name: Any, /) -> Any:
        """Return a column."""


UserData = Mapping[str, Any] | DataTable
"""A model's data as users give them: keyword arguments by name, or a table with these columns."""


class Levels(tuple[str, ...]):
    """Names of the levels that the codes 0, 1, ... stand for."""

    __slots__ = ()


class NamedArray(NamedTuple):
    """An array, and the names that came with it: of its columns, or of the levels that its numbers stand for."""

    array: Any
    labels: Labels = ()


_CLASSES = {
    "pandas": ("Series", "Index", "DataFrame", "Categorical"),
    "polars": ("Series", "DataFrame"),
    "xarray": ("DataArray", "Dataset"),
    "torch": ("Tensor",),
}
"""Classes that are converted, by library."""


def is_data(value: object) -> bool:
    """Return whether `value` becomes one array: an object of another library, a range, or a list of numbers."""
    return library_of(value) is not None or isinstance(value, range) or _is_sparse(value) or _is_list_of_numbers(value)


def as_named_array(name: str, value: Any) -> NamedArray:
    """Return `value` as an array with its names; arrays, numbers and unknown objects are returned unchanged.

    Args:
        name: its name in messages.
        value: anything.

    Returns:
        The array, not yet in a type that JAX computes with.

    Raises:
        TypeError: when it contains something other than numbers, with the first place, or cannot become an array.
        ValueError: when a value is missing and the type has no NaN, or its rows differ in length.
    """
    library = library_of(value)
    if library is not None:
        return _CONVERTERS[library](name, value)
    if _is_sparse(value):
        raise TypeError(
            f"{name} is a sparse {type(value).__name__}, but Phalanx shards and computes with dense arrays. "
            f"Give {name}.toarray(), or its parts (data, indices) as arrays of their own."
        )
    if isinstance(value, range):
        return NamedArray(np.arange(value.start, value.stop, value.step))
    if _is_list_of_numbers(value):
        return NamedArray(_of_list(name, value))
    if isinstance(value, np.ma.MaskedArray):
        return NamedArray(_values_of_masked(name, value))
    return NamedArray(value)


def is_table(value: object) -> bool:
    """Return whether `value` has columns with names."""
    return library_of(value) in ("pandas", "polars") and hasattr(value, "columns")


def is_categorical(value: object) -> bool:
    """Return whether `value` is a categorical series."""
    library = library_of(value)
    if library == "pandas":
        return isinstance(getattr(value, "dtype", None), sys.modules["pandas"].CategoricalDtype)
    polars = sys.modules.get("polars")
    return library == "polars" and getattr(value, "dtype", None) in (polars.Categorical, polars.Enum)  # pyright: ignore[reportOptionalMemberAccess]


def in_form_of(value: Any, array: np.ndarray) -> Any:
    """Return `array` in the form of `value`: with its levels where that is categorical, its columns where a table."""
    library = library_of(value)
    if library == "pandas" and is_categorical(value):
        pandas = sys.modules["pandas"]
        categorical = pandas.Categorical.from_codes(array, dtype=value.dtype)
        return pandas.Series(categorical) if isinstance(value, pandas.Series) else categorical
    if library == "polars" and is_categorical(value):
        polars = sys.modules["polars"]
        levels = as_named_array("", value).labels
        return polars.Series([levels[code] for code in array.tolist()], dtype=polars.Enum(levels))
    if is_table(value):
        made_by = sys.modules[library]  # pyright: ignore[reportArgumentType]
        return made_by.DataFrame({name: array[:, number] for number, name in enumerate(value.columns)})
    if library == "xarray" and np.shape(value) == np.shape(array):
        return value.copy(data=array)
    return array


def columns_of(data: Any) -> Mapping[str, Any] | None:
    """Return the columns of a table by name; None when `data` is not a table."""
    library = library_of(data)
    if library == "xarray" and isinstance(data, Mapping):
        return {str(name): data[name] for name in data}
    if not is_table(data):
        return None
    _check_columns("data", list(data.columns))
    return {name: data[name] for name in data.columns}


def library_of(value: object) -> str | None:
    """Return the library that an object belongs to, if it is converted; otherwise None."""
    for library, names in _CLASSES.items():
        module = sys.modules.get(library)
        classes = (getattr(module, name, None) for name in names)  # None while the module is still being imported
        if any(class_ is not None and isinstance(value, class_) for class_ in classes):
            return library
    return None


def _is_sparse(value: object) -> bool:
    dense = {"scipy": "toarray", "sparse": "todense"}.get(type(value).__module__.partition(".")[0])
    return dense is not None and hasattr(value, dense)


# -- lists -------------------------------------------------------------------------------------------------------------


def _is_list_of_numbers(value: object) -> bool:
    """Return whether a list or tuple contains numbers or such lists; one of arrays, words or dicts is a tree."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields"):
        return False
    if not value:
        return isinstance(value, list)
    first = value[0]
    if isinstance(first, list | tuple):
        return all(isinstance(item, list | tuple) and _is_list_of_numbers(item) for item in value)
    if not _is_number(first) and not (first is None and any(map(_is_number, value))):
        return False
    return not any(isinstance(item, dict) or np.ndim(item) for item in value if not _is_number(item))


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | complex | Decimal | np.number | np.bool_)


def _of_list(name: str, value: Sequence[object]) -> np.ndarray:
    for place, item in _leaves(value):
        if item is None:
            raise ValueError(f"{name}{place} is None: a missing number is float('nan'), or leave the row out.")
        if not _is_number(item):
            raise TypeError(f"{name}{place} is {item!r}, which is not a number.")
    try:
        array = np.array(value)
        return array.astype(float) if any(isinstance(item, Decimal) for _, item in _leaves(value)) else array
    except ValueError:
        raise ValueError(
            f"{name} is a list of lists that differ in length ({_lengths(value)}). Pad them to one length and mask "
            f"the rest, or give one array for each."
        ) from None
    except OverflowError:
        return np.array(value, dtype=object)


def _leaves(value: Sequence[object], place: str = "") -> Iterator[tuple[str, object]]:
    for number, item in enumerate(value):
        if isinstance(item, list | tuple):
            yield from _leaves(item, f"{place}[{number}]")
        else:
            yield f"{place}[{number}]", item


def _lengths(value: Sequence[object]) -> str:
    lengths = [len(item) for item in value if isinstance(item, list | tuple)]
    text = ", ".join(map(str, lengths[:5]))
    return f"{text}, ..." if len(lengths) > 5 else text


# -- objects of each library -------------------------------------------------------------------------------------------


def _values_of_masked(name: str, value: np.ma.MaskedArray) -> np.ndarray:
    masked = np.ma.getmaskarray(value)
    refuse_first(name, masked, lambda _: "is masked, and a model does not see masks", _LEAVE_OUT)
    return np.asarray(value.data)


_LEAVE_OUT = (
    'Leave such rows out; or, if the model observes them, call phx.mcmc or phx.fit(..., missing="impute"); or give '
    "floats with NaN if the model handles them."
)


def _pandas(name: str, value: Any) -> NamedArray:
    if hasattr(value, "columns"):
        columns = list(value.columns)
        table = _table(
            name, columns, [_pandas_column(f"{name}[{c!r}]", value[c]) for c in _check_columns(name, columns)]
        )
        return NamedArray(table.array) if _are_positions(value.columns) else table
    return _pandas_column(name, value)


def _are_positions(columns: Any) -> bool:
    """Return whether columns are numbered in order, as pandas does if no names are given."""
    return isinstance(columns, sys.modules["pandas"].RangeIndex) and (columns.start, columns.step) == (0, 1)


def _pandas_column(name: str, column: Any) -> NamedArray:
    pandas = sys.modules["pandas"]
    missing = np.asarray(column.isna())
    if isinstance(column.dtype, pandas.CategoricalDtype):
        _refuse_missing(name, missing)
        codes = column.cat.codes if hasattr(column, "cat") else column.codes
        return NamedArray(np.asarray(codes, np.int32), Levels(map(str, column.dtype.categories)))
    if column.dtype.kind == "M":
        return NamedArray(column.to_numpy(dtype="datetime64[ns]"))
    if pandas.api.types.is_extension_array_dtype(column.dtype) and column.dtype.kind in "biufc":
        if column.dtype.kind == "f":
            return NamedArray(column.to_numpy(dtype=column.dtype.type, na_value=np.nan))
        _refuse_missing(name, missing)
        return NamedArray(np.asarray(column.to_numpy(dtype=column.dtype.type)))
    return NamedArray(np.asarray(column.to_numpy()))


def _polars(name: str, value: Any) -> NamedArray:
    if hasattr(value, "columns"):
        return _table(name, value.columns, [_polars_column(f"{name}[{c!r}]", value[c]) for c in value.columns])
    return _polars_column(name, value)


def _polars_column(name: str, column: Any) -> NamedArray:
    polars = sys.modules["polars"]
    missing = np.asarray(column.is_null())
    if column.dtype in (polars.Categorical, polars.Enum):
        _refuse_missing(name, missing)
        strings = column.to_list()
        levels = column.dtype.categories.to_list() if column.dtype == polars.Enum else list(dict.fromkeys(strings))
        number = {level: code for code, level in enumerate(levels)}
        return NamedArray(np.array([number[word] for word in strings], np.int32), Levels(levels))
    if column.dtype.is_integer() or column.dtype == polars.Boolean:
        _refuse_missing(name, missing)
    return NamedArray(np.asarray(column.to_numpy()))


def _table(name: str, columns: list[Any], arrays: list[NamedArray]) -> NamedArray:
    for column, (_, labels) in zip(columns, arrays, strict=True):
        if labels:
            raise TypeError(
                f"{name}[{column!r}] is categorical, and its codes must not be used as a covariate. Give the column as "
                f"an argument of its own, or 0-1 columns, as pandas.get_dummies makes them."
            )
    if not arrays:
        return NamedArray(np.zeros((0, 0)))
    narrow = [to_jax_dtype(f"{name}[{column!r}]", array) for column, (array, _) in zip(columns, arrays, strict=True)]
    return NamedArray(np.column_stack(narrow), tuple(map(str, columns)))


def _check_columns(name: str, columns: list[Any]) -> list[Any]:
    if twice := [column for column in dict.fromkeys(columns) if columns.count(column) > 1]:
        raise ValueError(
            f"{name} has several columns {', '.join(map(repr, twice))}. Rename or drop all but one of each."
        )
    return columns


def _refuse_missing(name: str, missing: np.ndarray) -> None:
    what = "is missing, and whole numbers, flags and categories have no NaN"
    refuse_first(name, missing, lambda _: what, _LEAVE_OUT)


def _xarray(name: str, value: Any) -> NamedArray:
    if isinstance(value, Mapping):
        raise TypeError(f"{name} is an xarray Dataset; give its variables one by one, as in {name}['x'].")
    last = value.indexes.get(value.dims[-1]) if value.dims else None
    labels = () if last is None else tuple(last)
    return NamedArray(np.asarray(value.values), labels if all(isinstance(label, str) for label in labels) else ())


def _torch(name: str, value: Any) -> NamedArray:
    torch = sys.modules["torch"]
    if value.layout is not torch.strided:
        raise TypeError(f"{name} is a sparse torch tensor; give {name}.to_dense().")
    value = value.detach().cpu().resolve_conj().resolve_neg()
    return NamedArray((value.float() if value.dtype == torch.bfloat16 else value).numpy())


_CONVERTERS = {"pandas": _pandas, "polars": _polars, "xarray": _xarray, "torch": _torch}


def axes_of(value: Any) -> tuple[Axis, ...]:
    """Return the names of an object's axes; empty if it has none.

    They are the dimensions and coordinates of xarray, the name and the entries of a pandas index, and the name of the
    columns as a whole. Entries of an index without a name are no names, as they often only number rows. The names of
    single columns and levels come with `as_named_array`, since new data must have them. Labels by which two arrays can
    be compared are those of every axis that has some, but repeated ones of an index without a name.

    Example:
        >>> import numpy as np, xarray
        >>> from phalanx.inputs.dataframe_input import axes_of
        >>> (axis,) = axes_of(xarray.DataArray(np.zeros(2), dims="year", coords={"year": [2024, 2025]}))
        >>> axis.dim, axis.labels
        ('year', (2024, 2025))
    """
    library = library_of(value)
    if library == "pandas":
        rows = [value.index] if hasattr(value, "index") else []
        columns = [value.columns] if hasattr(value, "columns") else []
        axes = tuple(
            Axis(_text(index.name), _labels_of_index(index) if index.name is not None else None, _labels_of_rows(index))
            for index in rows
        )
        axes += tuple(
            Axis(_text(index.name), None, entry_labels(index, identify=False) if index.is_unique else None)
            for index in columns
        )
    elif library == "xarray" and hasattr(value, "dims"):
        indexes = [value.indexes.get(dim) for dim in value.dims]
        axes = tuple(
            Axis(_text(dim), _labels_of_index(index), None if index is None else entry_labels(index))
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
            examples = tuple(map(str, index[:SHOWN]))
            return EntryLabels(len(index), f"{same} {forward}", same, examples, identify=False)
        if not index.is_unique:
            return None
    return entry_labels(index)


def _text(name: object) -> str | None:
    """Return a name in the form that groups of ArviZ and Zarr have; None if it is no text."""
    return name.replace("/", ".") if isinstance(name, str) and not name.startswith("__") else None


def _labels_of_index(index: Any) -> tuple[Word, ...] | None:
    """Return the names of entries that an index has; None if it only numbers them, or there are many."""
    if index is None or index.nlevels > 1 or len(index) > MOST_WORDS or not index.is_unique:
        return None
    labels = words_of(index)
    return None if labels == tuple(range(len(labels))) else labels
