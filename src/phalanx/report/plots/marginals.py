"""Plot of one scalar: the histogram of its draws, its interval, and its prior or the draws of another run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.diagnostics.interval import hdi
from phalanx.report.plots.scales import Scale, scale_of
from phalanx.report.plots.style import ACCENT, MUTED, PANEL, SECOND, finish, new_figure, say

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROB = 0.94
"""Fraction of the draws in an interval."""

# A bin of the prior's histogram is as wide as it takes to hold so many draws on average.
_PRIOR_IN_BIN = 40


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
        dashes = {"linestyle": (0, (4, 3))} if label == "prior" else {"fill": True, "alpha": 0.2}
        axes.stairs(heights, edges, color=COLORS[label], linewidth=1.3, baseline=0, **dashes)
        if label != "prior":
            axes.stairs(heights, edges, color=COLORS[label], linewidth=1.3)
            top = max(top, float(heights.max()))
    _intervals(axes, {label: values for label, values in sets.items() if label != "prior"}, top)
    scale.set(axes, "x")
    axes.set_yticks([])
    axes.set_xlabel(_words(sets["posterior"]) + scale.words, fontsize=8.5, color=MUTED)
    return figure


def undrawable(values: Shaped[np.ndarray, "draw element"]) -> str:
    """Return why draws have no histogram, in words; empty if they have one."""
    finite = _finite(values)
    if not finite.size:
        return "no draw is finite"
    return f"constant: {finite[0]:.4g}" if finite.min() == finite.max() else ""


def visible_scale(sets: dict[str, Float[np.ndarray, "draw"]]) -> Scale:
    """Return a scale for all sets of finite draws that shows most of the prior if it is not too far away."""
    scale = scale_of([values for label, values in sets.items() if label != "prior"])
    prior = sets.get("prior", np.zeros(0))
    return scale.reaching(np.quantile(prior, [0.25, 0.75])) if prior.size else scale


def intervals(values: Float[np.ndarray, "draw element"], prob: float = PROB) -> Float[np.ndarray, "element 2"]:
    """Return the narrowest interval of each element; NaN where a draw is not finite."""
    return hdi(values[None], prob)


def _density(
    values: Float[np.ndarray, "draw"], scale: Scale, merge: bool
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
