"""Data in a file: arrays of an `.npz` archive, columns of a `.csv` table, or values of a `.json` object, by name."""

from __future__ import annotations

import csv
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def read_data(path: Path) -> dict[str, Any]:
    """Read a file of data.

    Whole numbers stay whole. A single whole number is an `int`, which a model may use as a size; a list or a column is
    an array. Words are read too, since a model need not ask for every column.

    Args:
        path: the file; its ending tells the format.

    Returns:
        Arrays, numbers, words and dicts of them, by name.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the format is unknown, or the file is not of the format that its ending tells.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"--data {path}: expected a file that ends in {', '.join(_READERS)}.")
    if not path.is_file():
        raise FileNotFoundError(f"--data {path}: there is no such file in {path.absolute().parent}.")
    return reader(path)


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: _plain(archive[name]) for name in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"--data {path}: no archive of plain arrays, as np.savez(path, x=x, y=y) writes: {error}"
        ) from error


def _plain(array: np.ndarray) -> Any:
    return array.item() if array.ndim == 0 and array.dtype.kind in "iub" else array


def _read_csv(path: Path) -> dict[str, Any]:
    import pandas  # as slow to import as all of Phalanx

    _check_names(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # else it cuts rows that are too long
            table = pandas.read_csv(path, skipinitialspace=True, index_col=False)
    except (ValueError, pandas.errors.ParserWarning) as error:  # its ParserError and EmptyDataError are ValueErrors
        raise ValueError(f"--data {path}: no table of values with commas between them: {error}") from error
    if all(_is_number(str(name)) for name in table.columns):
        raise ValueError(
            f"--data {path}: the first line must hold the names of the columns, but it has {', '.join(table.columns)}. "
            f"Write a line of names above it."
        )
    if table.empty:
        raise ValueError(f"--data {path}: there are no rows under the line of names.")
    return {str(name): table[name].to_numpy() for name in table.columns}


def _check_names(path: Path) -> None:
    """Refuse what pandas would read in its own way: two columns of one name, other separators, other encodings."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = [name.strip() for name in next(csv.reader(file, skipinitialspace=True), [])]
            for _ in file:  # all of it must be of the encoding
                pass
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--data {path}: no table of values with commas between them: byte {error.object[error.start]:#04x} is not "
            f"UTF-8. It may be Latin-1: iconv -f latin1 -t utf-8 {path.name} > utf8.csv"
        ) from None
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(
            f"--data {path}: several columns are called {', '.join(map(repr, twice))}. Rename all but one of each."
        )
    if len(names) == 1 and (separator := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise ValueError(
            f"--data {path}: no table of values with commas between them: the first line is separated by "
            f"{separator!r}. Save it with commas, and with points in numbers."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--data {path}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"--data {path}: expected an object of values by name, got a {type(found).__name__}.")
    return {name: _from_json(path, name, value) for name, value in found.items()}


def _from_json(path: Path, name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_json(path, f"{name}[{key!r}]", inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError(f"--data {path}: the lists within {name} differ in length; pad them to one shape.") from error
    if array.dtype == object:
        raise ValueError(f"--data {path}: {name} holds something other than numbers, such as null; leave it out.")
    return array


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {".npz": _read_npz, ".csv": _read_csv, ".json": _read_json}
