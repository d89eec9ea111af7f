"""Panels for images, and bits per dimension during the training of a model of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.report.plots.style import ACCENT, MUTED, SECOND, explain, finish, new_figure, whole_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def image_panels(figure: Figure, rows: int, columns: int) -> np.ndarray:
    """Return axes `(rows, columns)` without ticks or frames."""
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    return panels


def bits_curve(looks: Sequence[Any], test: float | None = None) -> Figure:
    """Draw bits per dimension of training, held-out and test images; `looks` are those of a `Fit`."""
    figure = new_figure(6.5, 3.4)
    axes = figure.subplots()
    steps = [look.step for look in looks]
    axes.plot(steps, [look.bits for look in looks], color=SECOND, linewidth=1.6, label="training")
    axes.plot(steps, [look.held_out_bits for look in looks], color=ACCENT, linewidth=2, label="held out")
    if test is not None:
        axes.axhline(test, color=MUTED, linewidth=1, linestyle="--", label=f"test images, {test:.3f}")
    whole_numbers(axes.xaxis)
    finish(axes, "Bits per dimension", "steps", "")
    explain(figure)
    return figure
