"""Reliability diagram: observed frequencies against predicted probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.calibration import Calibration
from phalanx.report.plots.style import ACCENT, BAND, MUTED, finish, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability_figure(
    calibration: Calibration, frequency: str = "accuracy", probability: str = "confidence", rows: str = "rows"
) -> Figure:
    """Draw observed frequencies against predicted probabilities, and the share of rows at each probability.

    Args:
        calibration: probabilities and frequencies, as `Prediction.calibration` returns them.
        frequency: label of the frequencies.
        probability: label of the probabilities.
        rows: name of the predicted rows.

    Returns:
        The figure.

    Raises:
        ImportError: if matplotlib is not installed.

    Example:
        >>> import numpy as np, phalanx as phx
        >>> from phalanx.report import reliability_figure
        >>> prediction = phx.ensembles.Prediction(np.array([[[0.9, 0.1], [0.4, 0.6]]]))
        >>> figure = reliability_figure(prediction.calibration(np.array([0, 1])))
        >>> figure.axes[0].get_title("left")
        'Expected calibration error 0.250'

    Source:
        Guo, Pleiss, Sun, Weinberger (2017), On calibration of modern neural networks.
    """
    figure = new_figure(5.2, 5.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    share = calibration.share
    width, shown = 1 / len(share), share > 0
    middle = (np.arange(len(share)) + 0.5) * width
    above.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    above.bar(middle[shown], calibration.frequency[shown], width * 0.92, color=BAND)
    line = calibration.probability[shown], calibration.frequency[shown]
    above.plot(*line, "o-", color=ACCENT, markersize=5, linewidth=1.5)
    finish(above, f"Expected calibration error {calibration.error:.3f}", "", frequency)
    above.set(xlim=(0, 1), ylim=(0, 1.02))
    below.bar(middle, share, width * 0.92, color=ACCENT)
    finish(below, "", probability, f"share of {rows}")
    return figure
