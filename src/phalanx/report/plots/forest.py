"""Plots of variables with several elements: one row per element, or one line per element of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.report.plots.marginals import COLORS, VariableDraws, intervals, undrawable, visible_scale
from phalanx.report.plots.scales import scale_of
from phalanx.report.plots.style import INK, MUTED, PANEL, RULE, finish, new_figure, printable, say, whole_numbers

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 24
"""Elements with a row of their own; more are lines beside one another."""

# Higher rows have room for the histogram of the element.
_MOST_HISTOGRAMS = 12
_LONGEST_LABEL = 22
_MOST_LINES = 2500
_MOST_NAMES = 10


def forest_figure(variable: VariableDraws) -> Figure:
    """Draw the intervals of all elements of a variable, over those of its prior and beside those of another run.

    Up to 24 elements are rows: the mean, the narrowest intervals with 50% and 94% of the draws, and up to 12 have
    their histogram. More are vertical lines in the order of the elements.

    Args:
        variable: the draws.

    Returns:
        The figure. It contains words instead if all draws are equal or not finite.
    """
    count = len(variable.labels)
    height = 0.95 + count * (0.36 if count <= _MOST_HISTOGRAMS else 0.22) if count <= MOST_ROWS else 2.5
    figure = new_figure(PANEL, height)
    axes = figure.subplots()
    finish(axes, variable.name, grid="x" if count <= MOST_ROWS else "y")
    if problem := undrawable(variable.values):
        say(axes, problem)
    elif count <= MOST_ROWS:
        _rows(axes, variable)
    else:
        _lines(axes, variable)
    return figure


def _rows(axes: Axes, variable: VariableDraws) -> None:
    """Draw one row per element."""
    sets = {label: values.astype(np.float64) for label, values in variable.sets().items()}
    scale = visible_scale({label: values[np.isfinite(values)] for label, values in sets.items()})
    count = len(variable.labels)
    height = 0.66 if count <= _MOST_HISTOGRAMS else 0.0
    sides = [label for label in ("posterior", "beside") if label in sets]
    for row in range(count):
        for label, values in sets.items():
            column = values[np.isfinite(values).all(axis=1), row] if label != "posterior" else values[:, row]
            if not np.isfinite(column).all() or not column.size:
                continue
            (low, high), color = intervals(column[:, None])[0], COLORS[label]
            if label == "prior":
                axes.fill_between([low, high], row - 0.17, row + 0.17, color=RULE, linewidth=0, zorder=1)
                continue
            level = row + 0.17 * sides.index(label)
            inner = intervals(column[:, None], 0.5)[0]
            if height:
                _ridge(axes, column, scale.edges(column.size), level, height, color)
            axes.plot([low, high], [level, level], color=color, linewidth=1.2, zorder=3)
            axes.plot(inner, [level, level], color=color, linewidth=3.2, solid_capstyle="butt", zorder=3)
            axes.plot([column.mean()], [level], "o", color=color, markersize=4.5, zorder=4)
    scale.set(axes, "x")
    axes.set_ylim(count - 0.55, -0.75 if height else -0.6)
    axes.set_yticks(range(count), _entries(variable), parse_math=False)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_xlabel(f"mean, 50% and 94% of the draws{scale.words}", fontsize=8.5, color=MUTED)


def _entries(variable: VariableDraws) -> list[str]:
    """Return the names of a variable's elements without its own."""
    return [printable(label[len(variable.name) :].strip("[]"), _LONGEST_LABEL) for label in variable.labels]


def _ridge(
    axes: Axes, values: Float[np.ndarray, "draw"], edges: Float[np.ndarray, "edge"], level: float, height: float,
    color: str,
) -> None:  # fmt: skip
    """Draw the histogram of an element above its row."""
    counts = np.histogram(values, edges)[0]
    if counts.any():
        heights = level - height * counts / counts.max()
        axes.stairs(heights, edges, baseline=level, fill=True, color=color, alpha=0.18, zorder=2)


def _lines(axes: Axes, variable: VariableDraws) -> None:
    """Draw one vertical line per element, or per every second, third, ... of very many."""
    every = -(-len(variable.labels) // _MOST_LINES)
    shown = np.arange(0, len(variable.labels), every)
    ends, means = {}, {}
    for label, values in variable.sets().items():
        part = values[:, shown].astype(np.float64)
        ends[label], means[label] = intervals(part), part.mean(axis=0)
    known = [np.concatenate([e[np.isfinite(e)], means[label][np.isfinite(means[label])]]) for label, e in ends.items()
             if label != "prior"]  # fmt: skip
    if not any(part.size and np.ptp(part) for part in known):
        say(axes, "no element has finite draws that vary")
        return
    scale = scale_of(known)
    low, high = min(part.min() for part in known if part.size), max(part.max() for part in known if part.size)
    scale = scale.reaching(np.array([low, high]))
    for label, interval in ends.items():
        offset = 0.35 * every * (label == "beside")
        look = {"color": RULE if label == "prior" else COLORS[label], "rasterized": len(shown) > 150}
        width = 230 / len(shown)
        if label == "prior":
            axes.fill_between(shown, *interval.T, color=RULE, linewidth=0, zorder=1)
            continue
        axes.vlines(shown + offset, *interval.T, linewidth=min(3.0, max(0.5, 0.45 * width)), alpha=0.5, **look)
        axes.plot(shown + offset, means[label], ".", markersize=min(5.0, max(1.5, width)), **look)
    scale.set(axes, "y")
    axes.set_xlim(-every, shown[-1] + every)
    words = _entries(variable)
    is_numbered = words == [str(number) for number in range(len(words))]
    if is_numbered:
        whole_numbers(axes.xaxis)
    else:
        ticks = shown[:: -(-len(shown) // _MOST_NAMES)]
        look = {"rotation": 30, "ha": "right", "rotation_mode": "anchor", "parse_math": False}
        axes.set_xticks(ticks, [words[number] for number in ticks], **look)
    thinned = f", every {every}{'nd' if every == 2 else 'rd' if every == 3 else 'th'} shown" if every > 1 else ""
    axes.set_xlabel(f"element{', from 0' * is_numbered}{thinned}; mean, 94%", fontsize=8.5, color=MUTED)
    axes.set_ylabel(f"value{scale.words}", fontsize=8.5, color=MUTED)
