"""Rank plots: chains that sample one distribution have equal shares of every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.style import BAND, CHAINS, FEW_CHAINS, MUTED, explain, finish, new_figure, say, whole_numbers

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COLUMNS = 3


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
            _lines(axes, rank_counts(values))
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
    draws, share = counts[0].sum(), 1 / counts.shape[1]
    return draws * share, float(np.sqrt(draws * share * (1 - share)))


def _lines(axes: Axes, counts: Int[np.ndarray, "chain bin"]) -> None:
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
        bar.set_label("standard deviations from an even share", fontsize=9, color=MUTED)
        bar.ax.tick_params(labelsize=8.5, colors=MUTED, length=0)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
