"""Style of the pictures of "When the verdict says no": size, colours, and the plots that several of them share."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from thumbnails import STYLE

POSTERIOR, OTHER, WRONG, CALM = "#2f6db3", "#e8873a", "#d0273b", "0.6"
"""Colours: what is right, what is compared with it, what is wrong, and the rest."""

SIZE: dict[str, Any] = {"figsize": (4.4, 2.7), "dpi": 140, "layout": "constrained"}
"""A column of a phone is 350 pixels wide: letters of 9 points are legible there."""


def style() -> Any:
    """Return the context in which pictures are drawn: the style of the gallery."""
    lines = (line.partition(":") for line in STYLE.strip().splitlines())
    settings: dict[Any, str] = {name.strip(): value.strip() for name, _, value in lines}
    return rc_context(settings)


def panel() -> tuple[Figure, Any]:
    """Return a figure and its axes."""
    figure = Figure(**SIZE)
    return figure, figure.subplots()


def traces(values: np.ndarray, name: str, draws: str = "draw") -> Figure:
    """Draw the traces of several chains."""
    figure, axes = panel()
    axes.plot(values.T, linewidth=0.7)
    axes.set(xlabel=draws, ylabel=name)
    return figure


def beside_density(draws: np.ndarray, grid: np.ndarray, log_density: np.ndarray, *names: str) -> Figure:
    """Draw a histogram of draws and the density that they should have; names: the draws, the density, the axis."""
    figure, axes = panel()
    label, exact, axis = names
    axes.hist(draws, bins=60, range=(grid[0], grid[-1]), density=True, color=OTHER, alpha=0.6, label=label)
    density = np.exp(log_density - log_density.max())
    axes.plot(grid, density / (density.sum() * (grid[1] - grid[0])), color=POSTERIOR, label=exact)
    axes.legend(frameon=False)
    axes.set(xlabel=axis, ylabel="density", yticks=[])
    return figure


def clouds(right: np.ndarray, other: np.ndarray, *names: str) -> Figure:
    """Draw points of two variables over the posterior's; names: the posterior, the others, and both axes."""
    figure, axes = panel()
    for values, colour, name in ((right, POSTERIOR, names[0]), (other, OTHER, names[1])):
        axes.plot(*np.asarray(values).T, ".", markersize=3, color=colour, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel=names[2], ylabel=names[3])
    return figure
