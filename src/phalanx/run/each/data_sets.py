"""Division of data into many data sets: by the levels of a column, or along an axis of some arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.errors.message_text import count, first_few
from phalanx.errors.names import hint
from phalanx.inputs.arguments import by_keyword, check_program
from phalanx.inputs.dataframe_input import Levels, as_named_array, columns_of, in_form_of, is_data
from phalanx.inputs.dtype_checks import to_jax_dtype
from phalanx.language.tracing import Program

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped

Each = str | Mapping[str, int]
"""The argument `each` of `phx.mcmc`."""


@dataclass(frozen=True)
class DataSets:
    """Many data sets of one model.

    Attributes:
        names: their names: levels of the column that divides the rows, or numbers.
        per_set: arrays `(set, ...)` by argument, of which each data set has its own entry; where data sets differ in
            their numbers of rows, rows are filled up with copies of the last one.
        shared: the arguments that all data sets share.
        rows: number of rows of each data set; None if all have as many.
        of_rows: names of the arguments that are divided row by row; empty where data sets lie along an axis.
        forms: an object in whose form an argument is given to the model, such as a categorical series.
    """

    names: tuple[Any, ...]
    per_set: Mapping[str, Shaped[np.ndarray, "sets *shape"]]
    shared: Mapping[str, Any]
    rows: Int[np.ndarray, "sets"] | None
    of_rows: frozenset[str]
    forms: Mapping[str, Any]

    @classmethod
    def of(cls, model: Program, data: Any, each: Each) -> DataSets:
        """Divide data into data sets.

        Raises:
            TypeError: when `each` is neither the name of a column nor a dict of axes by argument.
            ValueError: when a name is unknown, lengths differ, or a data set has no rows or no values.
        """
        check_program(model)
        if isinstance(each, str):
            sets = cls._of_column(model, data, each)
        elif (
            isinstance(each, Mapping)
            and each
            and all(isinstance(n, str) and _is_axis(axis) for n, axis in each.items())
        ):
            sets = cls._along_axes(by_keyword(model, data), each)
        else:
            raise TypeError(
                f"each: expected the name of a column with a value for each data set, such as 'subject', or a "
                f"dict of axes by argument, such as {{'y': 0}}; got {each!r}."
            )
        sets._check_values()
        return sets

    @property
    def count(self) -> int:
        """Number of data sets."""
        return len(self.names)

    @property
    def most(self) -> int:
        """Rows of the longest data set."""
        return next(self.per_set[name].shape[1] for name in self.of_rows)

    @property
    def notice(self) -> str:
        """Sentence that names the arrays which a division by a column leaves whole; empty without such arrays."""
        texts = [f"{name} {x.shape}" for name, x in self.shared.items() if getattr(x, "shape", ())]
        if not texts or not self.of_rows:
            return ""
        names = ", ".join(texts)
        return f"phalanx: each: the same for every data set, since their lengths differ from the rows': {names}"

    def text_of(self, numbers: Sequence[int] | np.ndarray) -> str:
        """Return the names of some data sets for a message."""
        return first_few([repr(self.names[int(number)]) for number in numbers])

    def one(self, number: int, with_padding: bool) -> dict[str, Any]:
        """Return the data of one data set, as the model takes them.

        Args:
            number: number of the data set.
            with_padding: keep the rows that fill up a data set.
        """
        data = dict(self.shared)
        for name, arrays in self.per_set.items():
            array = arrays[number]
            if self.rows is not None and not with_padding and name in self.of_rows:
                array = array[: self.rows[number]]
            data[name] = in_form_of(self.forms[name], array) if name in self.forms else jnp.asarray(array)
        return data

    def _check_values(self) -> None:
        for name, arrays in self.per_set.items():
            if arrays.dtype.kind != "f":
                continue
            missing = np.isnan(arrays).reshape(len(arrays), -1)
            empty = np.flatnonzero(missing.all(1))
            if empty.size and missing.shape[1] > 1:
                raise ValueError(
                    f"each: {name} has no value in data set {self.text_of(empty)}: all are NaN. "
                    f"Leave such data sets out."
                )

    @classmethod
    def _of_column(cls, model: Program, data: Any, column: str) -> DataSets:
        columns = columns_of(data)
        by_name = columns if columns is not None else data
        if not isinstance(by_name, Mapping):
            raise TypeError(f"data: expected a table or a dict with a column {column!r}; got {type(data).__name__}.")
        if column not in by_name:
            raise ValueError(
                f"each={column!r}: the data have no column of this name; they have "
                f"{', '.join(map(repr, by_name)) or 'none'}.{hint(column, by_name)} Data sets along an axis of "
                f"arguments: each={{'y': 0}}."
            )
        codes, names = _levels(column, by_name[column])
        counts = np.bincount(codes, minlength=len(names))
        if not counts.all():
            without = first_few([repr(names[number]) for number in np.flatnonzero(counts == 0)])
            raise ValueError(
                f"each={column!r}: data set {without} has no rows. Remove levels that no row has, as pandas does with "
                f".cat.remove_unused_categories()."
            )
        others = {name: value for name, value in by_name.items() if name != column}
        arguments = by_keyword(model, data if columns is None else data[list(others)])
        arguments = {name: value for name, value in arguments.items() if name != column}
        order = np.argsort(codes, kind="stable")
        most = int(counts.max())
        last = np.cumsum(counts) - 1
        first = last - counts + 1
        # the row in each place of each data set; behind its last row come copies of it
        places = order[np.minimum(first[:, None] + np.arange(most), last[:, None])]
        of_rows = {name: x for name, v in arguments.items() if len(x := _array(name, v)) and len(x) == len(codes)}
        for name, value in arguments.items():
            if name not in of_rows:
                _refuse_rows_within(name, value, len(codes))
        if not of_rows:
            raise ValueError(
                f"each={column!r}: no argument of the model has {len(codes)} rows, as this column has; there are "
                f"{', '.join(map(repr, arguments)) or 'none'}."
            )
        return cls(
            names,
            {name: array[places] for name, array in of_rows.items()},
            {name: _copy_array(value) for name, value in arguments.items() if name not in of_rows},
            None if (counts == most).all() else counts,
            frozenset(of_rows),
            _forms(arguments, of_rows),
        )

    @classmethod
    def _along_axes(cls, arguments: Mapping[str, Any], axes: Mapping[str, int]) -> DataSets:
        if unknown := [name for name in axes if name not in arguments]:
            raise ValueError(
                f"each: the data have no argument {unknown[0]!r}; they have "
                f"{', '.join(map(repr, arguments)) or 'none'}.{hint(unknown[0], arguments)}"
            )
        per_set: dict[str, Any] = {}
        for name, axis in axes.items():
            array = _array(name, arguments[name])
            if not array.size:
                raise ValueError(
                    f"each: {name} is {_kind(arguments[name])}; expected an array with an entry for each data set "
                    f"along axis {axis}. Data sets of several lengths: each= with the name of a column."
                )
            if not -array.ndim <= axis < array.ndim:
                raise ValueError(
                    f"each: {name} has shape {array.shape}, and no axis {axis}. Give the number of one of its axes."
                )
            per_set[name] = np.array(np.moveaxis(array, axis, 0))  # a copy: the caller's array may change
        counts = {name: len(array) for name, array in per_set.items()}
        if len(set(counts.values())) > 1:
            counts_by_name = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(
                f"each: the arguments have different numbers of data sets: {counts_by_name}. Give as many of each."
            )
        shared_arrays = {name: _copy_array(value) for name, value in arguments.items() if name not in per_set}
        names = tuple(range(next(iter(counts.values()))))
        return cls(names, per_set, shared_arrays, None, frozenset(), {})


def _is_axis(axis: object) -> bool:
    return isinstance(axis, int | np.integer) and not isinstance(axis, bool)


def _levels(column: str, values: Any) -> tuple[Int[np.ndarray, "rows"], tuple[Any, ...]]:
    """Return the number of each row's data set, and the names of the data sets in order."""
    _refuse_missing_names(column, values)
    array, labels = as_named_array(f"data: {column}", values)
    array = np.asarray(array)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"each={column!r}: expected a column with a value for each row; it has shape {array.shape}.")
    if isinstance(labels, Levels):
        categories = getattr(getattr(values, "cat", values), "categories", None)  # of pandas, in their own type
        of_column = labels if categories is None else categories.tolist()
        return array.astype(np.int64), tuple(
            name if isinstance(name, str | int | float) else str(name) for name in of_column
        )
    try:
        names, codes = np.unique(array, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in array}))
        raise TypeError(f"each={column!r}: its values have several types: {kinds}. Give names of one type.") from None
    if names.dtype.kind == "M":
        return codes, tuple(map(str, np.datetime_as_string(names, unit="auto")))
    return codes, tuple(names.tolist())


