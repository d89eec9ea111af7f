"""Style of all plots: one palette, and one finish and scale of axes. Figures do not use pyplot's global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from phalanx.extras import require

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#616e7c"
RULE = "#e4e7eb"
BAND = "#eef1f5"
ACCENT = "#2f6db3"
SECOND = "#e8873a"
ALARM = "#d0273b"
CHAINS = ("#2f6db3", "#e8873a", "#3d9a74", "#8f5bb5", "#c9a21f", "#47aac2", "#c75a86", "#6b7683")
# More lines in one plot cannot be distinguished: more chains are shown as a distribution.
FEW_CHAINS = len(CHAINS)

_LONGEST_NAME = 44
_LONGEST_IN_PANEL = 34


PANEL = 3.9
"""Width in inches of a figure that is still readable as wide as a phone."""

# A positive quantity over a wider range than this may be shown better by its order of magnitude.
_WIDE = 10
_MOST_BARS = 60


def panel(draw: Callable[..., None], *arguments: object) -> Figure:
    """Return a figure of one plot, which `draw(axes, *arguments)` draws."""
    figure = new_figure(PANEL, 2.1)
    draw(figure.subplots(), *arguments)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of the given size in inches, on white."""
    figure = require("matplotlib.figure").Figure(figsize=(width, height), dpi=144, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.09, w_pad=0.09)
    return figure


def finish(axes: Axes, title: str = "", x: str = "", y: str = "", grid: Literal["x", "y", "both"] | None = "y") -> None:
    """Give an axis its title and labels, and remove decoration without information."""
    # A dollar sign in a variable's name is a dollar sign: "$\beta" is no mathematics, and "$\foo$" would be an error.
    longest = _LONGEST_IN_PANEL if axes.figure.bbox.width < 1.01 * PANEL * axes.figure.dpi else _LONGEST_NAME
    axes.set_title(printable(title, longest), loc="left", fontsize=10, fontweight="bold", color=INK, parse_math=False)
    axes.set_xlabel(printable(x), fontsize=9, color=MUTED, parse_math=False)
    axes.set_ylabel(printable(y), fontsize=9, color=MUTED, parse_math=False)
    axes.tick_params(labelsize=8.5, colors=MUTED, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=RULE, linewidth=0.8)


def explain(figure: Figure) -> None:
    """Put one legend above the figure, for the lines that all its axes share."""
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        if labels:
            break
    else:
        return
    tight = {"columnspacing": 1.3, "handlelength": 1.4, "handletextpad": 0.5, "frameon": False, "fontsize": 8.5}
    columns = _columns(labels, figure.get_figwidth())
    legend = figure.legend(handles, labels, loc="outside upper right", ncols=columns, **tight)
    for text in legend.get_texts():
        text.set_color(INK)
        text.set_parse_math(False)
    # Traces are too thin to show their colour.
    for line in legend.get_lines():
        line.set(linewidth=2, alpha=1)


def _columns(labels: Sequence[str], width: float) -> int:
    """Return the most columns of a legend that fit into so many inches, about .075 for a letter and .4 for a line."""

    def fits(columns: int) -> bool:
        return sum(0.4 + 0.075 * max(map(len, of_one)) for of_one in np.array_split(labels, columns)) <= width

    return next((columns for columns in range(len(labels), 1, -1) if fits(columns)), 1)


def whole_numbers(axis: Axis, most: int = 6) -> None:
    """Put ticks at whole numbers only, for draws and chains."""
    axis.set_major_locator(require("matplotlib.ticker").MaxNLocator(most, integer=True, min_n_ticks=1))


def say(axes: Axes, text: str) -> None:
    """Put words in place of a plot that cannot be drawn."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("")
    axes.set_ylabel("")
    axes.spines["bottom"].set_visible(False)
    look = {"ha": "center", "va": "center", "color": MUTED, "fontsize": 9, "parse_math": False}
    axes.text(0.5, 0.5, text, transform=axes.transAxes, **look)


def bin_edges(low: float, high: float, count: int) -> Float[np.ndarray, "edge"]:
    """Return the edges of 8 to 40 bins for `count` numbers between `low` and `high`, which may be equal."""
    size = max(abs(low), abs(high), 1e-6)
    if high - low <= 1e-12 * size:
        low = low - 0.05 * size
        high = high + 0.05 * size
    return np.linspace(low, high, min(40, max(8, count // 20)) + 1)


def printable(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return `text` as one short line, with a box for each character that the font lacks; else matplotlib warns."""
    characters = _characters()
    line = "".join(char if ord(char) in characters else "□" for char in text)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


@cache
def _characters() -> frozenset[int]:
    """Return the code points of the font that matplotlib draws with."""
    fonts = require("matplotlib.font_manager")
    return frozenset(fonts.get_font(fonts.findfont(fonts.FontProperties())).get_charmap())


class AxisScale(NamedTuple):
    """Limits of an axis and the kind of its ticks; magnitudes are on a logarithmic axis."""

    limits: tuple[float, float]
    ticks: Literal["numbers", "whole numbers", "magnitudes"]

    @property
    def is_log(self) -> bool:
        """True if the axis is logarithmic."""
        return self.ticks == "magnitudes"

    @property
    def text(self) -> str:
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
    scaled_parts = [np.log(part) for part in parts] if ticks == "magnitudes" else parts
    ends = [_ends(part) for part in scaled_parts]
    low = min(low for low, _ in ends)
    high = max(high for _, high in ends)
    if low == high:
        low = min(part.min() for part in scaled_parts)
        high = max(part.max() for part in scaled_parts)
    limits = np.array([low, high]) + 0.06 * (high - low) * np.array([-1, 1])
    low, high = np.exp(limits) if ticks == "magnitudes" else limits
    return AxisScale((float(low), float(high)), ticks)


def _is_magnitude(values: Float[np.ndarray, "value"]) -> bool:
    """Return whether the logarithm of the values is less skewed than the values are."""
    quantiles = np.quantile(values, [0.005, 0.5, 0.995])
    if values.min() <= 0 or quantiles[2] < _WIDE * quantiles[0]:
        return False
    left_width, right = np.diff(quantiles)
    log_left, log_right = np.diff(np.log(quantiles))
    return bool(max(log_left, log_right) * min(left_width, right) < max(left_width, right) * min(log_left, log_right))


def _ends(values: Float[np.ndarray, "value"]) -> tuple[float, float]:
    """Return the range of nearly all values: without the outermost 1%, and without outliers by Tukey's rule."""
    low, lower, upper, high = np.quantile(values, [0.005, 0.25, 0.75, 0.995])
    reach = 3 * (upper - lower) or np.inf
    return max(low, lower - reach), min(high, upper + reach)
