"""Data as people have them: series, tables, tensors and lists, each turned into one array.

No library is imported for it. What a library makes can only be met where the library has been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from phalanx.inputs.dtype_checks import fitted, refuse_first

Labels = tuple[str, ...]
"""What the entries along the last axis are called; or, as `Levels`, what numbers stand for."""


class Levels(tuple[str, ...]):
    """What the numbers from 0 stand for, in their order."""

    __slots__ = ()


class Taken(NamedTuple):
    """An array, and the names that came with it: of its columns, or of the categories that its numbers stand for."""

    array: Any
    labels: Labels = ()


_CLASSES = {
    "pandas": ("Series", "Index", "DataFrame", "Categorical"),
    "polars": ("Series", "DataFrame"),
    "xarray": ("DataArray", "Dataset"),
    "torch": ("Tensor",),
}
"""What is known of each library."""


def is_data(value: Any) -> bool:
    """Whether `value` is to become one array: what another library made, a range, or a list of numbers."""
    return _library(value) is not None or isinstance(value, range) or _is_sparse(value) or _is_list_of_numbers(value)


def take(name: str, value: Any) -> Taken:
    """`value` as an array with what names it has; arrays, numbers and whatever else is unknown come back as they are.

    Args:
        name: what to call it in messages.
        value: anything.

    Returns:
        The array, not yet of a type that JAX computes with.

    Raises:
        TypeError: when it holds something other than numbers, with the first place, or is no array at all.
        ValueError: when a value is missing where there is no NaN for it, or its rows differ in length.
    """
    library = _library(value)
    if library is not None:
        return _TAKERS[library](name, value)
    if _is_sparse(value):
        raise TypeError(
            f"{name} is a sparse {type(value).__name__}, and rows are spread and computed with as dense arrays. "
            f"Give {name}.toarray(), or its parts (data, indices) as arrays of their own."
        )
    if isinstance(value, range):
        return Taken(np.arange(value.start, value.stop, value.step))
    if _is_list_of_numbers(value):
        return Taken(_of_list(name, value))
    if isinstance(value, np.ma.MaskedArray):
        return Taken(_unmasked(name, value))
    return Taken(value)


def is_table(value: Any) -> bool:
    """Return whether `value` has columns with names."""
    return _library(value) in ("pandas", "polars") and hasattr(value, "columns")


def is_categorical(value: Any) -> bool:
    """Return whether `value` is a categorical series, which knows its levels."""
    library = _library(value)
    if library == "pandas":
        return isinstance(getattr(value, "dtype", None), sys.modules["pandas"].CategoricalDtype)
    polars = sys.modules.get("polars")
    return library == "polars" and getattr(value, "dtype", None) in (polars.Categorical, polars.Enum)  # pyright: ignore[reportOptionalMemberAccess]


def in_form_of(value: Any, array: np.ndarray) -> Any:
    """Return `array` in the form of `value`: with its levels where that is categorical, its columns where a table."""
    library = _library(value)
    if library == "pandas" and is_categorical(value):
        pandas = sys.modules["pandas"]
        made = pandas.Categorical.from_codes(array, dtype=value.dtype)
        return pandas.Series(made) if isinstance(value, pandas.Series) else made
    if library == "polars" and is_categorical(value):
        polars, levels = sys.modules["polars"], take("", value).labels
        return polars.Series([levels[code] for code in array.tolist()], dtype=polars.Enum(levels))
    if is_table(value):
        made_by = sys.modules[library]  # pyright: ignore[reportArgumentType]
        return made_by.DataFrame({name: array[:, number] for number, name in enumerate(value.columns)})
    if library == "xarray" and np.shape(value) == np.shape(array):
        return value.copy(data=array)
    return array


def columns_of(data: Any) -> Mapping[str, Any] | None:
    """The columns of a table by name; None when `data` is no table."""
    library = _library(data)
    if library == "xarray" and isinstance(data, Mapping):
        return {str(name): data[name] for name in data}
    if not is_table(data):
        return None
    _check_columns("data", list(data.columns))
    return {name: data[name] for name in data.columns}


def _library(value: Any) -> str | None:
    for library, names in _CLASSES.items():
        module = sys.modules.get(library)
        classes = (getattr(module, name, None) for name in names)  # of a module that is only half imported, none
        if any(known is not None and isinstance(value, known) for known in classes):
            return library
    return None


def _is_sparse(value: Any) -> bool:
    dense = {"scipy": "toarray", "sparse": "todense"}.get(type(value).__module__.partition(".")[0])
    return dense is not None and hasattr(value, dense)


# -- lists -------------------------------------------------------------------------------------------------------------


def _is_list_of_numbers(value: Any) -> bool:
    """Whether a list or tuple is of numbers, or of such lists: a list of arrays, words or dicts is a tree of them."""
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


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | np.number | np.bool_)


def _of_list(name: str, value: Any) -> np.ndarray:
    for place, item in _leaves(value):
        if item is None:
            raise ValueError(f"{name}{place} is None: a missing number is float('nan'), or leave the row out.")
        if not _is_number(item):
            raise TypeError(f"{name}{place} is {item!r}, which is no number.")
    try:
        return np.array(value)
    except ValueError:
        raise ValueError(
            f"{name} is a list of lists that differ in length ({_lengths(value)}). Pad them to one length and mask "
            f"the rest, or give one array for each."
        ) from None
    except OverflowError:
        return np.array(value, dtype=object)


def _leaves(value: Any, place: str = "") -> Any:
    for number, item in enumerate(value):
        if isinstance(item, list | tuple):
            yield from _leaves(item, f"{place}[{number}]")
        else:
            yield f"{place}[{number}]", item


def _lengths(value: Any) -> str:
    lengths = [len(item) for item in value if isinstance(item, list | tuple)]
    shown = ", ".join(map(str, lengths[:5]))
    return f"{shown}, ..." if len(lengths) > 5 else shown


# -- what each library makes -------------------------------------------------------------------------------------------


def _unmasked(name: str, value: np.ma.MaskedArray) -> np.ndarray:
    masked = np.ma.getmaskarray(value)
    refuse_first(name, masked, lambda _: "is masked, and a model sees no mask", _LEAVE_OUT)
    return np.asarray(value.data)


_LEAVE_OUT = "Leave such rows out, or give floats with NaN where the model is to deal with them."


def _pandas(name: str, value: Any) -> Taken:
    if hasattr(value, "columns"):
        columns = list(value.columns)
        table = _table(
            name, columns, [_pandas_column(f"{name}[{c!r}]", value[c]) for c in _check_columns(name, columns)]
        )
        return Taken(table.array) if _are_places(value.columns) else table
    return _pandas_column(name, value)


def _are_places(columns: Any) -> bool:
    """Return whether columns are numbered in order, as pandas does where no names are given."""
    return isinstance(columns, sys.modules["pandas"].RangeIndex) and (columns.start, columns.step) == (0, 1)


def _pandas_column(name: str, column: Any) -> Taken:
    pandas = sys.modules["pandas"]
    missing = np.asarray(column.isna())
    if isinstance(column.dtype, pandas.CategoricalDtype):
        _refuse_missing(name, missing)
        codes = column.cat.codes if hasattr(column, "cat") else column.codes
        return Taken(np.asarray(codes, np.int32), Levels(map(str, column.dtype.categories)))
    if column.dtype.kind == "M":
        return Taken(column.to_numpy(dtype="datetime64[ns]"))
    if pandas.api.types.is_extension_array_dtype(column.dtype) and column.dtype.kind in "biufc":
        if column.dtype.kind == "f":
            return Taken(column.to_numpy(dtype=column.dtype.type, na_value=np.nan))
        _refuse_missing(name, missing)
        return Taken(np.asarray(column.to_numpy(dtype=column.dtype.type)))
    return Taken(np.asarray(column.to_numpy()))


def _polars(name: str, value: Any) -> Taken:
    if hasattr(value, "columns"):
        return _table(name, value.columns, [_polars_column(f"{name}[{c!r}]", value[c]) for c in value.columns])
    return _polars_column(name, value)


def _polars_column(name: str, column: Any) -> Taken:
    polars = sys.modules["polars"]
    missing = np.asarray(column.is_null())
    if column.dtype in (polars.Categorical, polars.Enum):
        _refuse_missing(name, missing)
        words = column.to_list()
        levels = column.dtype.categories.to_list() if column.dtype == polars.Enum else list(dict.fromkeys(words))
        number = {level: code for code, level in enumerate(levels)}
        return Taken(np.array([number[word] for word in words], np.int32), Levels(levels))
    if column.dtype.is_integer() or column.dtype == polars.Boolean:
        _refuse_missing(name, missing)
    return Taken(np.asarray(column.to_numpy()))


def _table(name: str, columns: list[Any], taken: list[Taken]) -> Taken:
    for column, (_, labels) in zip(columns, taken, strict=True):
        if labels:
            raise TypeError(
                f"{name}[{column!r}] is categorical, and its codes are no covariate. Give the column as an argument of "
                f"its own, or 0-1 columns, as pandas.get_dummies makes them."
            )
    if not taken:
        return Taken(np.zeros((0, 0)))
    arrays = [fitted(f"{name}[{column!r}]", array) for column, (array, _) in zip(columns, taken, strict=True)]
    return Taken(np.column_stack(arrays), tuple(map(str, columns)))


def _check_columns(name: str, columns: list[Any]) -> list[Any]:
    if twice := [column for column in dict.fromkeys(columns) if columns.count(column) > 1]:
        raise ValueError(
            f"{name} has several columns {', '.join(map(repr, twice))}. Rename or drop all but one of each."
        )
    return columns


def _refuse_missing(name: str, missing: np.ndarray) -> None:
    what = "is missing, and whole numbers, flags and categories have no NaN"
    refuse_first(name, missing, lambda _: what, _LEAVE_OUT)


def _xarray(name: str, value: Any) -> Taken:
    if isinstance(value, Mapping):
        raise TypeError(f"{name} is an xarray Dataset; give its variables one by one, as in {name}['x'].")
    last = value.indexes.get(value.dims[-1]) if value.dims else None
    labels = () if last is None else tuple(last)
    return Taken(np.asarray(value.values), labels if all(isinstance(label, str) for label in labels) else ())


def _torch(name: str, value: Any) -> Taken:
    torch = sys.modules["torch"]
    if value.layout is not torch.strided:
        raise TypeError(f"{name} is a sparse torch tensor; give {name}.to_dense().")
    value = value.detach().cpu().resolve_conj().resolve_neg()
    return Taken((value.float() if value.dtype == torch.bfloat16 else value).numpy())


_TAKERS = {"pandas": _pandas, "polars": _polars, "xarray": _xarray, "torch": _torch}
