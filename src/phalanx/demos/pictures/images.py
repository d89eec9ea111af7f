"""Pictures of rows of images, and of bits per dimension during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from phalanx.report.plots.style import ACCENT, MUTED, SECOND, explain, finish, new_figure
from phalanx.variational.monitoring.watching import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def image_rows(rows: Mapping[str, np.ndarray], side: tuple[int, int]) -> Figure:
    """Draw rows of images `(images, pixels)` from 0 to 255, each row with its name."""
    count = len(next(iter(rows.values())))
    figure = new_figure(0.85 * count + 1.2, 0.95 * len(rows))
    panels = figure.subplots(len(rows), count, squeeze=False)
    for line, (name, images) in zip(panels, rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.imshow(np.reshape(image, side), cmap="Greys", vmin=0, vmax=255, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        line[0].set_ylabel(name, fontsize=8, color=MUTED, rotation=0, ha="right", va="center")
    return figure


def bits_curve(looks: Sequence[Look], test: float) -> Figure:
    """Draw bits per dimension during training, of the training and of the held-out images."""
    figure = new_figure(6.5, 3.4)
    axes = figure.subplots()
    steps = [look.step for look in looks]
    axes.plot(steps, [look.bits for look in looks], color=SECOND, linewidth=1.6, label="training")
    axes.plot(steps, [look.held_out_bits for look in looks], color=ACCENT, linewidth=2, label="held out")
    axes.axhline(test, color=MUTED, linewidth=1, linestyle="--", label=f"test images, {test:.3f}")
    finish(axes, "Bits per dimension", "steps", "")
    explain(figure)
    return figure
