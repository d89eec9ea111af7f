"""Pictures of an ensemble: the training of its members, and the images that they disagree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.ensembles import Prediction
from phalanx.report.plots.style import ACCENT, INK, MUTED, SECOND, explain, finish, new_figure, whole_numbers

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped
    from matplotlib.figure import Figure

SHOWN = 16
"""Images in a picture."""


def curves(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw loss and test error, epoch by epoch: the mean member with the range of all, and the ensemble."""
    figure = new_figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    epochs = np.arange(1, len(history) + 1)
    loss = np.array([row["train_loss"] for row in history])
    error = 100 * (1 - np.array([row["test_accuracy"] for row in history]))
    for axes, values, title in ((left, loss, "Training loss"), (right, error, "Test error, percent")):
        axes.fill_between(epochs, values.min(1), values.max(1), color=SECOND, alpha=0.25, linewidth=0)
        axes.plot(epochs, values.mean(1), color=SECOND, linewidth=1.6, label="mean member, and the range of all")
        axes.set_ylim(0, 1.05 * values.max())
        whole_numbers(axes.xaxis)
        finish(axes, title, "epoch", "")
    whole = 100 * (1 - np.array([row["ensemble_accuracy"] for row in history]))
    right.plot(epochs, whole, color=ACCENT, linewidth=2, label="ensemble")
    left.plot([], [], color=ACCENT, linewidth=2, label="ensemble")
    explain(figure)
    return figure


def disagreed_upon(
    prediction: Prediction, images: Shaped[np.ndarray, "image row column"], labels: Int[np.ndarray, "image"]
) -> Figure:
    """Draw the images that members disagree on most, with their class and the ensemble's two best guesses."""
    order = np.argsort(-prediction.mutual_information, kind="stable")[:SHOWN]
    columns = min(8, len(order))
    rows = -(-len(order) // columns)
    figure = new_figure(1.25 * columns, 1.75 * rows)
    figure.suptitle(
        "Images that members disagree on: true class (orange if the ensemble errs), and its two best guesses",
        fontsize=8.5, color=MUTED,
    )  # fmt: skip
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, image in zip(panels.flat, order, strict=False):
        p = prediction.mean[image]
        first, second = np.argsort(-p)[:2]
        axes.imshow(images[image], cmap="Greys", interpolation="nearest")
        right = first == labels[image]
        axes.set_title(f"{labels[image]}", fontsize=10, fontweight="bold", color=INK if right else SECOND, pad=2)
        axes.set_xlabel(f"{first}: {p[first]:.2f}\n{second}: {p[second]:.2f}", fontsize=7.5, color=MUTED)
    return figure
