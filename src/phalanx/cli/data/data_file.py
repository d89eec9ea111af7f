"""Reader of data files: arrays of an `.npz` archive, columns of a `.csv` table, values of a `.json` object."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.cli.data.cells import CellError, ValuePath, at_line, is_number, is_too_large, too_large
from phalanx.inputs.unpacking import most_unpacked
from phalanx.store.plain_arrays import read_arrays

_DEEP = "its values are nested too deeply to be data."


def read_data(path: Path) -> dict[str, Any]:
    """Read a file of data.

    Whole numbers remain integers. A single one is an `int`, which a model may use as a size; a list or a column is an
    array. Words are read too, since a model may not use every column.

    Args:
        path: the file; its ending determines the format.

    Returns:
        Arrays, numbers, words and dicts of them, by name.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the format is unknown, or the file has another format than its ending.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"--data {path}: expected a file that ends in {', '.join(_READERS)}.")
    if not path.is_file():
        raise FileNotFoundError(f"--data {path}: the file does not exist in {path.absolute().parent}.")
    return reader(path)


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        return {name: _plain(array) for name, array in read_arrays(path, most_unpacked(path)).items()}
    except PermissionError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise errors of a dozen kinds on damaged bytes
        raise ValueError(
            f"--data {path}: not an archive of plain arrays, as np.savez(path, x=x, y=y) writes: {error}"
        ) from error


def _plain(array: np.ndarray) -> Any:
    return array.item() if array.ndim == 0 and array.dtype.kind in "iub" else array


def _read_csv(path: Path) -> dict[str, Any]:
    import pandas  # as slow to import as all of Phalanx

    _check_names(path)
    try:
        table = _table(path)
    except (ValueError, pandas.errors.ParserWarning) as error:  # its ParserError and EmptyDataError are ValueErrors
        raise ValueError(f"--data {path}: not a table of comma-separated values: {error}") from error
    if all(is_number(str(name)) for name in table.columns):
        raise ValueError(
            f"--data {path}: the first line must hold the names of the columns, but it has {', '.join(table.columns)}. "
            f"Write a line of names above it."
        )
    if table.empty:
        raise ValueError(f"--data {path}: there are no rows under the line of names.")
    columns = {str(name): table[name].to_numpy() for name in table.columns}
    _check_large(path, columns)
    return {name.strip(): _strip_spaces(column) for name, column in columns.items()}


def _table(path: Path, **options: Any) -> Any:
    import pandas

    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # otherwise pandas cuts rows that are too long
        return pandas.read_csv(path, skipinitialspace=True, index_col=False, **options)


