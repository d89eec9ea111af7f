"""Scale of an axis: its limits without outliers, and whether it is logarithmic or shows whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from phalanx.extras import require
from phalanx.report.plots.style import bin_edges

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes

# A positive quantity over a wider range than this may be shown better by its order of magnitude.
_WIDE = 10
_MOST_BARS = 60


class AxisScale(NamedTuple):
    """Limits of an axis and the kind of its ticks; magnitudes are on a logarithmic axis."""

    limits: tuple[float, float]
    ticks: Literal["numbers", "whole numbers", "magnitudes"]

    @property
    def is_log(self) -> bool:
        """True if the axis is logarithmic."""
        return self.ticks == "magnitudes"

    @property
    def words(self) -> str:
        """Remark on the kind of the axis, for its label; empty if it is linear."""
        return " (log axis)" if self.is_log else ""

    def edges(self, count: int) -> Float[np.ndarray, "edge"]:
        """Return the edges of bins for `count` values, of equal width on the axis; whole numbers have bins of one."""
        low, high = self.limits
        if self.ticks == "whole numbers" and high - low <= _MOST_BARS:
            return np.arange(np.floor(low), np.ceil(high) + 1) + 0.5
        return np.exp(bin_edges(np.log(low), np.log(high), count)) if self.is_log else bin_edges(low, high, count)

    def reaching(self, values: Float[np.ndarray, "value"]) -> AxisScale:
        """Return the scale with limits moved towards some values, by at most the width of the axis on each side."""
        low, high = np.log(self.limits) if self.is_log else self.limits
        values = np.log(values[values > 0]) if self.is_log else values
        if not values.size:
            return self
        low, high = max(min(low, values.min()), 2 * low - high), min(max(high, values.max()), 2 * high - low)
        return self._replace(limits=(np.exp(low), np.exp(high)) if self.is_log else (low, high))

    def set(self, axes: Axes, direction: Literal["x", "y"]) -> None:
        """Give one direction of a plot its limits, scale and ticks."""
        ticker = require("matplotlib.ticker")
        axis = axes.xaxis if direction == "x" else axes.yaxis
        if self.is_log:
            low, high = self.limits
            axes.set(**{f"{direction}scale": "log"})
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,), numticks=6))
            axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
            axis.set_minor_locator(ticker.NullLocator())
        else:
            axis.set_major_locator(ticker.MaxNLocator(4, integer=self.ticks == "whole numbers"))
        axes.set(**{f"{direction}lim": self.limits})


def scale_of(parts: Sequence[Float[np.ndarray, "value"]]) -> AxisScale:
    """Return a scale that shows nearly all values of each part: finite numbers, not all equal.

    The outermost values may lie beyond the ends, so that heavy tails do not compress the others.
    """
    parts = [part for part in parts if part.size]
    values = np.concatenate(parts)
    if np.array_equal(values, np.round(values)):
        ticks = "whole numbers"
    else:
        ticks = "magnitudes" if _is_magnitude(values) else "numbers"
    scaled = [np.log(part) for part in parts] if ticks == "magnitudes" else parts
    ends = [_ends(part) for part in scaled]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low == high:
        low, high = min(part.min() for part in scaled), max(part.max() for part in scaled)
    limits = np.array([low, high]) + 0.06 * (high - low) * np.array([-1, 1])
    low, high = np.exp(limits) if ticks == "magnitudes" else limits
    return AxisScale((float(low), float(high)), ticks)


def _is_magnitude(values: Float[np.ndarray, "value"]) -> bool:
    """Return whether the logarithm of the values is less skewed than the values are."""
    quantiles = np.quantile(values, [0.005, 0.5, 0.995])
    if values.min() <= 0 or quantiles[2] < _WIDE * quantiles[0]:
        return False
    left, right = np.diff(quantiles)
    log_left, log_right = np.diff(np.log(quantiles))
    return bool(max(log_left, log_right) * min(left, right) < max(left, right) * min(log_left, log_right))


def _ends(values: Float[np.ndarray, "value"]) -> tuple[float, float]:
    """Return the range of nearly all values: without the outermost 1%, and without outliers by Tukey's rule."""
    low, lower, upper, high = np.quantile(values, [0.005, 0.25, 0.75, 0.995])
    reach = 3 * (upper - lower) or np.inf
    return max(low, lower - reach), min(high, upper + reach)
