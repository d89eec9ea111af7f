"""Plots of how well a model predicts: replicated data over the observed, Pareto k, and the reliability diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.diagnostics.calibration import Calibration
from phalanx.report.plots.style import (
    ACCENT,
    ALARM,
    BAND,
    INK,
    MUTED,
    PANEL,
    explain,
    finish,
    new_figure,
    say,
    scale_of,
    whole_numbers,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from matplotlib.figure import Figure

_MOST_VALUES = 2_000_000


def predictive_figure(
    name: str, observed: Shaped[np.ndarray, "..."], replicated: Shaped[np.ndarray, "draw ..."]
) -> Figure:
    """Draw the histogram of the observed values, over the range of those of replicated data.

    Args:
        name: the observed variable.
        observed: its values.
        replicated: as many values, drawn anew at each of some draws.

    Returns:
        The figure. It contains words instead if observed values are missing or not finite.
    """
    figure = new_figure(PANEL, 2.2)
    axes = figure.subplots()
    finish(axes, name, y="share of values")
    values = observed.astype(np.float64).ravel()
    again = replicated.astype(np.float64).reshape(len(replicated), -1)
    if not values.size or not np.isfinite(values).all():
        say(axes, "some observed values are not finite")
        return figure
    # of very many values, some show the histogram as well
    every = max(1, -(-again.size // _MOST_VALUES))
    values = values[::every]
    again = again[:, ::every]
    finite = again[np.isfinite(again)]
    if not finite.size or np.ptp(np.concatenate([values, finite])) == 0:
        say(axes, "the replicated values are not finite, or all values are equal")
        return figure
    scale = scale_of([values, finite])
    edges = scale.edges(max(values.size * 8, 160))
    shares = np.array([np.histogram(row, edges)[0] / row.size for row in again])
    low, lower, median, upper, high = np.quantile(shares, [0.03, 0.25, 0.5, 0.75, 0.97], axis=0)
    for bottom, top, alpha, label in ((low, high, 0.18, "94% of the replicates"), (lower, upper, 0.3, "50%")):
        axes.stairs(top, edges, baseline=bottom, fill=True, color=ACCENT, alpha=alpha, label=label)
    axes.stairs(median, edges, baseline=None, color=ACCENT, linewidth=1.2, label="median")
    share = np.histogram(values, edges)[0] / values.size
    axes.stairs(share, edges, baseline=None, color=INK, linewidth=1.6, label="observed")
    scale.set(axes, "x")
    axes.set_ylim(0, 1.08 * max(share.max(), high.max()))
    axes.set_xlabel(f"value{scale.text}", fontsize=9, color=MUTED)
    explain(figure)
    return figure


def statistics_figure(
    name: str, observed: Shaped[np.ndarray, "..."], replicated: Shaped[np.ndarray, "draw ..."]
) -> Figure:
    """Draw mean, standard deviation, least and greatest value of replicated data, beside those of the observed.

    Args:
        name: the observed variable.
        observed: its values.
        replicated: as many values, drawn anew at each of some draws.

    Returns:
        The figure, four small panels, each with the share of replicates above the observed value.

    Source: A. Gelman, X.-L. Meng, H. Stern (1996), Posterior predictive assessment of model fitness via realized
    discrepancies.
    """
    figure = new_figure(PANEL, 2.2)
    panels = figure.subplots(2, 2).ravel()
    flat = replicated.astype(np.float64).reshape(len(replicated), -1)
    of = {"mean": np.mean, "sd": np.std, "least": np.min, "greatest": np.max}
    for axes, (title, statistic) in zip(panels, of.items(), strict=True):
        again = statistic(flat, axis=1)
        value = float(statistic(observed.astype(np.float64)))
        again = again[np.isfinite(again)]
        finish(axes, grid="x")
        axes.set_yticks([])
        if not again.size or not np.isfinite(value):
            axes.set_title(f"{title} of {name}", loc="left", fontsize=8.5, color=INK, parse_math=False)
            say(axes, "not finite")
            continue
        above = np.mean(again > value) + np.mean(again == value) / 2
        axes.set_title(f"{title}: {above:.0%} above", loc="left", fontsize=8.5, color=INK)
        both = np.append(again, value)
        low = both.min()
        high = both.max()
        margin = 0.05 * (high - low) or 0.5
        edges = np.linspace(low - margin, high + margin, 21)
        counts = np.histogram(again, edges)[0]
        axes.stairs(counts, edges, fill=True, color=ACCENT, alpha=0.3)
        axes.axvline(value, color=INK, linewidth=1.6)
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(labelsize=7.5)
    return figure


def pareto_figure(name: str, pareto_k: Float[np.ndarray, "..."], good_k: float = 0.7) -> Figure:
    """Draw Pareto k of each observation in the order of the data; high ones are red.

    Args:
        name: the observed variable.
        pareto_k: one value per observation.
        good_k: the largest value with a reliable estimate.

    Returns:
        The figure.

    Source: A. Vehtari, A. Gelman, J. Gabry (2017), Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC.
    """
    figure = new_figure(PANEL, 2.2)
    axes = figure.subplots()
    values = np.asarray(pareto_k, np.float64).ravel()
    finish(axes, f"Pareto k of {name}", x="observation, from 0")
    rows = np.arange(values.size)
    high = values > good_k
    size = float(np.clip(60 / np.sqrt(max(values.size, 1)), 1.2, 5))
    for selection, color in ((~high, ACCENT), (high, ALARM)):
        axes.plot(
            rows[selection], values[selection], "o", color=color, markersize=size, markeredgewidth=0, rasterized=True
        )
    axes.axhline(good_k, color=ALARM, linewidth=0.9, linestyle=(0, (4, 3)))
    where = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom"}
    axes.text(1, good_k, f"unreliable above {good_k:.2g}", fontsize=8, color=ALARM, **where)
    whole_numbers(axes.xaxis)
    finite = values[np.isfinite(values)]
    axes.set_ylim(min(0.0, finite.min(initial=0.0)) - 0.05, max(1.0, 1.1 * finite.max(initial=0.0)))
    return figure


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
    width = 1 / len(share)
    has_rows = share > 0
    middle = (np.arange(len(share)) + 0.5) * width
    above.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    above.bar(middle[has_rows], calibration.frequency[has_rows], width * 0.92, color=BAND)
    line = calibration.probability[has_rows], calibration.frequency[has_rows]
    above.plot(*line, "o-", color=ACCENT, markersize=5, linewidth=1.5)
    finish(above, f"Expected calibration error {calibration.error:.3f}", "", frequency)
    above.set(xlim=(0, 1), ylim=(0, 1.02))
    below.bar(middle, share, width * 0.92, color=ACCENT)
    finish(below, "", probability, f"share of {rows}")
    return figure
