"""Pictures of a posterior over softmax regressions, its accuracy and weights; and of draws in the plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.demos.scoring.scores import ImageScores
from phalanx.posterior.posterior import Posterior
from phalanx.report.plots.style import ACCENT, INK, MUTED, SECOND, explain, finish, new_figure

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import Figure


def accuracy(scores: ImageScores) -> Figure:
    """Draw the accuracy of single draws, and that of the Bayesian model average of increasing numbers of draws."""
    figure = new_figure(7.5, 3.6)
    axes = figure.subplots()
    counts, running = scores.running_accuracy
    draws = np.arange(1, len(scores.draw_accuracy) + 1)
    axes.plot(draws, scores.draw_accuracy, ".", color=SECOND, markersize=2, alpha=0.5, label="one draw")
    mean = scores.draw_accuracy.mean()
    axes.axhline(mean, color=SECOND, linewidth=1.5, label=f"mean over draws, {mean:.4f}")
    axes.plot(counts, running, color=ACCENT, linewidth=2, label=f"Bayesian model average, {scores.accuracy:.4f}")
    finish(axes, "Test accuracy", "draws", "")
    explain(figure)
    return figure


def weights(posterior: Posterior, side: int) -> Figure:
    """Draw posterior mean and standard deviation of each class's weights, as images of `side` x `side` pixels."""
    flat = posterior.draws["w"].reshape(-1, *posterior.draws["w"].shape[2:])
    figure = new_figure(10.0, 2.5)
    rows = figure.subplots(2, flat.shape[-1])
    for values, axes, name, colors in (
        (flat.mean(0), rows[0], "mean", "RdBu_r"),
        (flat.std(0), rows[1], "sd", "viridis"),
    ):
        limit = np.abs(values).max()
        for digit, panel in enumerate(axes):
            image = values[:, digit].reshape(side, side)
            low = -limit if name == "mean" else 0.0
            panel.imshow(image, cmap=colors, vmin=low, vmax=limit, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            if name == "mean":
                panel.set_title(str(digit), fontsize=9, color=INK)
        axes[0].set_ylabel(name, fontsize=9, color=MUTED)
    return figure


def cloud(
    draws: Float[np.ndarray, "chain draw 2"], mean: Float[np.ndarray, "2"], covariance: Float[np.ndarray, "2 2"]
) -> Figure:
    """Plot draws in the plane over ellipses of one, two and three standard deviations of the exact Gaussian."""
    figure = new_figure(5.2, 5.0)
    axes = figure.subplots()
    flat = draws.reshape(-1, 2)
    few = flat[:: max(1, len(flat) // 4000)]
    axes.plot(*few.T, ".", color=ACCENT, markersize=2, alpha=0.35, label="draws")
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])
    for radius in (1, 2, 3):
        label = "1, 2, 3 standard deviations" if radius == 1 else None
        axes.plot(*(mean[:, None] + radius * circle), color=SECOND, linewidth=1.5, label=label)
    finish(axes, "", "first coordinate", "second coordinate", grid="both")
    explain(figure)
    return figure
