"""R-hat as text."""

from __future__ import annotations

_DECIMALS = 3


def format_rhat(value: float, bound: float = 1.01) -> str:
    """Return R-hat with three decimals, or as many as show on which side of the bound it is."""
    if value >= 100:  # chains that stand still
        return "over 100"
    written = (f"{value:.{digits}f}" for digits in range(_DECIMALS, 8))
    return next((text for text in written if value == bound or float(text) != bound), f"{value:.8g}")
