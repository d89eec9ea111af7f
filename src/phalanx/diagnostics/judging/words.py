"""R-hat in writing."""

from __future__ import annotations

_DECIMALS = 3


def format_rhat(value: float, bound: float = 1.01) -> str:
    """Write R-hat with three decimals, or as many as show on which side of the bound it is.

    Of chains that stand still it is beyond all bounds.
    """
    if value >= 100:
        return "over 100"
    written = (f"{value:.{digits}f}" for digits in range(_DECIMALS, 8))
    return next((text for text in written if value == bound or float(text) != bound), f"{value:.8g}")
