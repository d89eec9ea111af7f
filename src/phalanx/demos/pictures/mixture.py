"""Pictures of the mixture's draws, and of their time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from phalanx.report.plots.style import ACCENT, BAND, INK, MUTED, SECOND, explain, finish, new_figure

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import Figure

COLORS = {"NumPy": MUTED, "JAX, one loop": SECOND, "Phalanx": ACCENT, "Phalanx, MixtureSameFamily": INK}

EDGES = np.linspace(-12.0, 18.0, 121)


def density_figure(samples: Float[np.ndarray, "draw"], density: Callable[[np.ndarray], np.ndarray]) -> Figure:
    """Draw the histogram of samples over the exact density."""
    figure = new_figure(7.5, 3.6)
    axes = figure.subplots()
    heights = np.histogram(samples, EDGES)[0] / max(len(samples), 1) / np.diff(EDGES)
    axes.bar(EDGES[:-1], heights, np.diff(EDGES), align="edge", color=BAND, label="samples")
    x = np.linspace(EDGES[0], EDGES[-1], 600)
    axes.plot(x, density(x), color=ACCENT, linewidth=1.8, label="exact density")
    finish(axes, "", "x", "density")
    explain(figure)
    return figure


def time_figure(points: Mapping[str, Sequence[tuple[int, float, float]]], size: str) -> Figure:
    """Draw seconds of sampling against a size, and dashed those of compiling, for each way."""
    figure = new_figure(7.5, 4.0)
    axes = figure.subplots()
    for name, found in points.items():
        if not found:
            continue
        sizes, compiling, sampling = map(np.array, zip(*found, strict=True))
        axes.plot(sizes, sampling, "o-", color=COLORS[name], linewidth=1.8, markersize=5, label=name)
        if compiling.any():
            axes.plot(sizes, compiling, ":", color=COLORS[name], linewidth=1.2, label=f"{name}: compiling")
    axes.set(xscale="log", yscale="log")
    finish(axes, "", size, "seconds", grid="both")
    explain(figure)
    return figure


def memory_figure(points: Sequence[tuple[int, float]]) -> Figure:
    """Draw resident memory against samples."""
    figure = new_figure(7.5, 3.2)
    axes = figure.subplots()
    if points:
        samples, megabytes = map(np.array, zip(*points, strict=True))
        axes.plot(samples, megabytes, "o-", color=ACCENT, linewidth=1.8, markersize=5)
        axes.set(xscale="log", ylim=(0, 1.3 * megabytes.max()))
    finish(axes, "", "samples", "resident memory (MB)")
    return figure