def _array(name: str, value: object) -> Shaped[np.ndarray, "..."]:
    """Return an argument in a type that JAX computes with; an array without elements if it is no array."""
    if not (is_data(value) or isinstance(value, np.ndarray) or hasattr(value, "__array__")):
        return np.zeros(0)  # a tree, such as a dict or a list of arrays
    array = np.asarray(as_named_array(f"data: {name}", value).array)
    if not array.ndim:
        return np.zeros(0)
    return np.asarray(to_jax_dtype(f"data: {name}", array))


def _forms(arguments: Mapping[str, Any], of_rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments whose levels or columns have names."""
    return {name: arguments[name] for name in of_rows if as_named_array(name, arguments[name]).labels}


def _refuse_missing_names(column: str, values: Any) -> None:
    """Raise if a row does not say which data set it belongs to."""
    from pandas import isna  # as slow to import as all of Phalanx

    rows = np.asarray(values, object) if isinstance(values, list | tuple) else values
    missing = np.flatnonzero([isna(value) is True for value in rows] if np.ndim(rows) == 1 else [])
    if missing.size:
        raise ValueError(
            f"each={column!r}: {count(missing.size, 'row')} without a value there (the first: row {missing[0]}). Name "
            f"the data set, or leave such rows out."
        )


def _refuse_rows_within(name: str, value: object, rows: int) -> None:
    """Raise if an argument that all data sets share is a tree with an entry for each row."""
    leaves = [] if is_data(value) or hasattr(value, "shape") else jax.tree.leaves(value)
    if (isinstance(value, list | tuple) and len(value) == rows) or any(
        np.shape(leaf)[:1] == (rows,) for leaf in leaves
    ):
        raise ValueError(
            f"each: {name} is {_kind(value)} with an entry for each row, and only arrays, columns and tables are "
            f"divided. Give each array as an argument of its own, and words as a categorical column."
        )


def _kind(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__}"
    return "a number" if np.ndim(value) == 0 else "an array without entries"


def _copy_array(value: object) -> object:
    return np.array(value) if isinstance(value, np.ndarray) else value
