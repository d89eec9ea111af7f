"""Pair plots: the draws of two quantities at a time, with the divergent ones on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.errors.message_text import count
from phalanx.extras import require
from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.style import (
    ACCENT,
    ALARM,
    INK,
    MUTED,
    AxisScale,
    finish,
    new_figure,
    printable,
    say,
    scale_of,
)

if TYPE_CHECKING:
    from jaxtyping import Bool
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More points cover each other.
_MOST_POINTS = 3000
_LONGEST_NAME = 24


class _Side(NamedTuple):
    """Quantity as one side of a panel: its name, values of the ordinary and of the divergent draws, and its scale."""

    name: str
    ordinary: np.ndarray
    divergent: np.ndarray
    scale: AxisScale


def pair_figure(quantities: list[Quantity], diverging: Bool[np.ndarray, "chain draw"]) -> Figure:
    """Draw every two quantities against each other, with their histograms on the diagonal and divergent draws in red.

    Divergent draws cluster in regions where the sampler cannot follow the density, as in the neck of a funnel. A
    positive quantity gets a logarithmic axis if that makes it less skewed. The outermost draws may lie beyond the ends
    of an axis, so that heavy tails do not compress the others.

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
    parts = values[~diverging], values[diverging]
    return _Side(quantity.name, *parts, scale_of(parts))


def _frame(axes: Axes, across: _Side, down: _Side | None, *, last: bool, first: bool) -> None:
    """Give a panel its limits, its ticks, and names along the left and the lower edge of the square."""
    x = printable(across.name, _LONGEST_NAME) + across.scale.text if last else ""
    y = printable(down.name, _LONGEST_NAME) + down.scale.text if down and first else ""
    finish(axes, x=x, y=y, grid="both" if down else "x")
    across.scale.set(axes, "x")
    if down:
        down.scale.set(axes, "y")
    axes.tick_params(labelbottom=last, labelleft=first)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set(fontsize=8, color=MUTED, visible=last if axis is axes.xaxis else first)


def _points(axes: Axes, across: _Side, down: _Side) -> None:
    """Draw a dot per draw; divergent ones are larger, and lie on top."""
    every = max(1, -(-across.ordinary.size // _MOST_POINTS))
    alpha = float(np.clip(900 * every / max(across.ordinary.size, 1), 0.25, 0.7))
    look = {"color": ACCENT, "markersize": 2.2, "alpha": alpha, "markeredgewidth": 0, "rasterized": True}
    axes.plot(across.ordinary[::every], down.ordinary[::every], "o", **look)
    every = max(1, -(-across.divergent.size // _MOST_POINTS))
    look |= {"color": ALARM, "markersize": 3.6, "alpha": 0.9, "markeredgewidth": 0.4, "markeredgecolor": "white"}
    axes.plot(across.divergent[::every], down.divergent[::every], "o", **look)


def _histogram(axes: Axes, side: _Side) -> None:
    """Draw the histograms of all and of divergent draws, each as high as the panel."""
    edges = side.scale.edges(side.ordinary.size)
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
