"""Columns of words: categories are numbered, and a cell that should have been a number is named."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from phalanx.inputs.placement import PaddedRows


def coded(name: str, column: Any) -> Any:
    """A column of words as a pandas Categorical, its levels in alphabetical order; anything else as it is.

    Args:
        name: the column's name.
        column: what a data file has under it.

    Returns:
        The column; of words, one that is numbered, and knows the words.

    Raises:
        ValueError: when cells are numbers that came as words, some are numbers and others are not, or a category is
            missing; the row is named.
    """
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "OUS":
        return column
    import pandas  # as slow to import as all of Phalanx

    missing = np.asarray(pandas.isna(column))
    numbers = np.array([not lost and is_number(cell) for cell, lost in zip(column, missing, strict=True)])
    if numbers.any() and not (numbers | missing).all():
        _refuse_cell(name, column, int(np.argmax(~numbers & ~missing)), int(np.argmax(numbers)))
    if numbers.any() and isinstance(column[first := int(np.argmax(numbers))], str):
        raise ValueError(
            f"row {first + 1}, column {name}: the numbers of this column came as words, {str(column[first])!r}. Write "
            f"them without quotes; or, if all are names, make them all words."
        )
    if numbers.all() and not any(isinstance(cell, bool | np.bool_) for cell in column):
        if large := [row for row, cell in enumerate(column) if is_too_large(cell)]:
            refuse_too_large(f"row {large[0] + 1}, column {name}", column[large[0]])
        return column.astype(np.float64)  # whole numbers that are larger than the largest type of them
    if missing.any():
        kind = "flags" if numbers.any() else "categories"
        raise ValueError(
            f"row {int(np.argmax(missing)) + 1}, column {name}: the cell is empty (or NA, or None), and {kind} have no "
            f"NaN. Leave the row out, or give what is missing a word of its own, such as 'unknown'."
        )
    return pandas.Series(pandas.Categorical(column))


def levels(column: Any) -> list[str]:
    """The words of a numbered column, in the order of their numbers; none of any other."""
    if isinstance(column, PaddedRows):
        return list(column.labels)
    return [str(word) for word in column.cat.categories] if hasattr(column, "cat") else []


def _refuse_cell(name: str, column: np.ndarray, wrong: int, right: int) -> None:
    raise ValueError(
        f"row {wrong + 1}, column {name}: {str(column[wrong])!r} is no number, but {str(column[right])!r} in row "
        f"{right + 1} is one. Write numbers as 1234.5; leave the cell empty where one is missing; or, if all are "
        f"names, make them all words."
    )


def is_number(cell: Any) -> bool:
    """Return whether a table's cell is a number; Python's own `1_000` is not one in a file."""
    return _number(cell) is not None


def is_too_large(cell: Any) -> bool:
    """Return whether a number has digits and is beyond the largest one that can be held, as `1e400` is."""
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


def refuse_too_large(where: str, cell: Any) -> NoReturn:
    """Refuse a number that would be read as infinity."""
    raise ValueError(
        f"{where}: {str(cell)!r} is larger than the largest number that can be held, 1.8e308. Correct it, or change "
        f"the unit."
    )
