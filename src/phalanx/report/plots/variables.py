"""Plots of a variable, with its prior or another run: the histogram of a scalar, else intervals of its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phalanx.diagnostics.summary import hdi
from phalanx.report.plots.style import (
    ACCENT,
    INK,
    MUTED,
    PANEL,
    RULE,
    SECOND,
    AxisScale,
    finish,
    new_figure,
    printable,
    say,
    scale_of,
    whole_numbers,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROB = 0.94
"""Fraction of the draws in an interval."""

# A bin of the prior's histogram is as wide as it takes to hold so many draws on average.
_PRIOR_IN_BIN = 40

MOST_ROWS = 24
"""Elements with a row of their own; more are lines beside one another."""

# Higher rows have room for the histogram of the element.
_MOST_HISTOGRAMS = 12
_LONGEST_LABEL = 22
_MOST_LINES = 2500
_MOST_NAMES = 10


class VariableDraws(NamedTuple):
    """Draws of one variable, each array `(draw, element)`, with what they are compared with.

    Attributes:
        name: name of the variable.
        labels: names of its elements.
        values: draws of the posterior.
        prior: draws of the prior; None if unknown.
        beside: draws of another run; None without one.
    """

    name: str
    labels: list[str]
    values: Shaped[np.ndarray, "draw element"]
    prior: Shaped[np.ndarray, "draw element"] | None = None
    beside: Shaped[np.ndarray, "draw element"] | None = None

    def sets(self) -> dict[str, Shaped[np.ndarray, "draw element"]]:
        """Return the sets of draws by their label in a legend, those to draw first in front."""
        sets = {"prior": self.prior, "beside": self.beside, "posterior": self.values}
        return {label: values for label, values in sets.items() if values is not None}


COLORS = {"prior": MUTED, "beside": SECOND, "posterior": ACCENT}
"""Colour of each set of draws."""


def marginal_figure(variable: VariableDraws) -> Figure:
    """Draw the histogram of a scalar variable above its interval, with those of its prior and of another run.

    All histograms have equal areas. The prior has wide bins if few of its draws are within the axis.

    Args:
        variable: draws of one element.

    Returns:
        The figure. It contains words instead if the draws are constant or not finite.
    """
    figure = new_figure(PANEL, 1.9)
    axes = figure.subplots()
    sets = {label: _finite(values) for label, values in variable.sets().items()}
    finish(axes, variable.name, grid="x")
    if problem := undrawable(variable.values):
        say(axes, problem)
        return figure
    scale = visible_scale(sets)
    top = 0.0
    for label, values in sets.items():
        heights, edges = _density(values, scale, merge=label == "prior")
        dashes: dict[str, Any] = {"linestyle": (0, (4, 3))} if label == "prior" else {"fill": True, "alpha": 0.2}
        axes.stairs(heights, edges, color=COLORS[label], linewidth=1.3, baseline=0, **dashes)
        if label != "prior":
            axes.stairs(heights, edges, color=COLORS[label], linewidth=1.3)
            top = max(top, float(heights.max()))
    _intervals(axes, {label: values for label, values in sets.items() if label != "prior"}, top)
    scale.set(axes, "x")
    axes.set_yticks([])
    axes.set_xlabel(_words(sets["posterior"]) + scale.text, fontsize=8.5, color=MUTED)
    return figure


def undrawable(values: Shaped[np.ndarray, "draw element"]) -> str:
    """Return why draws have no histogram, in words; empty if they have one."""
    finite = _finite(values)
    if not finite.size:
        return "no draw is finite"
    return f"constant: {finite[0]:.4g}" if finite.min() == finite.max() else ""


def visible_scale(sets: dict[str, Float[np.ndarray, "draw"]]) -> AxisScale:
    """Return a scale for all sets of finite draws that shows most of the prior if it is not too far away."""
    scale = scale_of([values for label, values in sets.items() if label != "prior"])
    prior = sets.get("prior", np.zeros(0))
    return scale.reaching(np.quantile(prior, [0.25, 0.75])) if prior.size else scale


def intervals(values: Float[np.ndarray, "draw element"], prob: float = PROB) -> Float[np.ndarray, "element 2"]:
    """Return the narrowest interval of each element; NaN where a draw is not finite."""
    return hdi(values[None], prob)


def _density(
    values: Float[np.ndarray, "draw"], scale: AxisScale, merge: bool
) -> tuple[Float[np.ndarray, "bin"], Float[np.ndarray, "edge"]]:
    """Return a histogram of equal area on the axis; with `merge`, of fewer bins if few values are within it."""
    edges = scale.edges(values.size)
    if merge:
        within = np.count_nonzero((values >= edges[0]) & (values <= edges[-1]))
        step = -(-(len(edges) - 1) * _PRIOR_IN_BIN // max(within, 1))
        edges = np.append(edges[:-1:step], edges[-1])
    counts = np.histogram(values, edges)[0]
    return counts / np.diff(np.log(edges) if scale.is_log else edges) / max(values.size, 1), edges


def _intervals(axes: Axes, sets: dict[str, Float[np.ndarray, "draw"]], top: float) -> None:
    """Draw the interval and the mean of each set below its histogram."""
    for row, (label, values) in enumerate(reversed(sets.items())):
        height = -(0.09 + 0.11 * row) * top
        (low, high), color = intervals(values[:, None])[0], COLORS[label]
        axes.plot([low, high], [height, height], color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot([values.mean()], [height], "o", color=color, markersize=5)
    axes.set_ylim(-(0.09 + 0.11 * len(sets)) * top, 1.06 * top)


def _words(values: Float[np.ndarray, "draw"]) -> str:
    low, high = intervals(values[:, None])[0]
    return f"mean {values.mean():.3g}, {PROB:.0%} from {low:.3g} to {high:.3g}".replace("-", "−")


def _finite(values: Shaped[np.ndarray, "draw element"]) -> Float[np.ndarray, "draw"]:
    flat = values.astype(np.float64).ravel()
    return flat[np.isfinite(flat)]


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
        _draw_rows(axes, variable)
    else:
        _draw_lines(axes, variable)
    return figure


def _draw_rows(axes: Axes, variable: VariableDraws) -> None:
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
                edges = scale.edges(column.size)
                counts = np.histogram(column, edges)[0]
                if counts.any():
                    heights = level - height * counts / counts.max()
                    axes.stairs(heights, edges, baseline=level, fill=True, color=color, alpha=0.18, zorder=2)
            axes.plot([low, high], [level, level], color=color, linewidth=1.2, zorder=3)
            axes.plot(inner, [level, level], color=color, linewidth=3.2, solid_capstyle="butt", zorder=3)
            axes.plot([column.mean()], [level], "o", color=color, markersize=4.5, zorder=4)
    scale.set(axes, "x")
    axes.set_ylim(count - 0.55, -0.75 if height else -0.6)
    axes.set_yticks(range(count), _entries(variable), parse_math=False)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_xlabel(f"mean, 50% and 94% of the draws{scale.text}", fontsize=8.5, color=MUTED)


def _entries(variable: VariableDraws) -> list[str]:
    """Return the names of a variable's elements without its own."""
    return [printable(label[len(variable.name) :].strip("[]"), _LONGEST_LABEL) for label in variable.labels]


