"""Plot of warm-up, round by round: step size, acceptance rate and length of trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.extras import require
from phalanx.report.plots.style import ACCENT, ALARM, MUTED, SECOND, finish, new_figure, whole_numbers
from phalanx.report.reported import Reported

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def warmup_figure(posterior: Reported) -> Figure:
    """Draw the step size, the acceptance rate and, if tuned, the length of trajectories during warm-up.

    Args:
        posterior: the run; its `warmup` holds at least one round.

    Returns:
        The figure. Dashed lines mark rounds after which a new metric was in use, dotted lines rounds that moved chains.
    """
    rounds, length = posterior.warmup, "trajectory_length" in posterior.warmup
    figure = new_figure(10, 2.8)
    panels = figure.subplots(1, 3 if length else 2, squeeze=False)[0]
    _line(panels[0], rounds, "step_size", "Step size", ACCENT, log=True)
    _line(panels[1], rounds, "acceptance_rate", "Acceptance rate of the round", ACCENT)
    panels[1].set_ylim(0, 1.02)
    if length:
        _line(panels[2], rounds, "trajectory_length", "Length of trajectories", SECOND, log=True)
    return figure


def _line(axes: Axes, rounds: dict[str, np.ndarray], name: str, title: str, color: str, log: bool = False) -> None:
    finish(axes, title, x="iteration of warm-up")
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(require("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(require("matplotlib.ticker").NullLocator())
    axes.plot(rounds["iteration"], rounds[name], color=color, linewidth=1.3, marker=".", markersize=3)
    changed, moved = rounds["metric_changed"].astype(bool), rounds["relocated_chains"] > 0
    for where, line, dashes in ((changed, MUTED, (0, (4, 3))), (moved, ALARM, (0, (1, 2)))):
        for iteration in rounds["iteration"][where]:
            axes.axvline(iteration, color=line, linewidth=0.8, linestyle=dashes, zorder=0)
    whole_numbers(axes.xaxis)
