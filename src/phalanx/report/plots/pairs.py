"""Pair plots: the draws of two quantities at a time, with the divergent ones on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from phalanx.errors.words import count
from phalanx.extras import require
from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.style import ACCENT, ALARM, INK, MUTED, bin_edges, finish, new_figure, printable, say

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More points cover each other.
_MOST_POINTS = 3000
_LONGEST_NAME = 24
# A positive quantity over a wider range than this may be shown better by its order of magnitude.
_WIDE = 10


class _Side(NamedTuple):
    """Quantity as one side of a panel: name, values of the ordinary and of the divergent draws, limits, ticks."""

    name: str
    ordinary: np.ndarray
    divergent: np.ndarray
    limits: tuple[float, float]
    ticks: Literal["numbers", "whole numbers", "magnitudes"]


def pair_figure(quantities: list[Quantity], diverging: Bool[np.ndarray, "chain draw"]) -> Figure:
    """Draw every two quantities against each other, with their histograms on the diagonal and divergent draws in red.

    Divergent draws cluster in regions where the sampler cannot follow the density, as in the neck of a funnel. A
    positive quantity that is less skewed on a logarithmic axis has one. The outermost draws may lie beyond the ends of
    an axis, so that heavy tails do not compress the others.

    Args:
        quantities: the quantities; at most four fit on a page.
        diverging: True for divergent draws.

    Returns:
        The figure: the lower triangle of a square of panels.
    """
    sides = [side for quantity in quantities if (side := _side(quantity, diverging)) is not None]
    if len(sides) < 2:
        figure = new_figure(10, 1.2)
        axes = figure.subplots()
        finish(axes)
        say(axes, "pairs need two quantities that vary")
        return figure
    size = len(sides)
    figure = new_figure(10, 2.3 * max(size, 3) + 0.2)
    grid = figure.subplots(size, size, squeeze=False)
    for row, down in enumerate(sides):
        for column, across in enumerate(sides):
            axes = grid[row, column]
            if column > row:
                axes.set_visible(False)
                continue
            _frame(axes, across, down if column < row else None, last=row == size - 1, first=column == 0)
            if column < row:
                _points(axes, across, down)
            else:
                _histogram(axes, across)
    _explain(figure, diverging)
    return figure


def _side(quantity: Quantity, diverging: Bool[np.ndarray, "chain draw"]) -> _Side | None:
    """Prepare a quantity for its panels; return None if it is constant, or some of its draws are not finite."""
    values = quantity.values
    if not np.isfinite(values).all() or values.min() == values.max():
        return None
    if np.array_equal(values, np.round(values)):
        ticks = "whole numbers"
    else:
        ticks = "magnitudes" if _is_magnitude(values) else "numbers"
    scaled = np.log(values) if ticks == "magnitudes" else values
    ends = [_ends(part) for part in (scaled[~diverging], scaled[diverging]) if part.size]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low == high:
        low, high = scaled.min(), scaled.max()
    limits = np.array([low, high]) + 0.06 * (high - low) * np.array([-1, 1])
    low, high = np.exp(limits) if ticks == "magnitudes" else limits
    return _Side(quantity.name, values[~diverging], values[diverging], (low, high), ticks)


def _is_magnitude(values: Float[np.ndarray, "chain draw"]) -> bool:
    """Return whether the logarithm of the values is less skewed than the values are."""
    quantiles = np.quantile(values, [0.005, 0.5, 0.995])
    if values.min() <= 0 or quantiles[2] < _WIDE * quantiles[0]:
        return False
    left, right = np.diff(quantiles)
    log_left, log_right = np.diff(np.log(quantiles))
    return bool(max(log_left, log_right) * min(left, right) < max(left, right) * min(log_left, log_right))


def _ends(values: Float[np.ndarray, "draw"]) -> tuple[float, float]:
    """Return the range of nearly all values: without the outermost 1%, and without outliers by Tukey's rule."""
    low, lower, upper, high = np.quantile(values, [0.005, 0.25, 0.75, 0.995])
    reach = 3 * (upper - lower) or np.inf
    return max(low, lower - reach), min(high, upper + reach)


def _frame(axes: Axes, across: _Side, down: _Side | None, *, last: bool, first: bool) -> None:
    """Give a panel its limits, its ticks, and names along the left and the lower edge of the square."""
    x = printable(across.name, _LONGEST_NAME) if last else ""
    y = printable(down.name, _LONGEST_NAME) if down and first else ""
    finish(axes, x=x, y=y, grid="both" if down else "x")
    _ticks(axes, "x", across)
    if down:
        _ticks(axes, "y", down)
    axes.tick_params(labelbottom=last, labelleft=first)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set(fontsize=8, color=MUTED, visible=last if axis is axes.xaxis else first)


def _ticks(axes: Axes, direction: Literal["x", "y"], side: _Side) -> None:
    """Set limits, scale and ticks of one direction."""
    ticker = require("matplotlib.ticker")
    axis = axes.xaxis if direction == "x" else axes.yaxis
    if side.ticks == "magnitudes":
        axes.set(**{f"{direction}scale": "log"})
        low, high = side.limits
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,), numticks=6))
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_major_locator(ticker.MaxNLocator(4, integer=side.ticks == "whole numbers"))
    axes.set(**{f"{direction}lim": side.limits})


def _points(axes: Axes, across: _Side, down: _Side) -> None:
    """Draw a dot per draw; divergent ones are larger, and lie on top."""
    every = max(1, -(-across.ordinary.size // _MOST_POINTS))
    alpha = float(np.clip(900 * every / max(across.ordinary.size, 1), 0.25, 0.7))
    look = {"color": ACCENT, "markersize": 2.2, "alpha": alpha, "markeredgewidth": 0}
    axes.plot(across.ordinary[::every], down.ordinary[::every], "o", **look)
    every = max(1, -(-across.divergent.size // _MOST_POINTS))
    look = {"color": ALARM, "markersize": 3.6, "alpha": 0.9, "markeredgewidth": 0.4, "markeredgecolor": "white"}
    axes.plot(across.divergent[::every], down.divergent[::every], "o", **look)


def _histogram(axes: Axes, side: _Side) -> None:
    """Draw the histograms of all and of divergent draws, each as high as the panel."""
    low, high = np.log(side.limits) if side.ticks == "magnitudes" else side.limits
    edges = bin_edges(low, high, side.ordinary.size)
    edges = np.exp(edges) if side.ticks == "magnitudes" else edges
    for values, color in ((side.ordinary, ACCENT), (side.divergent, ALARM)):
        counts = np.histogram(values, edges)[0]
        if counts.any():
            axes.stairs(counts / counts.max(), edges, fill=True, color=color, alpha=0.25)
            axes.stairs(counts / counts.max(), edges, color=color, linewidth=1.2)
    axes.set_ylim(0, 1.1)
    axes.set_yticks([])


def _explain(figure: Figure, diverging: Bool[np.ndarray, "chain draw"]) -> None:
    """Put a legend into the empty half of the square."""
    line = require("matplotlib.lines").Line2D
    kinds = [(ACCENT, int((~diverging).sum()), "draw"), (ALARM, int(diverging.sum()), "divergent draw")]
    dots = [
        line([], [], color=color, marker="o", markersize=6, linestyle="none", label=count(number, noun))
        for color, number, noun in kinds
        if number
    ]
    figure.legend(handles=dots, loc="upper right", frameon=False, fontsize=9.5, labelcolor=INK, handletextpad=0.2)