def _draw_lines(axes: Axes, variable: VariableDraws) -> None:
    """Draw one vertical line per element, or per every second, third, ... of very many."""
    every = -(-len(variable.labels) // _MOST_LINES)
    entries = np.arange(0, len(variable.labels), every)
    ends = {}
    means = {}
    for label, values in variable.sets().items():
        part = values[:, entries].astype(np.float64)
        ends[label] = intervals(part)
        means[label] = part.mean(axis=0)
    lines = [
        np.concatenate([e[np.isfinite(e)], means[label][np.isfinite(means[label])]])
        for label, e in ends.items()
        if label != "prior"
    ]
    if not any(part.size and np.ptp(part) for part in lines):
        say(axes, "no element has finite draws that vary")
        return
    scale = scale_of(lines)
    low = min(part.min() for part in lines if part.size)
    high = max(part.max() for part in lines if part.size)
    scale = scale.reaching(np.array([low, high]))
    for label, interval in ends.items():
        offset = 0.35 * every * (label == "beside")
        look = {"color": RULE if label == "prior" else COLORS[label], "rasterized": len(entries) > 150}
        width = 230 / len(entries)
        if label == "prior":
            axes.fill_between(entries, *interval.T, color=RULE, linewidth=0, zorder=1)
            continue
        axes.vlines(entries + offset, *interval.T, linewidth=min(3.0, max(0.5, 0.45 * width)), alpha=0.5, **look)
        axes.plot(entries + offset, means[label], ".", markersize=min(5.0, max(1.5, width)), **look)
    scale.set(axes, "y")
    axes.set_xlim(-every, entries[-1] + every)
    text = _entries(variable)
    is_numbered = text == [str(number) for number in range(len(text))]
    if is_numbered:
        whole_numbers(axes.xaxis)
    else:
        ticks = entries[:: -(-len(entries) // _MOST_NAMES)]
        look = {"rotation": 30, "ha": "right", "rotation_mode": "anchor", "parse_math": False}
        axes.set_xticks(ticks, [text[number] for number in ticks], **look)
    thinned = f", every {every}{'nd' if every == 2 else 'rd' if every == 3 else 'th'} shown" if every > 1 else ""
    axes.set_xlabel(f"element{', from 0' * is_numbered}{thinned}; mean, 94%", fontsize=8.5, color=MUTED)
    axes.set_ylabel(f"value{scale.text}", fontsize=8.5, color=MUTED)
