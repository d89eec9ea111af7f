"""Conversion of new data to the numbering of a run: levels and columns are matched by their names.

A level has one number in a run, and a column one position. New data may have the levels in another order, or only some
of them, or the columns in another order. New data without names are refused if the run's data had names: a number may
be a code of any numbering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from phalanx.inputs.dataframe_input import Labels, Levels, NamedArray, as_named_array, is_categorical, is_table
from phalanx.inputs.dtype_checks import refuse_first
from phalanx.inputs.placement import PaddedRows

SHOWN = 12
"""Most names that a message lists."""


def recode(name: str, value: object, labels: Labels) -> NamedArray:
    """Return `value` as an array in the numbering of a run.

    Args:
        name: its name in messages.
        value: anything that `as_named_array` accepts, or words if the run had levels.
        labels: the run's names: `Levels` of a categorical argument, the names of columns, or none.

    Returns:
        The array and the run's names.

    Raises:
        ValueError: when a level is unknown, a column is missing, or only the run's data or only the new data have
            names.
    """
    if isinstance(labels, Levels):
        return NamedArray(_codes(name, value, labels), labels)
    if not labels:
        named_array = _with_names(name, value)
        _refuse_new_names(name, named_array)
        return NamedArray(named_array.array)
    return NamedArray(_columns(name, value, labels), labels)


def _with_names(name: str, value: object) -> NamedArray:
    """Return the array with the names that came with it, also of rows that `shard` has placed."""
    return NamedArray(value, value.labels) if isinstance(value, PaddedRows) else as_named_array(name, value)


# -- levels ------------------------------------------------------------------------------------------------------------


def _codes(name: str, value: object, run_levels: Levels) -> Any:
    if value is None:
        return None
    _refuse_twice(name, run_levels)
    if (strings := _words(name, value)) is not None:
        levels, codes = np.unique(strings, return_inverse=True)
        return _recode_levels(name, codes.reshape(strings.shape), levels.tolist(), run_levels)
    codes, levels = _with_names(name, value)
    if isinstance(levels, Levels):
        _refuse_twice(name, levels)
        return _recode_levels(name, codes, levels, run_levels)
    raise ValueError(
        f"{name} has no names of levels, but the run's data had {listed(run_levels)}. A number may be a code of "
        f"another numbering, so name the levels: give words, or pandas.Categorical.from_codes(codes, levels) with the "
        f"levels that your codes stand for."
    )


def _words(name: str, value: object) -> np.ndarray | None:
    """Return `value` as an array of words; None if it is something else."""
    if is_categorical(value) or isinstance(value, Array | PaddedRows) or is_table(value):
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "OUT":
        return None
    array = array.astype(object)
    word = np.array([isinstance(item, str) for item in array.flat], bool).reshape(array.shape)
    if not np.any(word):
        return None
    what = "is not a word, as the other levels are; a missing level, None or NaN, has no number"
    refuse_first(name, ~word, lambda at: f"= {array[at]!r} {what}", "Leave such rows out, or give them a level.")
    return array.astype(str)


def _recode_levels(name: str, codes: Any, levels: Sequence[str], run_levels: Levels) -> Any:
    """Return the run's codes of levels that `codes` number as `levels` does."""
    if tuple(levels) == tuple(run_levels):
        return codes
    number = {level: code for code, level in enumerate(run_levels)}
    lookup = np.array([number.get(level, -1) for level in levels], np.int32)
    if isinstance(codes, PaddedRows):
        codes_there = _on_devices(codes, lambda array: jnp.asarray(lookup)[array])
        unknown = sorted({int(code) for code in _host(codes, (lookup < 0))})
        if unknown:
            _refuse_unknown(name, levels[unknown[0]], run_levels)
        return codes_there
    codes_there = lookup[codes]
    wrong = codes_there < 0
    if wrong.any():
        first = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), np.shape(codes_there))))
        place = f"{name}[{', '.join(map(str, first))}]" if first else name
        others = len(set(np.unique(np.asarray(codes)[wrong]).tolist())) - 1
        _refuse_unknown(place, levels[int(np.asarray(codes)[first])], run_levels, others)
    return codes_there


