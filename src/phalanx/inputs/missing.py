"""Missing entries of data in one form: NaN in arrays of real numbers; in others a valid number beside a mask.

Masks of NumPy, NA of pandas, nulls of Polars, and None among numbers mean the same. It imports no library: an object of
a library can only be passed after that library was imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.inputs.arguments import by_keyword, is_leaf
from phalanx.inputs.dataframe_input import is_categorical, is_table, library_of
from phalanx.inputs.placement import name_of


class MarkedData(NamedTuple):
    """Keyword arguments in which only NaN is missing, and masks of the arrays that have no NaN, by name."""

    data: dict[str, Any]
    masks: dict[str, np.ndarray]


def mark_missing(program: Callable[..., Any], data: object) -> MarkedData:
    """Return the keyword arguments of a program with their missing entries in one form.

    Args:
        program: the program.
        data: its keyword arguments: a dict, or a table that has them as columns.

    Returns:
        The arguments. Missing real numbers are NaN. Whole numbers, flags and categories keep their type: a missing one
        is replaced by one of the others, and is True in a mask of the array's shape.

    Raises:
        ValueError: if all entries of an array of whole numbers, flags or categories are missing.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(dict(by_keyword(program, data)), is_leaf=is_leaf)
    masks: dict[str, np.ndarray] = {}
    leaves = []
    for path, leaf in paths:
        marked, mask = _mark_missing(leaf)
        if mask is not None and mask.all():
            raise ValueError(f"data: {name_of(path)} has no entry that is not missing. Leave the argument out.")
        if mask is not None:
            masks[name_of(path)] = mask
        leaves.append(marked)
    return MarkedData(jax.tree.unflatten(tree, leaves), masks)


def _mark_missing(leaf: object) -> tuple[Any, np.ndarray | None]:
    if isinstance(leaf, np.ma.MaskedArray):
        return _of_mask(np.asarray(leaf.data), np.ma.getmaskarray(leaf))
    if isinstance(leaf, list | tuple) and is_leaf(leaf) and None in _flat(leaf):
        return _of_objects(leaf, np.array(leaf, dtype=object))
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        return _of_objects(leaf, leaf)
    library = library_of(leaf)
    if library not in ("pandas", "polars"):
        return leaf, None
    if is_table(leaf):
        return _of_table(leaf), None
    return (_of_pandas if library == "pandas" else _of_polars)(leaf)


def _flat(items: Any) -> list[Any]:
    return [inner for item in items for inner in (_flat(item) if isinstance(item, list | tuple) else [item])]


def _of_mask(values: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    if not mask.any():
        return values, None
    if values.dtype.kind == "f":
        return np.where(mask, values.dtype.type(np.nan), values), None
    return np.where(mask, values[~mask][0], values) if not mask.all() else values, mask


def _of_objects(objects: np.ndarray | Sequence[object], items: np.ndarray) -> tuple[Any, np.ndarray | None]:
    """Return an array of numbers among which some are missing as such; other objects unchanged."""
    mask = np.array([_is_missing(item) for item in items.ravel()], bool).reshape(items.shape)
    present = items[~mask].tolist()
    if not mask.any() or not all(isinstance(item, bool | int | float | np.number | np.bool_) for item in present):
        return objects, None
    numbers = np.array(present) if present else np.zeros(0)
    whole = np.full(items.shape, np.nan if numbers.dtype.kind == "f" else 0, numbers.dtype)
    whole[~mask] = numbers
    return _of_mask(whole, mask)


def _is_missing(item: object) -> bool:
    """Return whether an object is None, pandas' NA, or NaN, the only number unequal to itself."""
    return item is None or type(item).__name__ in ("NAType", "NaTType") or (isinstance(item, float) and item != item)


def _of_pandas(column: Any) -> tuple[Any, np.ndarray | None]:
    mask = np.asarray(column.isna())
    if not mask.any():
        return column, None
    if is_categorical(column) or _is_nullable(column.dtype):
        return (column if mask.all() else column.fillna(column[~mask].dropna().tolist()[0])), mask
    return _of_objects(column, np.asarray(column.to_numpy())) if column.dtype == object else (column, None)


def _is_nullable(dtype: Any) -> bool:
    """Return whether a type of pandas holds whole numbers or flags with NA."""
    return sys.modules["pandas"].api.types.is_extension_array_dtype(dtype) and dtype.kind in "biu"


def _of_polars(column: Any) -> tuple[Any, np.ndarray | None]:
    mask = np.asarray(column.is_null().to_numpy())
    if not mask.any() or column.dtype.is_float():
        return column, None
    return (column if mask.all() else column.fill_null(column.drop_nulls()[0])), mask


def _of_table(table: Any) -> Any:
    """Return a table of numbers with real numbers in the columns where whole numbers or flags are missing."""
    if library_of(table) == "polars":
        polars = sys.modules["polars"]
        narrow = [c for c in table.columns if table[c].null_count() and table[c].dtype.is_numeric()]
        return table.with_columns([polars.col(c).cast(polars.Float64) for c in narrow])
    missing = table.isna().any()
    narrow = [c for c in table.columns if missing[c] and _is_nullable(table.dtypes[c])]
    return table.astype(dict.fromkeys(narrow, "Float64"))
