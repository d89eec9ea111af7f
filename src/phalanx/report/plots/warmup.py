"""Plot of warm-up, round by round: step size, acceptance rate, metric and length of trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from phalanx.extras import require
from phalanx.report.plots.style import ACCENT, ALARM, MUTED, SECOND, finish, new_figure, panel, whole_numbers
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rounds = Mapping[str, np.ndarray]
"""Statistics of the rounds by name."""


def warmup_figure(posterior: Reported) -> Figure:
    """Draw what changed during warm-up: step size, acceptance rate, and, if tuned, metric and length of trajectories.

    Args:
        posterior: the run; its `warmup` holds at least one round.

    Returns:
        The figure. Dashed lines mark rounds after which a new metric was in use, dotted lines rounds that moved chains.
    """
    plots = _plots(posterior)
    figure = new_figure(10, 2.8)
    for axes, draw in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots.values(), strict=True):
        draw(axes, posterior.warmup)
    return figure


def warmup_panels(posterior: Reported) -> dict[str, Figure]:
    """Return the panels of `warmup_figure` as figures by title."""
    return {title: panel(draw, posterior.warmup) for title, draw in _plots(posterior).items()}


def _plots(posterior: Reported) -> dict[str, Callable[[Axes, Rounds], None]]:
    plots = {"Step size": _step_size, "Acceptance rate": _acceptance_rate}
    if "metric_low" in posterior.warmup:
        plots["Metric"] = _metric
    if "trajectory_length" in posterior.warmup:
        plots["Length of trajectories"] = _trajectory_length
    return plots


def _step_size(axes: Axes, rounds: Rounds) -> None:
    _frame(axes, rounds, "Step size (log axis)", log=True)
    _line(axes, rounds, "step_size", ACCENT)


def _acceptance_rate(axes: Axes, rounds: Rounds) -> None:
    _frame(axes, rounds, "Acceptance rate of the round")
    _line(axes, rounds, "acceptance_rate", ACCENT)
    axes.set_ylim(0, 1.02)


def _metric(axes: Axes, rounds: Rounds) -> None:
    """Draw the range of the standard deviations by which the metric scales the coordinates."""
    _frame(axes, rounds, "Scales of the metric (log axis)", log=True)
    axes.fill_between(
        rounds["iteration"], rounds["metric_low"], rounds["metric_high"], color=SECOND, alpha=0.2, linewidth=0
    )  # fmt: skip
    for name in ("metric_low", "metric_high"):
        _line(axes, rounds, name, SECOND)


def _trajectory_length(axes: Axes, rounds: Rounds) -> None:
    _frame(axes, rounds, "Length of trajectories (log axis)", log=True)
    _line(axes, rounds, "trajectory_length", SECOND)


def _frame(axes: Axes, rounds: Rounds, title: str, *, log: bool = False) -> None:
    """Finish the axes, and mark rounds that changed the metric or moved chains."""
    finish(axes, title, x="iteration of warm-up")
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(require("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(require("matplotlib.ticker").NullLocator())
    changed, moved = rounds["metric_changed"].astype(bool), rounds["relocated_chains"] > 0
    for where, line, dashes in ((changed, MUTED, (0, (4, 3))), (moved, ALARM, (0, (1, 2)))):
        for iteration in rounds["iteration"][where]:
            axes.axvline(iteration, color=line, linewidth=0.8, linestyle=dashes, zorder=0)
    whole_numbers(axes.xaxis)


def _line(axes: Axes, rounds: Rounds, name: str, color: str) -> None:
    axes.plot(rounds["iteration"], rounds[name], color=color, linewidth=1.3, marker=".", markersize=3)
