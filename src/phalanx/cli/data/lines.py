"""Lines of a file at which values begin, for error messages."""

from __future__ import annotations

import csv
import json
import re
from contextlib import suppress
from pathlib import Path

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
    decode, at = json.JSONDecoder(parse_int=float).raw_decode, _next(text, 0)
    for step in keys:
        number, at = 0, _next(text, at + 1)  # after the bracket
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
    found = re.compile(r"\S").search(text, at)
    assert found is not None
    return found.start()
