"""Counts and lists as text for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_NAMED = 3
"""Number of items that are written."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 chain`, `1,000 draws`, `2 quantities`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def which(is_chosen: np.ndarray, noun: str) -> str:
    """Return the numbers of the items that are chosen: `chain 2`, `chains 0, 3`; of many, or of all, how many."""
    numbers = np.flatnonzero(is_chosen).tolist()
    if len(numbers) > _NAMED or len(numbers) == len(is_chosen):
        return count(len(numbers), noun)
    return f"{noun if len(numbers) == 1 else noun + 's'} {', '.join(map(str, numbers))}"


def first_few(items: Any, as_text: Callable[[Any], str] = str, separator: str = ", ") -> str:
    """Return the first few items of a sequence as text, and the number of the others."""
    num_left = len(items) - _NAMED
    return separator.join(map(as_text, items[:_NAMED])) + (f" and {num_left:,} more" if num_left > 0 else "")
