"""Plot of autocorrelation: how long draws of a chain remember earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.reducers.effective_size import mean_autocovariance
from phalanx.report.plots.chosen import Quantity
from phalanx.report.plots.style import (
    ACCENT,
    CHAINS,
    FEW_CHAINS,
    MUTED,
    PANEL,
    explain,
    finish,
    new_figure,
    say,
    whole_numbers,
)

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import Figure

_MOST_LAGS = 100


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
    centred = chains - chains.mean(axis=1, keepdims=True)
    covariance = mean_autocovariance(centred[:, None])[:, : min(_MOST_LAGS, chains.shape[1] // 4) + 1]
    return covariance / covariance[:, :1]
