"""State of a run's data that new data must agree with: names of levels and columns, and arguments that fill in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from phalanx.inputs.arguments import Arguments, by_keyword, split_arguments
from phalanx.inputs.dataframe_input import Labels, Levels
from phalanx.inputs.placement import PaddedRows

Names = dict[str, tuple[str, tuple[str, ...]]]
"""By array, what its names are of, "levels" or "columns", and the names in the run's order: plain, for files."""

_LEVELS, _COLUMNS = "levels", "columns"


@dataclass(frozen=True)
class KnownData:
    """Names of a run's data, and the arguments that fill in where new data leave them out.

    Attributes:
        labels: names of levels and columns, by array.
        fixed: arguments without rows, such as sizes, scalars, flags and functions: they fill in wherever left out.
        arrays: the other arguments. One fills in where the program asks for it, and its arrays have another number of
            rows than those that are given anew: it then does not belong to these rows.
    """

    labels: Mapping[str, Labels] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, arguments: Arguments, names: Names | None = None) -> KnownData:
        """Build the state of `arguments`; `names` replace their own."""
        names = names_of(arguments) if names is None else names
        labels = labels_of(names)
        rows = [
            PaddedRows(array, sharding.rows if sharding.axes else array.shape[0], labels.get(name, ()))
            if array.ndim else np.asarray(array)
            for name, array, sharding in zip(arguments.names, arguments.arrays, arguments.shardings, strict=True)
        ]  # fmt: skip
        given = arguments.layout.as_given(rows)
        arrays = {name: value for name, value in given.items() if _sizes(value)}
        return cls(labels, {name: value for name, value in given.items() if name not in arrays}, arrays)

    @classmethod
    def of_record(cls, names: Names | None, scalars: Mapping[str, Any]) -> KnownData:
        """Build the state from the record of a file."""
        return cls(labels_of(names or {}), scalars)

    def split(self, program: Any, data: Any) -> Arguments:
        """New data of a program in the run's numbering, with what they leave out filled in.

        Raises:
            TypeError, ValueError: as `split_arguments`; a level that is unknown, and a column that is missing, is
                named.
        """
        data = by_keyword(program, data)
        whole = {**data, **self._filling(program, data)}
        return split_arguments(program, whole, lambda name: self.labels.get(name, ()))

    def _filling(self, program: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        known = {**self.fixed, **self.arrays}
        try:
            parameters = inspect.signature(program).parameters
        except (TypeError, ValueError):  # built-ins and some callables show none
            return {name: value for name, value in self.fixed.items() if name not in data}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        left_out = [name for name in known if name not in data and (takes_any or name in parameters)]
        rows = {size for name in data if name in self.arrays for size in _sizes(self.arrays[name])}
        return {
            name: known[name]
            for name in left_out
            if name in self.fixed or (_is_required(parameters.get(name)) and rows and not rows & _sizes(known[name]))
        }


def names_of(arguments: Arguments, of_variables: Mapping[str, Any] | None = None) -> Names:
    """The names of arrays as a record keeps them.

    Names along the only axis of an array are of rows, which new data have others of. They are kept where variables of
    the program have an entry for each: `of_variables` are the names of variables' entries.
    """
    shared = {words for axes in (of_variables or {}).values() for words in axes if words}
    labelled = zip(arguments.names, arguments.arrays, arguments.labels, strict=True)
    return {
        name: (_LEVELS if isinstance(labels, Levels) else _COLUMNS, tuple(labels))
        for name, array, labels in labelled
        if labels and (isinstance(labels, Levels) or len(array.shape) > 1 or tuple(labels) in shared)
    }


def labels_of(names: Names) -> dict[str, Labels]:
    """Names as arguments have them."""
    return {name: Levels(words) if kind == _LEVELS else tuple(words) for name, (kind, words) in names.items()}


def scalars_of(arguments: Arguments) -> dict[str, Any]:
    """The arguments that a file can hold and that fill in later: numbers, flags, words and shapes."""
    known = KnownData.of(arguments).fixed
    plain = {name: _plain(value) for name, value in known.items()}
    return {name: value for name, value in plain.items() if value is not _OTHER}


_OTHER = object()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.item() if value.ndim == 0 and value.dtype.kind in "biuf" else _OTHER
    if isinstance(value, tuple):
        return value if all(type(item) is int for item in value) else _OTHER
    return value if value is None or isinstance(value, bool | int | float | str) else _OTHER


def _is_required(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is parameter.empty


def _sizes(value: Any) -> set[int]:
    """Numbers of rows of the arrays within an argument."""
    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, PaddedRows))
    return {leaf.rows for leaf in leaves if isinstance(leaf, PaddedRows)}
