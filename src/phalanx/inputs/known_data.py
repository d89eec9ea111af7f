"""Names of levels and columns that new data must agree with, and arguments of a run that new data may leave out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from phalanx.inputs.arguments import Arguments, by_keyword, split_arguments
from phalanx.inputs.dataframe_input import Labels, Levels
from phalanx.inputs.placement import PaddedRows

Names = dict[str, tuple[str, tuple[str, ...]]]
"""By array, "levels" or "columns", and the names in the run's order: plain types, for files."""

_LEVELS = "levels"
_COLUMNS = "columns"


@dataclass(frozen=True)
class KnownData:
    """Names of a run's data, and the arguments that fill in if new data leave them out.

    Attributes:
        labels: names of levels and columns, by array.
        without_rows: sizes, scalars, flags and functions; each fills in wherever new data leave it out.
        with_rows: the other arguments. One fills in if the program requires it, and its arrays have a number of rows
            that no array given anew had in the run: it then does not belong to the new rows.
    """

    labels: Mapping[str, Labels] = field(default_factory=dict)
    without_rows: Mapping[str, Any] = field(default_factory=dict)
    with_rows: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, arguments: Arguments, names: Names | None = None) -> KnownData:
        """Return the names and arguments of a run's data; `names` replace those of `arguments`."""
        names = names_of(arguments) if names is None else names
        labels = labels_of(names)
        rows = [
            PaddedRows(array, sharding.rows if sharding.axes else array.shape[0], labels.get(name, ()))
            if array.ndim
            else np.asarray(array)
            for name, array, sharding in zip(arguments.names, arguments.arrays, arguments.shardings, strict=True)
        ]
        leaves = arguments.layout.as_given(rows)
        with_rows = {name: value for name, value in leaves.items() if _sizes(value)}
        return cls(labels, {name: value for name, value in leaves.items() if name not in with_rows}, with_rows)

    @classmethod
    def of_record(cls, names: Names | None, scalars: Mapping[str, Any]) -> KnownData:
        """Return the names and the arguments without rows that the record of a file has."""
        return cls(labels_of(names or {}), scalars)

    def split(self, program: Callable[..., Any], data: object) -> Arguments:
        """Return new data of a program in the run's numbering, with the arguments that they leave out filled in.

        Raises:
            TypeError, ValueError: as `split_arguments`; the message names an unknown level or a missing column.
        """
        data = by_keyword(program, data)
        complete = {**data, **self._left_out_by(program, data)}
        return split_arguments(program, complete, lambda name: self.labels.get(name, ()))

    def _left_out_by(self, program: Callable[..., Any], data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run's arguments that fill in for those that new data leave out."""
        values = {**self.without_rows, **self.with_rows}
        try:
            parameters = inspect.signature(program).parameters
        except (TypeError, ValueError):  # built-ins and some callables have no signature
            return {name: value for name, value in self.without_rows.items() if name not in data}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        left_out = [name for name in values if name not in data and (takes_any or name in parameters)]
        rows = {size for name in data if name in self.with_rows for size in _sizes(self.with_rows[name])}
        return {
            name: values[name]
            for name in left_out
            if name in self.without_rows
            or (is_required(parameters.get(name)) and rows and not rows & _sizes(values[name]))
        }


def names_of(arguments: Arguments, of_variables: Mapping[str, Any] | None = None) -> Names:
    """Return the names of arrays as a record keeps them.

    Names along the only axis of an array belong to rows, and new data have other rows. They are kept if variables of
    the program have an entry for each: `of_variables` are the names of variables' entries.
    """
    dims_of_variables = {of_axis for axes in (of_variables or {}).values() for of_axis in axes if of_axis}
    labelled = [*zip(arguments.names, arguments.whole_shapes(), arguments.labels, strict=True)]
    labelled += [(name, constant, constant.labels) for name, constant in arguments.constants.items()]
    return {
        name: (_LEVELS if isinstance(labels, Levels) else _COLUMNS, tuple(labels))
        for name, array, labels in labelled
        if labels and (isinstance(labels, Levels) or len(array.shape) > 1 or tuple(labels) in dims_of_variables)
    }


def labels_of(names: Names) -> dict[str, Labels]:
    """Return names in the form that arguments have."""
    return {name: Levels(labels) if kind == _LEVELS else tuple(labels) for name, (kind, labels) in names.items()}


def scalars_of(arguments: Arguments) -> dict[str, Any]:
    """Return the arguments that a file can store and that fill in later: numbers, flags, words and shapes."""
    scalars = KnownData.of(arguments).without_rows
    plain = {name: _plain(value) for name, value in scalars.items()}
    return {name: value for name, value in plain.items() if value is not _OTHER}


_OTHER = object()


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.item() if value.ndim == 0 and value.dtype.kind in "biuf" else _OTHER
    if isinstance(value, tuple):
        return value if all(type(item) is int for item in value) else _OTHER
    return value if value is None or isinstance(value, bool | int | float | str) else _OTHER


def is_required(parameter: inspect.Parameter | None) -> bool:
    """Return whether a parameter exists and has no default."""
    return parameter is not None and parameter.default is parameter.empty


def _sizes(value: object) -> set[int]:
    """Return the numbers of rows of the arrays within an argument."""
    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, PaddedRows))
    return {leaf.rows for leaf in leaves if isinstance(leaf, PaddedRows)}
