"""Pictures in the report of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.elements import Names, element_names
from phalanx.report.plots.style import ACCENT, INK, MUTED, PANEL, SECOND, bin_edges, finish, new_figure, panel
from phalanx.variational.judging.evidence import Weights
from phalanx.variational.judging.judge import moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 6
"""Most marginals to draw, each in a figure of its own."""

POINTS = 600
"""Most points of a curve."""


def bound_figure(elbo: np.ndarray) -> Figure | None:
    """Draw the bound at each step with its running mean, within the limits of later steps; None without steps."""
    steps = np.flatnonzero(np.isfinite(elbo))
    if not len(steps):
        return None
    values = elbo[steps]
    width = max(1, len(values) // 50)
    totals = np.cumsum(np.concatenate([[0.0], values.astype(np.float64)]))
    running = (totals[width:] - totals[:-width]) / width
    figure = new_figure(PANEL, 2.4)
    axes = figure.subplots()
    shown = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
    axes.plot(steps[shown], values[shown], color=MUTED, linewidth=0.5, alpha=0.6, label="each step")
    running, ends = running[:: -(-len(running) // POINTS)], steps[width - 1 :: -(-len(running) // POINTS)]
    axes.plot(ends, running, color=ACCENT, linewidth=1.6, label=f"mean of {width:,} steps")
    low, high = np.quantile(values[len(values) // 4 :], [0.001, 1.0])
    axes.set_ylim(low - 0.1 * (high - low + 1e-6), high + 0.1 * (high - low + 1e-6))
    finish(axes, x="step", y="bound in nats")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def weight_figure(weights: Weights) -> Figure:
    """Draw the weights in order, relative to their mean, raw and smoothed."""
    figure = new_figure(PANEL, 2.4)
    axes = figure.subplots()
    for log, color, label in (
        (weights.log, MUTED, "as they are"),
        (weights.smoothed.log_weights, ACCENT, f"smoothed, k-hat {weights.smoothed.k_hat:.2f}"),
    ):
        finite = np.sort(log[np.isfinite(log)])
        relative = finite - finite.max() - np.log(np.mean(np.exp(finite - finite.max()))) if len(finite) else finite
        axes.plot(np.linspace(0.0, 1.0, len(relative)), relative, color=color, linewidth=1.4, label=label)
    finish(axes, x="fraction of draws with a smaller weight", y="log(weight / mean weight)")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def marginal_figure(values: Mapping[str, np.ndarray], weights: Weights, labels: Names | None = None) -> list[Figure]:
    """Draw histograms of the elements that weighting moves most, under the guide and weighted; none without weights."""
    normalized = weights.normalized
    if not np.isfinite(normalized).all():
        return []
    found = moments(values, normalized, labels=labels)
    found = sorted(found, key=lambda m: -max(abs(m.shift), abs(np.log(m.ratio))))[:SHOWN]
    columns = {
        label: column
        for name, draws in values.items()
        for label, column in zip(
            element_names(name, draws.shape[1:], labels), draws.reshape(len(draws), -1).T, strict=True
        )
    }
    return [panel(_weighted, moment.name, columns[moment.name].astype(np.float64), normalized) for moment in found]


def _weighted(axes: Axes, name: str, draws: np.ndarray, normalized: np.ndarray) -> None:
    """Draw the histogram of an element, and that of its weighted draws."""
    low, high = np.quantile(draws, [0.001, 0.999])
    edges = bin_edges(low, high, len(draws) // 4)
    for weight, color, label in ((None, ACCENT, "guide"), (normalized, SECOND, "weighted")):
        heights = np.histogram(draws, edges, weights=weight)[0] / (1.0 if weight is not None else len(draws))
        axes.stairs(heights, edges, fill=True, color=color, alpha=0.2)
        axes.stairs(heights, edges, color=color, linewidth=1.4, label=label)
    finish(axes, name, x="value")
    axes.set_yticks([])
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
