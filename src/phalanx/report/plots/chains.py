"""Plots of a quantity, chain by chain: traces, ranks, and autocorrelation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.errors.message_text import count
from phalanx.reducers.effective_size import mean_autocovariance
from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.style import (
    ACCENT,
    ALARM,
    BAND,
    CHAINS,
    FEW_CHAINS,
    MUTED,
    PANEL,
    bin_edges,
    explain,
    finish,
    new_figure,
    say,
    whole_numbers,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More points than pixels cost time and size of the page, and show nothing.
_POINTS = 110
"""Most points of a line per inch of the figure's width."""

_MOST_COLUMNS = 3

_MOST_LAGS = 100


def trace_figure(quantities: list[Quantity], diverging: Bool[np.ndarray, "chain draw"], width: float = 10) -> Figure:
    """Draw the trace of each quantity, with its histogram on the right and a red tick under each divergent draw.

    Up to eight chains are lines. More are bands of quantiles over the chains at each draw, with one line for the chain
    furthest out.

    Args:
        quantities: the quantities.
        diverging: True for divergent draws.
        width: its width in inches.

    Returns:
        The figure, one row per quantity.
    """
    figure = new_figure(width, 1.65 * len(quantities) + 0.6)
    grid = figure.subplots(len(quantities), 2, squeeze=False, sharey="row", width_ratios=(5, 1))
    divergent = np.flatnonzero(diverging.any(axis=0))
    length = diverging.shape[1]
    draw_numbers = np.arange(0, length, -(-length // int(_POINTS * width)))
    draw_trace = _draw_lines if diverging.shape[0] <= FEW_CHAINS else _bands
    for (name, values), (trace_axes, right) in zip(quantities, grid, strict=True):
        finish(trace_axes, name)
        finish(right, grid=None)
        trace_axes.set_xlim(0, max(values.shape[1] - 1, 1))
        trace_axes.margins(y=0.12)
        whole_numbers(trace_axes.xaxis, 9)
        trace_axes.tick_params(labelbottom=trace_axes is grid[-1, 0])
        trace_axes.locator_params(axis="y", nbins=5)
        if np.isfinite(values).any():
            draw_trace(trace_axes, values, draw_numbers)
            if divergent.size:
                height = np.full(divergent.shape, 0.03)
                where = trace_axes.get_xaxis_transform()
                trace_axes.plot(
                    divergent, height, "|", color=ALARM, markersize=7, transform=where, label="divergent draw"
                )
        else:
            say(trace_axes, "no draw is finite")
        _histogram(right, values)
    grid[-1, 0].set_xlabel("draw")
    explain(figure)
    return figure


def _draw_lines(axes: Axes, values: Float[np.ndarray, "chain draw"], draws: Int[np.ndarray, "shown"]) -> None:
    """Draw one line per chain, at the draws to show."""
    for chain, color in zip(range(len(values)), CHAINS, strict=False):
        axes.plot(draws, values[chain, draws], color=color, linewidth=0.7, alpha=0.8, label=f"chain {chain}")


def _bands(axes: Axes, values: Float[np.ndarray, "chain draw"], draws: Int[np.ndarray, "shown"]) -> None:
    """Draw the middle 50% and 90% of the chains at each draw, their median, and the chain furthest out."""
    # Draws without a finite chain have no quantiles and are left out.
    draws = draws[np.isfinite(values[:, draws]).any(axis=0)]
    low, lower, median, upper, high = np.nanquantile(values[:, draws], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    axes.fill_between(draws, low, high, color=ACCENT, alpha=0.15, linewidth=0, label="90% of the chains")
    axes.fill_between(draws, lower, upper, color=ACCENT, alpha=0.3, linewidth=0, label="50% of the chains")
    axes.plot(draws, median, color=ACCENT, linewidth=1.2, label=f"median of {count(len(values), 'chain')}")
    centre = np.nanmedian(values)
    finite = [chain[np.isfinite(chain)] for chain in values]
    furthest = int(np.argmax([abs(np.median(chain) - centre) if chain.size else -1.0 for chain in finite]))
    axes.plot(draws, values[furthest, draws], color=CHAINS[1], linewidth=0.6, alpha=0.9, label="chain furthest out")


def _histogram(axes: Axes, values: Float[np.ndarray, "chain draw"]) -> None:
    """Draw horizontal histograms: one per chain if chains are few, else one of all draws."""
    axes.set_xticks([])
    axes.tick_params(labelleft=False)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    edges = bin_edges(finite.min(), finite.max(), finite.size)
    if len(values) > FEW_CHAINS:
        counts = np.histogram(finite, edges)[0]
        axes.stairs(counts, edges, orientation="horizontal", fill=True, color=ACCENT, alpha=0.45)
        return
    for chain, color in zip(values, CHAINS, strict=False):
        counts = np.histogram(chain[np.isfinite(chain)], edges)[0]
        axes.stairs(counts, edges, orientation="horizontal", color=color, linewidth=1.2, alpha=0.9)


def rank_figure(quantities: list[Quantity], width: float = 10) -> Figure:
    """Draw, for each quantity, the histogram of the ranks of each chain's draws among all draws.

    Up to eight chains are lines around the even share, with a band of two standard deviations of independent draws.
    More are rows of a picture, coloured by their distance from the even share in standard deviations.

    Args:
        quantities: the quantities.
        width: its width in inches.

    Returns:
        The figure, up to three quantities in a row.

    Source: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC.
    """
    chains = len(quantities[0].values)
    if chains == 1:
        figure = new_figure(width, 1.2)
        axes = figure.subplots()
        finish(axes)
        say(axes, "ranks compare chains, and this run has one")
        return figure
    columns = min(_MOST_COLUMNS, len(quantities))
    rows = -(-len(quantities) // columns)
    figure = new_figure(width, 2.6 * rows + 0.5)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, values) in zip(cells, quantities, strict=False):
        finish(axes, name, x="rank among all draws (%)", grid=None)
        if np.isnan(values).any():
            say(axes, "some draws are not finite")
        elif chains <= FEW_CHAINS:
            _draw_shares(axes, rank_counts(values))
        else:
            _picture(axes, rank_counts(values))
    for axes in cells[len(quantities) :]:
        axes.set_visible(False)
    _explain_colors(figure)
    explain(figure)
    return figure


def rank_counts(values: Float[np.ndarray, "chain draw"]) -> Int[np.ndarray, "chain bin"]:
    """Count each chain's draws in equal bins of their rank among all draws; ties share their mean rank.

    Args:
        values: finite values.

    Returns:
        Counts in 5 to 20 bins.
    """
    from scipy.stats import rankdata  # slow to import

    ranks = rankdata(values, method="average").reshape(values.shape)
    bins = int(np.clip(values.shape[1] // 10, 5, 20))
    edges = np.linspace(0.5, values.size + 0.5, bins + 1)
    return np.array([np.histogram(chain, edges)[0] for chain in ranks])


def _spread(counts: Int[np.ndarray, "chain bin"]) -> tuple[float, float]:
    """Return mean and standard deviation of a bin's count for independent draws from one distribution."""
    draws = counts[0].sum()
    share = 1 / counts.shape[1]
    return draws * share, float(np.sqrt(draws * share * (1 - share)))


def _draw_shares(axes: Axes, counts: Int[np.ndarray, "chain bin"]) -> None:
    """Draw one step line per chain around the even share."""
    edges = np.linspace(0, 100, counts.shape[1] + 1)
    mean, deviation = _spread(counts)
    axes.axhspan(mean - 2 * deviation, mean + 2 * deviation, color=BAND, label="± 2 sd if independent")
    axes.axhline(mean, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), label="even share")
    for chain, color in enumerate(CHAINS[: len(counts)]):
        axes.stairs(counts[chain], edges, baseline=None, color=color, linewidth=1.4, label=f"chain {chain}")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.12 * max(counts.max(), mean + 2 * deviation))
    whole_numbers(axes.yaxis, 5)


def _picture(axes: Axes, counts: Int[np.ndarray, "chain bin"]) -> None:
    """Draw one row per chain, coloured by its distance from the even share."""
    mean, deviation = _spread(counts)
    extent = (0, 100, len(counts) - 0.5, -0.5)
    colors = {"cmap": "RdBu_r", "vmin": -5, "vmax": 5}
    axes.imshow((counts - mean) / deviation, aspect="auto", extent=extent, interpolation="nearest", **colors)
    axes.spines["bottom"].set_visible(False)
    axes.set_ylabel("chain")
    whole_numbers(axes.yaxis)


def _explain_colors(figure: Figure) -> None:
    """Put one colour bar beside all pictures."""
    pictures = [picture for axes in figure.axes for picture in axes.get_images()]
    if pictures:
        bar = figure.colorbar(pictures[0], ax=figure.axes, shrink=0.6, pad=0.02, extend="both")
        bar.set_label("sd from an even share", fontsize=9, color=MUTED)
        bar.ax.tick_params(labelsize=8.5, colors=MUTED, length=0)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def autocorrelation_figure(quantity: Quantity) -> Figure:
    """Draw the autocorrelation of each chain by lag, about the chain's own mean.

    Up to eight chains are lines; more are bands of quantiles over the chains.

    Args:
        quantity: the draws.

    Returns:
        The figure. It contains words instead if too few draws are finite or a chain stands still.
    """
    figure = new_figure(PANEL, 1.8)
    axes = figure.subplots()
    finish(axes, quantity.name, x="lag (draws)")
    chains = quantity.values[np.isfinite(quantity.values).all(axis=1)]
    chains = chains[np.ptp(chains, axis=1) > 0] if chains.size else chains
    if not chains.size or chains.shape[1] < 8:
        say(axes, "too few draws that are finite and vary")
        return figure
    correlation = autocorrelations(chains)
    lags = np.arange(correlation.shape[1])
    if len(correlation) <= FEW_CHAINS:
        for chain, (values, color) in enumerate(zip(correlation, CHAINS, strict=False)):
            axes.plot(lags, values, color=color, linewidth=1.1, label=f"chain {chain}")
    else:
        low, lower, median, upper, high = np.quantile(correlation, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
        axes.fill_between(lags, low, high, color=ACCENT, alpha=0.15, linewidth=0, label="90% of the chains")
        axes.fill_between(lags, lower, upper, color=ACCENT, alpha=0.3, linewidth=0, label="50% of the chains")
        axes.plot(lags, median, color=ACCENT, linewidth=1.2, label="median of the chains")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_xlim(0, lags[-1])
    axes.set_ylim(min(-0.1, 1.1 * correlation.min()), 1.05)
    whole_numbers(axes.xaxis)
    explain(figure)
    return figure


def autocorrelations(chains: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, "chain lag"]:
    """Return the autocorrelation of each chain at lags from 0 up to a quarter of its draws, at most 100."""
    deviations = chains - chains.mean(axis=1, keepdims=True)
    covariance = mean_autocovariance(deviations[:, None])[:, : min(_MOST_LAGS, chains.shape[1] // 4) + 1]
    return covariance / covariance[:, :1]