def _host(codes: PaddedRows, unknown: np.ndarray) -> list[int]:
    """Return the codes of unknown levels that rows on devices contain."""
    return [int(code) for code in np.flatnonzero(unknown) if bool(jnp.any(codes.array == int(code)))]


def _refuse_unknown(place: str, level: str, run_levels: Levels, others: int = 0) -> None:
    more = f" (and {others} more)" if others else ""
    raise ValueError(
        f"{place} has the level {level!r}{more}, which the run's data did not have; they had {listed(run_levels)}. "
        f"Leave such rows out; or run again with the level among the categories, pandas.Categorical(words, "
        f"categories=[...]), so that its effect is drawn from that of all levels; or draw the effect of a new level "
        f"with posterior.predict(fn), as in docs/predictive.md."
    )


def _refuse_twice(name: str, levels: Levels) -> None:
    if twice := [level for level in dict.fromkeys(levels) if levels.count(level) > 1]:
        raise ValueError(
            f"{name} has several levels called {twice[0]!r}, such as a number and a word: rename all but one."
        )


# -- columns -----------------------------------------------------------------------------------------------------------


def _columns(name: str, value: Any, run_names: Labels) -> Any:
    if value is None:
        return None
    if is_table(value):
        by_name = {str(column): column for column in value.columns}
        _check_columns(name, list(map(str, value.columns)), run_names)
        return as_named_array(name, value[[by_name[column] for column in run_names]]).array
    array, names = _with_names(name, value)
    if not names or isinstance(names, Levels):
        rows = np.ndim(array) == 1
        way = (
            f"xarray.DataArray(values, dims='row', coords={{'row': {_examples(run_names)}}})"
            if rows
            else f"pandas.DataFrame(values, columns={_examples(run_names)})"
        )
        raise ValueError(
            f"{name} has no names of {'rows' if rows else 'columns'}, but the run's data had {listed(run_names)}. Name "
            f"them, as in {way}."
        )
    if np.ndim(array) == 1:
        if tuple(names) != tuple(run_names):
            raise ValueError(
                f"{name} names its rows {listed(names)}, but variables of the run have an entry for each of "
                f"{listed(run_names)}. Give these rows in this order, as DataArray.sel does."
            )
        return array
    _check_columns(name, list(names), run_names)
    if tuple(names) == tuple(run_names):
        return array
    order = np.array([names.index(column) for column in run_names])
    if isinstance(array, PaddedRows):
        return _on_devices(array, lambda whole: whole[..., order])
    return array[..., order]


def _check_columns(name: str, names: list[str], run_names: Labels) -> None:
    if twice := [column for column in run_names if names.count(column) > 1]:
        raise ValueError(f"{name} has several columns called {twice[0]!r}. Rename or drop all but one.")
    if missing := [column for column in run_names if column not in names]:
        raise ValueError(
            f"{name} has no column {listed(missing)}, which the run's data had; it has {listed(names)}. Columns are "
            f"matched by their names: give all of {listed(run_names)}, in any order."
        )


def _refuse_new_names(name: str, named_array: NamedArray) -> None:
    array, names = named_array
    if isinstance(names, Levels):
        raise ValueError(
            f"{name} names the levels {listed(names)}, but the run's data had no names, so the number of each level "
            f"is unknown: give the run's numbers, or run again with a categorical."
        )
    if names and np.ndim(array) > 1:
        raise ValueError(
            f"{name} names the columns {listed(names)}, but the run's data had no names. Give an array, with the "
            f"columns in the run's order, such as {name.removeprefix('data: ')}.to_numpy(); or run again with a table."
        )


def _on_devices(rows: PaddedRows, change: Callable[[Array], Array]) -> PaddedRows:
    """Return the rows with `change` applied on their devices."""
    array = jax.jit(change, out_shardings=rows.sharding)(rows.array)
    return PaddedRows(array, rows.rows)


def listed(names: Sequence[str]) -> str:
    """Return names in quotes; of many names, the first ones and the count."""
    text = ", ".join(map(repr, map(str, names[:SHOWN])))
    return f"{text}, ... ({len(names)} in all)" if len(names) > SHOWN else text


def _examples(names: Sequence[str]) -> str:
    return f"[{listed(names)}]" if len(names) <= SHOWN else "[...]"
