"""Trace plots: each quantity draw by draw, its histogram beside it, and ticks under divergent draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.errors.words import count
from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.style import (
    ACCENT,
    ALARM,
    CHAINS,
    FEW_CHAINS,
    bin_edges,
    explain,
    finish,
    new_figure,
    say,
    whole_numbers,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More points than pixels cost time and size of the page, and show nothing.
_POINTS = 110
"""Most points of a line per inch of the figure's width."""


def trace_figure(
    quantities: list[Quantity], diverging: Bool[np.ndarray, "chain draw"], width: float = 10
) -> Figure:  # fmt: skip
    """Draw the trace of each quantity, with its histogram on the right and a red tick under each divergent draw.

    Up to eight chains are lines. More are bands of quantiles over the chains at each draw, with one line for the chain
    furthest out.

    Args:
        quantities: the quantities.
        diverging: True for divergent draws.
        width: its width in inches.

    Returns:
        The figure, one row per quantity.
    """
    figure = new_figure(width, 1.65 * len(quantities) + 0.6)
    grid = figure.subplots(len(quantities), 2, squeeze=False, sharey="row", width_ratios=(5, 1))
    divergent = np.flatnonzero(diverging.any(axis=0))
    length = diverging.shape[1]
    shown = np.arange(0, length, -(-length // int(_POINTS * width)))
    draw_trace = _lines if diverging.shape[0] <= FEW_CHAINS else _bands
    for (name, values), (left, right) in zip(quantities, grid, strict=True):
        finish(left, name)
        finish(right, grid=None)
        left.set_xlim(0, max(values.shape[1] - 1, 1))
        left.margins(y=0.12)
        whole_numbers(left.xaxis, 9)
        left.tick_params(labelbottom=left is grid[-1, 0])
        left.locator_params(axis="y", nbins=5)
        if np.isfinite(values).any():
            draw_trace(left, values, shown)
            _mark(left, divergent)
        else:
            say(left, "no draw is finite")
        _histogram(right, values)
    grid[-1, 0].set_xlabel("draw")
    explain(figure)
    return figure


def _lines(axes: Axes, values: Float[np.ndarray, "chain draw"], draws: Int[np.ndarray, "shown"]) -> None:
    """Draw one line per chain, at the draws to show."""
    for chain, color in zip(range(len(values)), CHAINS, strict=False):
        axes.plot(draws, values[chain, draws], color=color, linewidth=0.7, alpha=0.8, label=f"chain {chain}")


def _bands(axes: Axes, values: Float[np.ndarray, "chain draw"], draws: Int[np.ndarray, "shown"]) -> None:
    """Draw the middle 50% and 90% of the chains at each draw, their median, and the chain furthest out."""
    # Draws without a finite chain have no quantiles and are left out.
    draws = draws[np.isfinite(values[:, draws]).any(axis=0)]
    low, lower, median, upper, high = np.nanquantile(values[:, draws], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    axes.fill_between(draws, low, high, color=ACCENT, alpha=0.15, linewidth=0, label="90% of the chains")
    axes.fill_between(draws, lower, upper, color=ACCENT, alpha=0.3, linewidth=0, label="50% of the chains")
    axes.plot(draws, median, color=ACCENT, linewidth=1.2, label=f"median of {count(len(values), 'chain')}")
    furthest = _furthest(values)
    axes.plot(draws, values[furthest, draws], color=CHAINS[1], linewidth=0.6, alpha=0.9, label="chain furthest out")


def _furthest(values: Float[np.ndarray, "chain draw"]) -> int:
    """Return the chain whose median lies furthest from the median of all draws."""
    centre = np.nanmedian(values)
    finite = [chain[np.isfinite(chain)] for chain in values]
    return int(np.argmax([abs(np.median(chain) - centre) if chain.size else -1.0 for chain in finite]))


def _mark(axes: Axes, divergent: Int[np.ndarray, "divergent"]) -> None:
    """Put a red tick under each draw that diverged in some chain."""
    if divergent.size:
        height = np.full(divergent.shape, 0.03)
        where = axes.get_xaxis_transform()
        axes.plot(divergent, height, "|", color=ALARM, markersize=7, transform=where, label="divergent draw")


def _histogram(axes: Axes, values: Float[np.ndarray, "chain draw"]) -> None:
    """Draw horizontal histograms: one per chain if chains are few, else one of all draws."""
    axes.set_xticks([])
    axes.tick_params(labelleft=False)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    edges = bin_edges(finite.min(), finite.max(), finite.size)
    if len(values) > FEW_CHAINS:
        counts = np.histogram(finite, edges)[0]
        axes.stairs(counts, edges, orientation="horizontal", fill=True, color=ACCENT, alpha=0.45)
        return
    for chain, color in zip(values, CHAINS, strict=False):
        counts = np.histogram(chain[np.isfinite(chain)], edges)[0]
        axes.stairs(counts, edges, orientation="horizontal", color=color, linewidth=1.2, alpha=0.9)
