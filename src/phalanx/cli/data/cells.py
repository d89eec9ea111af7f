"""Cells of a data file: numbers, words as categories, and the line of one that is wrong, for error messages."""

from __future__ import annotations

import csv
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.inputs.placement import PaddedRows

ValuePath = tuple[str | int, ...]
"""Names and indices that lead to a value: a column and a row, or names and indices of nested lists."""


class CellError(ValueError):
    """A wrong cell of a column.

    Attributes:
        row: its number, from 0.
    """

    def __init__(self, row: int, message: str):
        super().__init__(f"row {row + 1}, {message}")
        self.row = row


def at_line(path: Path, keys: ValuePath) -> str:
    """Return ", line N" for the line at which a value begins; "" for files without lines."""
    if (finder := {".csv": _line_of_row, ".json": _line_of_value}.get(path.suffix.lower())) is None:
        return ""
    return f", line {finder(path, keys)}"


def _line_of_row(path: Path, keys: ValuePath) -> int:
    """Return the line of a row, the last of `keys`; a cell in quotes may have several lines, and empty ones count."""
    begins, rows = 1, -1
    with path.open(encoding="utf-8-sig", newline="") as file, suppress(csv.Error):  # a very long cell, for one
        reader = csv.reader(file, skipinitialspace=True)
        for cells in reader:
            rows += len(cells) > 1 or bool("".join(cells).strip())
            if rows > int(keys[-1]):
                break
            begins = reader.line_num + 1
    return begins


def _line_of_value(path: Path, keys: ValuePath) -> int:
    text = path.read_text(encoding="utf-8")
    decode = json.JSONDecoder(parse_int=float).raw_decode
    at = _next(text, 0)
    for step in keys:
        # after the bracket
        number = 0
        at = _next(text, at + 1)
        while True:
            key: str | int = number
            if isinstance(step, str):
                key, at = decode(text, at)
                at = _next(text, _next(text, at) + 1)  # after the colon
            if key == step:
                break
            at = _next(text, _next(text, decode(text, at)[1]) + 1)  # after the comma
            number += 1
    return text.count("\n", 0, at) + 1


def _next(text: str, at: int) -> int:
    """Return the position of the next character that is no space."""
    match = re.compile(r"\S").search(text, at)
    assert match is not None
    return match.start()


def coded(name: str, column: Any, impute: bool = False) -> Any:
    """Return a column of words as a pandas Categorical with sorted levels; return other values unchanged.

    Args:
        name: the column's name.
        column: its values in a data file.
        impute: True if an empty cell is a missing entry to impute, and no error.

    Returns:
        The column; for words, a series that holds numbers and the words of these.

    Raises:
        CellError: if numbers are written as words, only some cells are numbers, or a category is missing.
    """
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "OUS":
        return column
    import pandas  # as slow to import as all of Phalanx

    missing = np.asarray(pandas.isna(column))
    numbers = np.array([not is_missing and is_number(cell) for cell, is_missing in zip(column, missing, strict=True)])
    if numbers.any() and not (numbers | missing).all():
        _refuse_cell(name, column, int(np.argmax(~numbers & ~missing)), int(np.argmax(numbers)))
    if numbers.any() and isinstance(column[first := int(np.argmax(numbers))], str):
        raise CellError(
            first,
            f"column {name}: the numbers of this column are written as words, {str(column[first])!r}. Write them "
            f"without quotes; or, if all are names, make them all words.",
        )
    if numbers.all() and not any(isinstance(cell, bool | np.bool_) for cell in column):
        if large := [row for row, cell in enumerate(column) if is_too_large(cell)]:
            raise CellError(large[0], f"column {name}: {too_large(column[large[0]])}")
        return column.astype(np.float64)  # whole numbers beyond the largest integer type
    if missing.any() and not impute:
        kind = "flags" if numbers.any() else "categories"
        raise CellError(
            int(np.argmax(missing)),
            f"column {name}: the cell is empty (or NA, or None), and {kind} have no NaN. Leave the row out, or use a "
            f"word such as 'unknown' for missing values; or, if the model observes this column, add --missing impute.",
        )
    if numbers.any():  # flags, some of which are missing
        return column
    return pandas.Series(pandas.Categorical(column))


def levels(column: Any) -> list[str]:
    """Return the words of a numbered column in the order of their numbers; of other columns an empty list."""
    if isinstance(column, PaddedRows):
        return list(column.labels)
    return [str(word) for word in column.cat.categories] if hasattr(column, "cat") else []


def _refuse_cell(name: str, column: np.ndarray, wrong: int, right: int) -> None:
    raise CellError(
        wrong,
        f"column {name}: {str(column[wrong])!r} is not a number, but {str(column[right])!r} in row {right + 1} is one. "
        f"Write numbers as 1234.5; leave the cell empty where one is missing; or, if all are names, make them all "
        f"words.",
    )


def is_number(cell: object) -> bool:
    """Return whether a cell is a number; `1_000`, which Python reads, is not."""
    return _number(cell) is not None


def is_too_large(cell: object) -> bool:
    """Return whether a cell has the digits of a number beyond the largest float, as `1e400` has."""
    number = _number(cell)
    return number is not None and np.isinf(number) and "inf" not in str(cell).lower()


def _number(cell: Any) -> float | None:
    if isinstance(cell, str) and ("_" in cell or not cell.isascii()):
        return None
    try:
        return float(cell)
    except OverflowError:  # a whole number of hundreds of digits
        return np.inf
    except (TypeError, ValueError):
        return None


def too_large(cell: object) -> str:
    """Return the message for a number that would be read as infinity."""
    return (
        f"{str(cell)!r} is larger than the largest number that a float holds, 1.8e308. Correct it, or change the unit."
    )