def _check_large(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Raise for numbers such as 1e400, which pandas reads as infinity; a cell may contain `inf`."""
    infinite = [name for name, column in columns.items() if column.dtype.kind == "f" and np.isinf(column).any()]
    if not infinite:
        return
    texts = _table(path, usecols=infinite, dtype=str)
    for name in infinite:
        for row in np.flatnonzero(np.isinf(columns[name])):
            if is_too_large(cell := texts[name].iloc[row]):
                error = CellError(int(row), f"column {name.strip()}: {too_large(cell)}")
                raise ValueError(f"--data {path}{at_line(path, (name, error.row))}: {error}")


def _strip_spaces(column: np.ndarray) -> np.ndarray:
    """Return a column of words without surrounding spaces, which would make categories differ invisibly."""
    if column.dtype != object:
        return column
    return np.array([cell.strip() if isinstance(cell, str) else cell for cell in column], dtype=object)


def _check_names(path: Path) -> None:
    """Raise for files that pandas would misread: equal names of columns, other separators, other encodings."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = [name.strip() for name in next(csv.reader(file, skipinitialspace=True), [])]
            for _ in file:  # decodes the whole file
                pass
    except csv.Error as error:  # a field longer than 131,072 characters, for one
        raise ValueError(f"--data {path}: not a table of comma-separated values: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--data {path}: not a table of comma-separated values: byte {error.object[error.start]:#04x} is not "
            f"UTF-8. It may be Latin-1: iconv -f latin1 -t utf-8 {path.name} > utf8.csv"
        ) from None
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(
            f"--data {path}: several columns are called {', '.join(map(repr, twice))}. Rename all but one of each."
        )
    if len(names) == 1 and (separator := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise ValueError(
            f"--data {path}: not a table of comma-separated values: the first line is separated by "
            f"{separator!r}. Save it with commas, and with points in numbers."
        )


def read_values(path: Path, option: str) -> dict[str, Any]:
    """Read a `.json` object of values by name; an error names the option that the file was given for."""
    try:
        return _read_json(path)
    except ValueError as error:
        raise ValueError(str(error).replace("--data", option, 1)) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_float=_number, object_pairs_hook=_object)
    except _TwiceError as error:
        raise ValueError(f"--data {path}: the name {error} occurs twice in one object; leave one out.") from None
    except RecursionError:
        raise ValueError(f"--data {path}: {_DEEP}") from None
    except ValueError as error:
        raise ValueError(f"--data {path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"--data {path}: expected an object of values by name, got a {type(content).__name__}.")
    try:
        return {name: _from_json(path, (name,), value) for name, value in content.items()}
    except RecursionError:
        raise ValueError(f"--data {path}: {_DEEP}") from None


class _TwiceError(Exception):
    """Name that occurs twice in one object; the json module would use the last value."""


class _TooLarge(str):
    """Text of a number that would be read as infinity."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(repr(next(name for name in names if names.count(name) > 1)))
    return entries


def _number(text: str) -> float | _TooLarge:
    return _TooLarge(text) if is_too_large(text) else float(text)


def _refuse_large(path: Path, keys: ValuePath, value: Any) -> None:
    """Raise for a number such as 1e400, and name its place."""
    if isinstance(value, _TooLarge):
        raise ValueError(f"--data {path}{at_line(path, keys)}: {_named(keys)}: {too_large(value)}")
    for index, item in enumerate(value) if isinstance(value, list) else ():
        _refuse_large(path, (*keys, index), item)


def _named(keys: ValuePath) -> str:
    return f"{keys[0]}{''.join(f'[{step!r}]' for step in keys[1:])}"


def _refuse_wide(path: Path, name: str, value: list[Any]) -> None:
    """Raise for words of very different lengths: an array has room for the longest in each place."""
    lengths = list(_lengths(value))
    if 4 * len(lengths) * max(lengths, default=0) > most_unpacked(path):
        raise ValueError(
            f"--data {path}: {name} holds a word of {max(lengths)} characters among {len(lengths)} values, which is no "
            f"category; leave it out."
        )


def _lengths(value: Any) -> Iterator[int]:
    """Yield the number of characters of each item in nested lists; 0 of a number."""
    for item in value:
        if isinstance(item, list):
            yield from _lengths(item)
        else:
            yield len(item) if isinstance(item, str) else 0


def _from_json(path: Path, keys: ValuePath, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_json(path, (*keys, key), inner) for key, inner in value.items()}
    _refuse_large(path, keys, value)
    name = _named(keys)
    if not isinstance(value, list):
        return value
    _refuse_wide(path, name, value)
    try:
        array = np.array(value)
    except ValueError as error:
        if "maximum number of dimension" in str(error):
            raise ValueError(f"--data {path}: {_DEEP}") from None
        raise ValueError(
            f"--data {path}{at_line(path, keys)}: the lists within {name} differ in length; pad them to one shape."
        ) from error
    if array.dtype == object:
        where = f"--data {path}{at_line(path, keys)}: {name} holds"
        if any(isinstance(item, int) and abs(item) >= 2**63 for item in array.ravel()):
            raise ValueError(f"{where} a whole number beyond 2^63; write it as a float, such as 1e30.")
        raise ValueError(f"{where} something other than numbers, such as null; leave it out.")
    return array


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {".npz": _read_npz, ".csv": _read_csv, ".json": _read_json}
