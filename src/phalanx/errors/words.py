"""Counts and lists as people say them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_NAMED = 3
"""Items of a list that are written."""


def count(number: int, noun: str) -> str:
    """Write a number of things: `1 chain`, `1,000 draws`, `2 quantities`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def first_few(items: Any, written: Callable[[Any], str] = str, joined: str = ", ") -> str:
    """Write the first few items of a sequence, and how many more there are."""
    left = len(items) - _NAMED
    return joined.join(map(written, items[:_NAMED])) + (f" and {left:,} more" if left > 0 else "")


def element_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of an array's elements, such as `w[0, 1]`; of a scalar its own."""
    return [f"{name}[{', '.join(map(str, index))}]" if index else name for index in np.ndindex(*shape)]
