"""Picture of regression coefficients on standardised columns: intervals, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from phalanx.report.plots.style import ACCENT, INK, MUTED, SECOND, explain, finish, new_figure

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW, TITLE = 0.2, 0.9
"""Inches of height for a coefficient, and for the frame of a group."""

WIDE, NARROW = (0.03, 0.97), (0.25, 0.75)


def intervals(
    draws: Float[np.ndarray, "chain draw coefficient"],
    names: Sequence[str],
    panels: Sequence[Mapping[str, np.ndarray]],
    unseen: Bool[np.ndarray, "coefficient"],
    truth: Float[np.ndarray, "coefficient"] | None = None,
) -> Figure:
    """Draw the median of each coefficient with its 50% and 94% intervals, all on one scale.

    Args:
        draws: draws of the coefficients.
        names: the names of the coefficients.
        panels: from left to right, groups from top to bottom: numbers of coefficients by the group's title.
        unseen: True for coefficients of constant columns, which have their prior distribution.
        truth: the true coefficients, if known.

    Returns:
        The figure.
    """
    flat = draws.reshape(-1, draws.shape[-1])
    ends = np.quantile(flat, WIDE, axis=0)
    margin = 0.04 * np.ptp(ends)
    height = max(sum(ROW * len(group) + TITLE for group in panel.values()) for panel in panels)
    figure = new_figure(3.7 * len(panels), height)
    for part, panel in zip(figure.subfigures(1, len(panels), squeeze=False)[0], panels, strict=True):
        ratios = [ROW * len(group) + TITLE / 2 for group in panel.values()]
        rows = part.subplots(len(panel), 1, squeeze=False, sharex=True, height_ratios=ratios)[:, 0]
        for axes, (title, group) in zip(rows, panel.items(), strict=True):
            _draw_group(axes, flat[:, group], unseen[group])
            if truth is not None:
                style = {"markersize": 7, "markeredgewidth": 1.6, "color": SECOND, "label": "true coefficient"}
                axes.plot(truth[group], np.arange(len(group)), "|", zorder=4, **style)
            labels = [f"{names[i]}{' (no rows)' if unseen[i] else ''}" for i in group]
            axes.set_yticks(np.arange(len(group)), labels)
            last = axes is rows[-1]
            finish(axes, title, "median, 50% and 94% intervals" if last else "", grid="x")
            axes.tick_params("y", labelsize=8, labelcolor=INK)
            axes.set(xlim=(ends.min() - margin, ends.max() + margin), ylim=(len(group) - 0.4, -0.6))
    explain(figure)
    return figure


def _draw_group(axes: Axes, draws: Float[np.ndarray, "draw member"], unseen: Bool[np.ndarray, "member"]) -> None:
    height = np.arange(draws.shape[1])
    colors = [MUTED if alone else ACCENT for alone in unseen]
    axes.axvline(0, color=MUTED, linewidth=1, linestyle="--")
    for levels, width in ((WIDE, 1.2), (NARROW, 3.6)):
        axes.hlines(height, *np.quantile(draws, levels, axis=0), colors=colors, linewidth=width)
    axes.scatter(np.median(draws, 0), height, s=16, c="white", edgecolors=colors, linewidths=1.2, zorder=3)
