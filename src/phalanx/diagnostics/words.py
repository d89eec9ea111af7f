"""Counts and figures as people say them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.errors.words import count

__all__ = ["count", "first_few", "format_rhat"]

_NAMED = 3
_DECIMALS = 3


def first_few(items: Any, written: Callable[[Any], str] = str, joined: str = ", ") -> str:
    """Write the first few items of a sequence, and how many more there are."""
    left = len(items) - _NAMED
    return joined.join(map(written, items[:_NAMED])) + (f" and {left:,} more" if left > 0 else "")


def format_rhat(value: float, bound: float = 1.01) -> str:
    """Write R-hat with three decimals, or as many as show on which side of the bound it is.

    Of chains that stand still it is beyond all bounds.
    """
    if value >= 100:
        return "over 100"
    written = (f"{value:.{digits}f}" for digits in range(_DECIMALS, 8))
    return next((text for text in written if value == bound or float(text) != bound), f"{value:.8g}")
